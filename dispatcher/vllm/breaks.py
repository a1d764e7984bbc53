"""What a send that raised means: aiohttp's and the system's exceptions, by type and errno, as a Break."""

import errno
import socket
import ssl
from typing import Final

import aiohttp

from dispatcher.model import Break, BreakKind

STALE_WINDOW_S: Final = 2.0
"""A server that closes an idle connection just as we reuse it does so within about one round trip of our
request. Silence that ends later is a request that the server had, and lost."""

DETAIL_CHARACTERS_MAX: Final = 300


def break_of(error: Exception, *, reused: bool, age_s: float, away: bool = False) -> Break:
    """Translate what a send raised.

    `reused`: the connection had carried an earlier request. `age_s`: the attempt's age, less the time in
    which this process stood still. `away`: it has done so until just now.
    """
    kind = _kind_of(error, stale=reused and age_s <= STALE_WINDOW_S)
    return Break(excused(kind, away=away), detail_of(error))


def excused(kind: BreakKind, *, away: bool) -> BreakKind:
    """What ran out while this process stood still ran out for want of us, not of an answer."""
    return BreakKind.AWAY if away and kind in _TIMEOUTS else kind


def kind_of_lookup(error: OSError) -> BreakKind:
    """Tell whether a name is at fault, or our resolver: one that is down says nothing about any name.

    getaddrinfo(3): EAI_AGAIN is no answer from a name server, or one that it could not give now; EAI_FAIL is
    one that refused; EAI_MEMORY is ours. All else is about the name.
    """
    match error.errno:
        case socket.EAI_AGAIN | socket.EAI_FAIL:
            return BreakKind.OFFLINE
        case socket.EAI_MEMORY:
            return BreakKind.LOCAL
        case _:
            return BreakKind.UNRESOLVED


def detail_of(error: Exception) -> str:
    """Name an exception and give its own words, cut at 300 characters."""
    if isinstance(error, aiohttp.ServerDisconnectedError):  # prints the head of an answer, cookies and all
        return type(error).__name__
    return f"{type(error).__name__}: {error}".removesuffix(": ")[:DETAIL_CHARACTERS_MAX]


LOCAL_ERRNOS: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM}
)
"""This machine has no descriptors, ports or memory left."""

OFFLINE_ERRNOS: Final = frozenset({errno.ENETDOWN, errno.ENETUNREACH})
"""This machine has no network, or no way to that one."""

NO_ANSWER_ERRNOS: Final = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH})
"""The kernel's own connect time-outs: no answer from the address, or none from the host's link (ARP)."""

_TIMEOUTS: Final = frozenset({BreakKind.TIMED_OUT, BreakKind.CONNECT_TIMED_OUT})

_KINDS: Final[tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], BreakKind], ...]] = (
    (MemoryError, BreakKind.LOCAL),
    (aiohttp.ClientPayloadError, BreakKind.TRUNCATED),
    (aiohttp.ConnectionTimeoutError, BreakKind.CONNECT_TIMED_OUT),
    (TimeoutError, BreakKind.TIMED_OUT),
    ((aiohttp.ClientSSLError, aiohttp.ServerFingerprintMismatch, ssl.SSLError), BreakKind.TLS),
    # Refused, or reset in the handshake: in any case the request never went out.
    (aiohttp.ClientConnectorError, BreakKind.REFUSED),
    # An address, or a header of the server's configuration, that cannot be sent: no such server.
    ((ValueError, aiohttp.NonHttpUrlClientError), BreakKind.UNRESOLVED),
    ((OSError, aiohttp.ClientConnectionError), BreakKind.RESET),
)
"""The first that fits counts; what fits none is an answer that is not HTTP."""


def _kind_of(error: Exception, *, stale: bool) -> BreakKind:
    number = error.errno if isinstance(error, OSError) else None
    if number in LOCAL_ERRNOS:
        return BreakKind.LOCAL
    if number in OFFLINE_ERRNOS:
        return BreakKind.OFFLINE
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return kind_of_lookup(error.os_error)
    if number in NO_ANSWER_ERRNOS and isinstance(error, aiohttp.ClientConnectorError):
        return BreakKind.CONNECT_TIMED_OUT
    if stale and _is_orderly_close(error, number):
        return BreakKind.STALE
    return next((kind for types, kind in _KINDS if isinstance(error, types)), BreakKind.PROTOCOL)


def _is_orderly_close(error: Exception, number: int | None) -> bool:
    """Tell whether the peer closed (FIN) before any byte of an answer; a reset (RST) is another thing.

    aiohttp has a parsed head instead of a text where some of it had come. The kernel has EPIPE, and not
    ECONNRESET, for writing to a connection that the peer had closed properly.
    """
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return isinstance(error.message, str)
    closing = (error, error.__cause__)  # the cause, where aiohttp was at the request's body
    return number == errno.EPIPE or any(isinstance(e, aiohttp.ClientConnectionResetError) for e in closing)
