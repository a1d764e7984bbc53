import errno
import socket
import ssl

import aiohttp
import httpx2
import pytest
from aiohttp.client_reqrep import ConnectionKey
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from dispatcher.model import BreakKind
from dispatcher.vllm.breaks import LOCAL_ERRNOS, STALE_WINDOW_S, break_of, detail_of
from dispatcher.vllm.probe_breaks import probe_break_of

KEY = ConnectionKey("h", 1, False, True, None, None, None)  # noqa: FBT003 - aiohttp's own record
INFO = aiohttp.RequestInfo(URL("http://h"), "POST", CIMultiDictProxy(CIMultiDict()), URL("http://h"))


def connecting(number, kind=aiohttp.ClientConnectorError):
    return kind(KEY, OSError(number, "words"))


def kind_of(error, *, reused=False, age_s=0.0):
    return break_of(error, reused=reused, age_s=age_s).kind


@pytest.mark.parametrize("number", sorted(LOCAL_ERRNOS))
def test_what_this_machine_lacks_is_local_wherever_it_shows(number):
    for error in (
        connecting(number),
        connecting(number, aiohttp.ClientConnectorDNSError),
        aiohttp.ClientOSError(number, "words"),
        OSError(number, "words"),
    ):
        assert kind_of(error, reused=True) is BreakKind.LOCAL


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (connecting(errno.ECONNREFUSED), BreakKind.REFUSED),
        (connecting(errno.ENETUNREACH), BreakKind.REFUSED),
        (connecting(errno.EHOSTUNREACH), BreakKind.REFUSED),
        (connecting(errno.ECONNRESET), BreakKind.REFUSED),
        (connecting(errno.ETIMEDOUT), BreakKind.CONNECT_TIMED_OUT),
        (aiohttp.ConnectionTimeoutError("words"), BreakKind.CONNECT_TIMED_OUT),
        (connecting(-2, aiohttp.ClientConnectorDNSError), BreakKind.UNRESOLVED),
        (aiohttp.ClientConnectorSSLError(KEY, ssl.SSLError(1, "words")), BreakKind.TLS),
        (
            aiohttp.ClientConnectorCertificateError(KEY, ssl.SSLCertVerificationError(1, "words")),
            BreakKind.TLS,
        ),
        (aiohttp.ClientOSError(errno.ECONNRESET, "words"), BreakKind.RESET),
        (aiohttp.ClientOSError(errno.ETIMEDOUT, "words"), BreakKind.RESET),
        (aiohttp.ClientOSError(errno.EPIPE, "words"), BreakKind.RESET),
        (aiohttp.ServerDisconnectedError(), BreakKind.RESET),
        (aiohttp.ClientConnectionResetError("words"), BreakKind.RESET),
        (aiohttp.ClientConnectionError("Connection closed"), BreakKind.RESET),
        (aiohttp.ClientPayloadError("words"), BreakKind.TRUNCATED),
        (TimeoutError(), BreakKind.TIMED_OUT),
        (MemoryError(), BreakKind.LOCAL),
        (aiohttp.InvalidURL("x"), BreakKind.UNRESOLVED),
        (aiohttp.NonHttpUrlClientError("x"), BreakKind.UNRESOLVED),
        (ValueError("words"), BreakKind.UNRESOLVED),
        (aiohttp.ClientResponseError(INFO, (), status=400, message="Bad status line"), BreakKind.PROTOCOL),
        (aiohttp.ClientError("words"), BreakKind.PROTOCOL),
    ],
)
def test_every_exception_of_a_send_has_its_kind(error, kind):
    assert kind_of(error) is kind


@pytest.mark.parametrize(
    "error",
    [
        aiohttp.ServerDisconnectedError(),
        aiohttp.ClientConnectionResetError("Cannot write to closing transport"),
        aiohttp.ClientOSError(errno.EPIPE, "words"),
    ],
)
def test_a_proper_close_of_a_reused_connection_is_stale_within_the_window(error):
    assert kind_of(error, reused=True, age_s=STALE_WINDOW_S) is BreakKind.STALE
    assert kind_of(error, reused=True, age_s=STALE_WINDOW_S + 0.01) is BreakKind.RESET
    assert kind_of(error, reused=False, age_s=0) is BreakKind.RESET


@pytest.mark.parametrize("error", [aiohttp.ClientOSError(errno.ECONNRESET, "words"), TimeoutError()])
def test_what_is_no_proper_close_is_never_stale(error):
    assert kind_of(error, reused=True) is not BreakKind.STALE


def test_a_detail_is_short_and_tells_no_head_of_an_answer():
    assert detail_of(ValueError("x" * 1000)) == "ValueError: " + "x" * 288
    assert detail_of(TimeoutError()) == "TimeoutError"
    assert detail_of(aiohttp.ServerDisconnectedError("Set-Cookie: secret")) == "ServerDisconnectedError"


def caused(error, *causes):
    """As httpx2 and anyio raise: the system's errors are a cause, or a group of causes."""
    error.__cause__ = causes[0] if len(causes) == 1 else ExceptionGroup("several addresses", causes)
    return error


REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "words")
NO_ROUTE = OSError(errno.EHOSTUNREACH, "words")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (caused(httpx2.ConnectError("failed"), REFUSED), BreakKind.REFUSED),
        (caused(httpx2.ConnectError("failed"), REFUSED, REFUSED), BreakKind.REFUSED),
        (caused(httpx2.ConnectError("failed"), NO_ROUTE), BreakKind.RESET),
        (caused(httpx2.ConnectError("failed"), socket.gaierror(-2, "words")), BreakKind.UNRESOLVED),
        (caused(httpx2.ConnectError("failed"), ssl.SSLError(1, "words")), BreakKind.TLS),
        (caused(httpx2.ConnectError("failed"), OSError(errno.EMFILE, "words")), BreakKind.LOCAL),
        (httpx2.ConnectTimeout("words"), BreakKind.CONNECT_TIMED_OUT),
        (httpx2.ReadTimeout("words"), BreakKind.TIMED_OUT),
        (TimeoutError(), BreakKind.TIMED_OUT),
        (httpx2.ReadError("words"), BreakKind.RESET),
        (httpx2.RemoteProtocolError("words"), BreakKind.PROTOCOL),
        (httpx2.DecodingError("words"), BreakKind.PROTOCOL),
        (httpx2.LocalProtocolError("words"), BreakKind.UNRESOLVED),
        (httpx2.UnsupportedProtocol("words"), BreakKind.UNRESOLVED),
        (httpx2.InvalidURL("words"), BreakKind.UNRESOLVED),
    ],
)
def test_every_exception_of_a_probe_has_its_kind(error, kind):
    assert probe_break_of(error).kind is kind
