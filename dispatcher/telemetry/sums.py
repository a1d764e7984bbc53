"""The metrics of several processes as those of one."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

Labels = tuple[tuple[str, str], ...]


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One value of one series."""

    name: str
    labels: Labels
    value: float


Series = Mapping[str, Sequence[Sample]]
"""The samples of each family, by its name."""


class Join(Enum):
    """What the same gauge of several processes comes to."""

    SUM = auto()  # each has a part of it
    MOST = auto()  # it holds where it holds for one of them


GAUGES: Final = MappingProxyType(
    {
        "dispatcher_server_state": Join.MOST,  # processes can see a server differently for a moment
        "dispatcher_server_state_timestamp_seconds": Join.MOST,
        "dispatcher_server_in_flight": Join.SUM,
        "dispatcher_server_limit": Join.SUM,
        "dispatcher_queue_requests": Join.MOST,  # one process tells them
        "dispatcher_queue_shards": Join.MOST,
        "dispatcher_jobs": Join.MOST,
        "dispatcher_jobs_starving": Join.MOST,
        "dispatcher_jobs_late": Join.MOST,
        "dispatcher_nodes": Join.MOST,
        "dispatcher_obstacle": Join.MOST,
        "dispatcher_source_faulty": Join.MOST,
        "dispatcher_waiting_for_servers": Join.MOST,
        "dispatcher_build_info": Join.MOST,
    }
)
"""How each gauge is joined. Counters and histograms are summed."""
SERVER: Final = "server"


def series_of(registry: CollectorRegistry) -> Series:
    """Every sample of a process's metrics, without timestamps of creation. Blocks."""
    return {family.name: _samples(family) for family in registry.collect()}


class Joined(Collector):
    """What processes have told of their metrics, and this one's own, as one registry's families.

    A process that has ended goes on to count: its counters and histograms are kept, and its gauges are not.
    So no counter goes back. What a killed process had counted since it last told is lost, as it would be
    were it scraped itself. The series of a server go with the last process that knows it.

    `told` and its like may be called while another thread collects.
    """

    def __init__(self, own: CollectorRegistry) -> None:
        self._own = own
        self._lock = threading.Lock()
        self._living: dict[str, Series | None] = {}
        self._past: dict[str, dict[tuple[str, Labels], float]] = {}

    def began(self, process: str) -> None:
        """This process will tell."""
        with self._lock:
            self._living[process] = None

    def told(self, process: str, series: Series) -> None:
        """These are the process's samples now."""
        with self._lock:
            if process in self._living:
                self._living[process] = series

    def ended(self, process: str) -> None:
        """The process will tell no more."""
        with self._lock:
            for name, samples in (self._living.pop(process, None) or {}).items():
                if name not in GAUGES:
                    _add(self._past.setdefault(name, {}), samples)

    def collect(self) -> Iterator[Metric]:
        """All families, as a scrape shows them."""
        with self._lock:
            living = [series for series in self._living.values() if series is not None]
            if living and len(living) == len(self._living):
                self._forget_servers(living)
            past = {name: dict(values) for name, values in self._past.items()}
        for family in self._own.collect():
            told = [_samples(family), *(series.get(family.name, ()) for series in living)]
            join = GAUGES[family.name] if family.type == "gauge" else Join.SUM
            yield _joined(family, told, join, past.get(family.name, {}))

    def _forget_servers(self, living: Sequence[Series]) -> None:
        """Drop what the past has of servers that no process knows any more."""
        known = {
            value
            for series in living
            for sample in series.get("dispatcher_server_limit", ())
            for label, value in sample.labels
            if label == SERVER
        }
        for name, values in self._past.items():
            self._past[name] = {key: value for key, value in values.items() if _of_known(key[1], known)}


def _of_known(labels: Labels, known: set[str]) -> bool:
    return all(label != SERVER or value in known for label, value in labels)


def _samples(family: Metric) -> list[Sample]:
    return [
        Sample(sample.name, tuple(sample.labels.items()), sample.value)
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]


def _add(totals: dict[tuple[str, Labels], float], samples: Iterable[Sample]) -> None:
    for sample in samples:
        key = sample.name, sample.labels
        totals[key] = totals.get(key, 0.0) + sample.value


def _joined(
    family: Metric,
    told: Sequence[Sequence[Sample]],
    join: Join,
    past: Mapping[tuple[str, Labels], float],
) -> Metric:
    totals: dict[tuple[str, Labels], float] = dict(past)
    for samples in told:
        if join is Join.SUM:
            _add(totals, samples)
            continue
        for sample in samples:
            key = sample.name, sample.labels
            totals[key] = max(totals.get(key, sample.value), sample.value)
    joined = Metric(family.name, family.documentation, family.type, family.unit)
    for (name, labels), value in totals.items():
        joined.add_sample(name, dict(labels), value)
    return joined
