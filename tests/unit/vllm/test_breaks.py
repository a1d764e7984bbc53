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


def writing_the_body():
    """As aiohttp raises where the connection had been closed before the body was written."""
    error = aiohttp.ClientOSError(None, "Can not write request body")
    error.__cause__ = aiohttp.ClientConnectionResetError("Cannot write to closing transport")
    return error


def looking_up(number):
    return aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(number, "words"))


def kind_of(error, *, reused=False, age_s=0.0, away=False):
    return break_of(error, reused=reused, age_s=age_s, away=away).kind


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
        (connecting(errno.ENETUNREACH), BreakKind.OFFLINE),
        (connecting(errno.ENETDOWN), BreakKind.OFFLINE),
        (connecting(errno.EHOSTUNREACH), BreakKind.CONNECT_TIMED_OUT),
        (connecting(errno.ECONNRESET), BreakKind.REFUSED),
        (connecting(errno.ETIMEDOUT), BreakKind.CONNECT_TIMED_OUT),
        (aiohttp.ConnectionTimeoutError("words"), BreakKind.CONNECT_TIMED_OUT),
        (looking_up(socket.EAI_NONAME), BreakKind.UNRESOLVED),
        (looking_up(socket.EAI_NODATA), BreakKind.UNRESOLVED),
        (looking_up(None), BreakKind.UNRESOLVED),
        (looking_up(socket.EAI_AGAIN), BreakKind.OFFLINE),
        (looking_up(socket.EAI_FAIL), BreakKind.OFFLINE),
        (looking_up(socket.EAI_MEMORY), BreakKind.LOCAL),
        (aiohttp.ClientConnectorSSLError(KEY, ssl.SSLError(1, "words")), BreakKind.TLS),
        (
            aiohttp.ClientConnectorCertificateError(KEY, ssl.SSLCertVerificationError(1, "words")),
            BreakKind.TLS,
        ),
        (aiohttp.ClientOSError(errno.ECONNRESET, "words"), BreakKind.RESET),
        (aiohttp.ClientOSError(errno.ETIMEDOUT, "words"), BreakKind.RESET),
        (aiohttp.ClientOSError(errno.EHOSTUNREACH, "words"), BreakKind.RESET),
        (aiohttp.ClientOSError(errno.ENETUNREACH, "words"), BreakKind.OFFLINE),
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
        writing_the_body(),
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


TIMEOUTS = [
    TimeoutError(),
    aiohttp.ConnectionTimeoutError("words"),
    aiohttp.SocketTimeoutError("words"),
    connecting(errno.ETIMEDOUT),
]
OTHERS = [
    connecting(errno.ECONNREFUSED),
    aiohttp.ClientOSError(errno.ECONNRESET, "words"),
    aiohttp.ClientPayloadError("words"),
    MemoryError(),
]


def test_what_ran_out_while_we_stood_still_is_nobody_s_and_what_a_server_did_is_its_own():
    assert {kind_of(error, away=True) for error in TIMEOUTS} == {BreakKind.AWAY}
    assert [kind_of(error, away=True) for error in OTHERS] == [kind_of(error) for error in OTHERS]
    assert probe_break_of(httpx2.ConnectTimeout("words"), away=True).kind is BreakKind.AWAY
    assert probe_break_of(TimeoutError(), away=True).kind is BreakKind.AWAY
    assert probe_break_of(caused(httpx2.ConnectError("x"), REFUSED), away=True).kind is BreakKind.REFUSED


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
NO_NETWORK = OSError(errno.ENETUNREACH, "words")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (caused(httpx2.ConnectError("failed"), REFUSED), BreakKind.REFUSED),
        (caused(httpx2.ConnectError("failed"), REFUSED, REFUSED), BreakKind.REFUSED),
        (caused(httpx2.ConnectError("failed"), NO_ROUTE), BreakKind.RESET),
        (caused(httpx2.ConnectError("failed"), NO_NETWORK), BreakKind.OFFLINE),
        (caused(httpx2.ConnectError("failed"), NO_NETWORK, REFUSED), BreakKind.REFUSED),
        (
            caused(httpx2.ConnectError("failed"), socket.gaierror(socket.EAI_NONAME, "words")),
            BreakKind.UNRESOLVED,
        ),
        (
            caused(httpx2.ConnectError("failed"), socket.gaierror(socket.EAI_AGAIN, "words")),
            BreakKind.OFFLINE,
        ),
        (caused(httpx2.ConnectError("failed"), ssl.SSLError(1, "words")), BreakKind.TLS),
        (caused(httpx2.ConnectError("failed"), OSError(errno.EMFILE, "words")), BreakKind.LOCAL),
        (MemoryError(), BreakKind.LOCAL),
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
