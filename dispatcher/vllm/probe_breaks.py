"""What a probe that raised means: httpx2's and the system's exceptions, by type and errno, as a Break."""

import errno
import socket
import ssl
from collections.abc import Iterator
from typing import Final

import httpx2

from dispatcher.model import Break, BreakKind
from dispatcher.vllm.breaks import LOCAL_ERRNOS, OFFLINE_ERRNOS, detail_of, excused, kind_of_lookup


def probe_break_of(error: Exception, *, away: bool = False) -> Break:
    """Translate what an exchange raised. `away`: this process has stood still until just now.

    httpx2 has one type for all that goes wrong while connecting, so the system's own errors are looked for
    among its causes.
    """
    return Break(excused(_kind_of(error), away=away), detail_of(error))


_KINDS: Final[tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], BreakKind], ...]] = (
    (MemoryError, BreakKind.LOCAL),
    (httpx2.ConnectTimeout, BreakKind.CONNECT_TIMED_OUT),
    ((httpx2.TimeoutException, TimeoutError), BreakKind.TIMED_OUT),
    # An address, or a header of the server's configuration, that cannot be sent: no such server.
    (
        (httpx2.InvalidURL, httpx2.UnsupportedProtocol, httpx2.LocalProtocolError, ValueError),
        BreakKind.UNRESOLVED,
    ),
    ((httpx2.ProtocolError, httpx2.DecodingError), BreakKind.PROTOCOL),
)
"""The first that fits counts; what fits none broke on the way."""


def _kind_of(error: Exception) -> BreakKind:
    causes = list(_causes(error))
    numbers = {cause.errno for cause in causes if isinstance(cause, OSError)}
    if numbers & LOCAL_ERRNOS:
        return BreakKind.LOCAL
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return BreakKind.TLS
    if lookups := [cause for cause in causes if isinstance(cause, socket.gaierror)]:
        return kind_of_lookup(lookups[0])
    if errno.ECONNREFUSED in numbers:  # by one of its addresses; another's family may be one we do not have
        return BreakKind.REFUSED
    if numbers & OFFLINE_ERRNOS:
        return BreakKind.OFFLINE
    return next((kind for types, kind in _KINDS if isinstance(error, types)), BreakKind.RESET)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Go through the error, what it was raised from, and so on, with all members of groups."""
    yield error
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from _causes(member)
    cause = error.__cause__ or error.__context__
    if cause is not None:
        yield from _causes(cause)
