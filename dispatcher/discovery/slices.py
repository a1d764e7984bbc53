"""EndpointSlices, and the servers that they stand for: events in, membership out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from dispatcher.config import SERVICE_LABEL

USUAL_PORTS: Final = ("http", "https")
"""Of several ports these are taken, in this order, where the configuration names none."""


class SlicePort(msgspec.Struct, frozen=True):
    """A port of all of a slice's endpoints. Without a number it is not restricted, and so says nothing."""

    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class Conditions(msgspec.Struct, frozen=True):
    """None of them means unknown, which is "not terminating"."""

    terminating: bool | None = None


class Reference(msgspec.Struct, frozen=True):
    """The pod behind an endpoint."""

    uid: str | None = None


class Endpoint(msgspec.Struct, frozen=True, rename="camel"):
    """One pod, or one address that somebody wrote down. Of its addresses only the first counts."""

    addresses: tuple[str, ...] = ()
    conditions: Conditions | None = None
    target_ref: Reference | None = None

    @property
    def pod(self) -> str:
        """What it is the same endpoint by, in several slices."""
        uid = self.target_ref.uid if self.target_ref else None
        return uid or self.addresses[0]

    @property
    def terminates(self) -> bool:
        """Its pod was told to end: from then on, whether it still answers or not."""
        return bool(self.conditions and self.conditions.terminating)


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """What every object and every list has."""

    name: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    continue_: str | None = msgspec.field(default=None, name="continue")
    """Of a list: where its next page begins."""


class EndpointSlice(msgspec.Struct, frozen=True, rename="camel"):
    """`discovery.k8s.io/v1`, as far as it matters here. Lists may be null.

    https://kubernetes.io/docs/reference/kubernetes-api/service-resources/endpoint-slice-v1/
    """

    metadata: Metadata
    address_type: str = "IPv4"
    endpoints: tuple[Endpoint, ...] | None = None
    ports: tuple[SlicePort, ...] | None = None

    @property
    def service(self) -> str:
        """The Service that it is of; empty for one that somebody wrote without."""
        return (self.metadata.labels or {}).get(SERVICE_LABEL, "")


@dataclass(frozen=True, slots=True)
class Changed:
    """A slice is new, or differs."""

    slice: EndpointSlice


@dataclass(frozen=True, slots=True)
class Removed:
    """A slice is gone, or the selector does not match it any more."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Everything up to this version has been told."""

    version: str


Change = Changed | Removed | Bookmark


class Address(NamedTuple):
    """Where a server listens."""

    kind: str
    """FQDN, IPv4 or IPv6: as they sort, of several the first is taken."""
    host: str
    port: int
    service: str
    """The Service that it is of; empty for a slice that is of none."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What all slices together stand for."""

    addresses: tuple[Address, ...] = ()
    problem: str | None = None
    """What cannot be used of it, and why: in the same words each time."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """An endpoint, as one slice has it."""

    pod: str
    terminates: bool
    address: Address


@dataclass(frozen=True, slots=True)
class _Read:
    """What a slice says: worked out once, since each change of one asks for all."""

    copies: tuple[_Copy, ...]
    problem: str | None


class Slices:
    """All slices that a selector matches, as the API server last told.

    An endpoint is a server whether it is ready or not: the pool watches it itself, and sooner. It is one no
    more when its pod terminates, whatever another copy of it in another slice says: that copy is older.
    A pod with addresses of both families is one server, at its IPv4 address.

    Args:
        port: The port's number or name; None: the only one, or the usual one.
    """

    def __init__(self, port: int | str | None) -> None:
        self._port = port
        self._slices: dict[str, _Read] = {}
        self.version = ""
        """Up to where everything was told: a watch goes on from here."""

    def replace(self, slices: Iterable[EndpointSlice], version: str) -> None:
        """These are all, as of this version."""
        self._slices = {each.metadata.name: _read(each, self._port) for each in slices}
        self.version = version

    def apply(self, change: Change) -> None:
        """Take a change in."""
        match change:
            case Changed(changed):
                self._slices[changed.metadata.name] = _read(changed, self._port)
                self.version = changed.metadata.resource_version
            case Removed(name, version):
                self._slices.pop(name, None)
                self.version = version
            case Bookmark(version):
                self.version = version

    def __len__(self) -> int:
        return len(self._slices)

    def listing(self) -> Listing:
        """Every server, in order, once each."""
        copies = [copy for read in self._slices.values() for copy in read.copies]
        leaving = {copy.pod for copy in copies if copy.terminates}
        best: dict[tuple[str, int], Address] = {}
        for copy in copies:
            if copy.pod not in leaving:
                key = copy.pod, copy.address.port
                known = best.get(key)
                if known is None or copy.address < known:
                    best[key] = copy.address
        problems = (read.problem for read in self._slices.values() if read.problem is not None)
        return Listing(tuple(_once(best.values())), min(problems, default=None))


def _read(slice_: EndpointSlice, wanted: int | str | None) -> _Read:
    endpoints = [each for each in slice_.endpoints or () if each.addresses]
    port = _port(slice_, wanted)
    if isinstance(port, str):
        return _Read((), port if endpoints else None)
    kind, service = slice_.address_type, slice_.service
    return _Read(
        tuple(
            _Copy(each.pod, each.terminates, Address(kind, each.addresses[0], port, service))
            for each in endpoints
        ),
        None,
    )


def _once(addresses: Iterable[Address]) -> Iterable[Address]:
    """Two Services may have the same pod, and a pod the address of one that is gone."""
    listed = {(address.host, address.port): address for address in sorted(addresses, reverse=True)}
    return sorted(listed.values())


def _port(slice_: EndpointSlice, wanted: int | str | None) -> int | str:
    """The port's number; or what is wrong."""
    if isinstance(wanted, int):
        return wanted
    ports = {
        each.name or "": each.port
        for each in slice_.ports or ()
        if each.port is not None and each.protocol in {None, "TCP"}
    }
    if wanted is None:
        return _usual_port(slice_, ports)
    if wanted in ports:
        return ports[wanted]
    return f"{_called(slice_)} has no TCP port named {wanted}, but {_listed(ports)}"


def _usual_port(slice_: EndpointSlice, ports: Mapping[str, int]) -> int | str:
    if len(ports) == 1:
        return next(iter(ports.values()))
    for name in USUAL_PORTS:
        if name in ports:
            return ports[name]
    return f"{_called(slice_)} has {_listed(ports)}: set port"


def _called(slice_: EndpointSlice) -> str:
    return f"the Service {slice_.service}" if slice_.service else f"the slice {slice_.metadata.name}"


def _listed(ports: Mapping[str, int]) -> str:
    return ", ".join(f"{name or 'unnamed'} ({number})" for name, number in sorted(ports.items())) or "none"
