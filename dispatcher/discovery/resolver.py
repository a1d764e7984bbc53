"""Names looked up: addresses by the system's resolver, SRV records by its name servers."""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

import dns.asyncresolver
import dns.exception
import dns.resolver

from dispatcher.discovery.dns import NameLookupError

LOOKUP_S: Final = 5.0
"""How long an answer is waited for."""

Found = Collection[tuple[Any, ...]]
"""What `socket.getaddrinfo` gives."""


async def getaddrinfo(host: str, port: int | None, **hints: int) -> Found:
    """`socket.getaddrinfo`, in a daemon thread of its own.

    The loop's own threads are few, journals are written in them, and the process does not end before they
    do: a silent name server keeps such a call for 10 s or more, and nothing can stop it.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Found] = loop.create_future()

    def settle(found: Found | None, error: Exception | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        elif found is not None:
            answer.set_result(found)

    def look_up() -> None:
        found, failure = None, None
        try:
            found = socket.getaddrinfo(host, port, **hints)
        except Exception as error:  # noqa: BLE001  # whatever it raises is the caller's
            failure = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, found, failure)

    threading.Thread(target=look_up, name=f"look up {host}", daemon=True).start()
    return await answer


class SystemResolver:
    """`discovery.dns.Resolver`. An async context manager; use it inside one event loop.

    Addresses come from `getaddrinfo`, and so from /etc/hosts and with search domains, too. SRV records are
    asked for over TCP: over UDP an answer may hold a part of them without saying so (Consul sends three).
    Only name servers that have never answered over TCP are asked over UDP. Name servers and search domains
    are read from /etc/resolv.conf for each question anew.

    Args:
        look_up: As `loop.getaddrinfo`.
        open_resolver: Makes the resolver for one question.
    """

    def __init__(
        self,
        look_up: Callable[..., Awaitable[Found]] = getaddrinfo,
        open_resolver: Callable[[], dns.asyncresolver.Resolver] = dns.asyncresolver.Resolver,
    ) -> None:
        self._look_up = look_up
        self._open_resolver = open_resolver
        self._has_tcp = False
        self._lookups: dict[str, asyncio.Future[Found]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for lookup in self._lookups.values():
            lookup.cancel()
        await asyncio.gather(*self._lookups.values(), return_exceptions=True)

    async def addresses(self, host: str) -> Collection[str]:
        """The addresses of a host.

        A lookup that takes too long goes on, since nothing can stop it, and the next call for the same host
        waits for it again: there is never more than one.
        """
        lookup = self._lookups.get(host)
        if lookup is None:
            hints = {"type": socket.SOCK_STREAM, "flags": socket.AI_ADDRCONFIG}
            lookup = self._lookups[host] = asyncio.ensure_future(self._look_up(host, None, **hints))
        await asyncio.wait([lookup], timeout=LOOKUP_S)
        if not lookup.done():
            raise NameLookupError(f"no answer within {LOOKUP_S:g} s")
        self._lookups.pop(host, None)
        try:
            return {str(address[0]) for *_, address in lookup.result()}
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            raise NameLookupError(reason or type(error).__name__) from error

    async def services(self, name: str) -> Collection[tuple[str, int]]:
        """The targets and ports of a name's SRV records, without a trailing dot."""
        try:
            answer = await self._ask(name)
        except (dns.exception.DNSException, OSError) as error:
            raise NameLookupError(_reason(error)) from error
        return {(record.target.to_text(omit_final_dot=True), record.port) for record in answer}

    async def _ask(self, name: str) -> dns.resolver.Answer:
        try:
            answer = await self._resolve(name, tcp=True)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            self._has_tcp = True
            raise
        except (dns.resolver.NoNameservers, dns.resolver.LifetimeTimeout):
            if self._has_tcp:
                raise
            return await self._resolve(name, tcp=False)
        self._has_tcp = True
        return answer

    async def _resolve(self, name: str, *, tcp: bool) -> dns.resolver.Answer:
        """Ask, in a task of its own: where a packet comes just then, dnspython swallows a cancellation.

        It waits with `asyncio.wait_for`, which does so before Python 3.12 (python/cpython#86296).
        """
        resolver = self._open_resolver()
        asking = asyncio.ensure_future(
            resolver.resolve(name, "SRV", tcp=tcp, search=True, lifetime=LOOKUP_S / 2)
        )
        try:
            await asyncio.wait([asking])
        finally:
            asking.cancel()
        return asking.result()


def _reason(error: Exception) -> str:
    """Why there are no SRV records. dnspython's own texts have times in them, and so never repeat."""
    match error:
        case dns.resolver.NXDOMAIN():
            return "there is no such name"
        case dns.resolver.NoAnswer():
            return "it has no SRV records"
        case dns.resolver.LifetimeTimeout():
            return f"no answer within {LOOKUP_S / 2:g} s"
        case dns.resolver.NoNameservers():
            answers = sorted({str(failure[3]) for failure in error.kwargs["errors"]})
            return f"the name servers fail: {', '.join(answers)}"
        case dns.resolver.NoResolverConfiguration():
            return "no name server is configured"
        case _:
            return f"{type(error).__name__}: {error}"
