"""The API server, by kubernetes-asyncio: the credentials, and the few questions that there are.

The library's own `Watch` is not used: it decodes into models of every field that there is, goes on by itself
where a list is due, and cannot tell a line from the half of one that a broken connection leaves.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Final, NoReturn

import aiohttp
import msgspec
from aiohttp.http_exceptions import HttpProcessingError
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.config import ConfigException, load_incluster_config, load_kube_config

from dispatcher.config import KubernetesEntry
from dispatcher.discovery.kubernetes import KubernetesError, Listed, WatchEndedError
from dispatcher.discovery.slices import Bookmark, Change, Changed, EndpointSlice, Metadata, Removed

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""What a pod has of its service account: `token`, `ca.crt`, `namespace`."""
WATCH_S: Final = 60
"""The API server ends a watch in order after so long: a connection that died silently is found by that."""
SILENCE_S: Final = WATCH_S + 15.0
WATCH_S_MAX: Final = 2.0 * WATCH_S
"""However much a watch tells: what is between may not pass its end on."""
ANSWER_S: Final = 30.0
"""For one answer, or for the credentials."""
CONNECT_S: Final = 10.0
PAGE_SLICES: Final = 100
PAGES_MAX: Final = 100
_OK, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _GONE = 200, 401, 403, 404, 410
_MESSAGE_CHARACTERS_MAX = 500


class _Page(msgspec.Struct, frozen=True):
    metadata: Metadata
    items: tuple[EndpointSlice, ...] | None = None


class _Event(msgspec.Struct, frozen=True):
    """https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes ."""

    type: str
    object: msgspec.Raw


class _Marked(msgspec.Struct, frozen=True):
    metadata: Metadata


class _Status(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""


class KubernetesApi:
    """`discovery.kubernetes.Api`.

    Args:
        entry: Which namespace, and by which kubeconfig.
        environ: The environment; `KUBERNETES_SERVICE_HOST` is in every pod's.
        account: Where a pod's service account lies.
    """

    def __init__(self, entry: KubernetesEntry, environ: Mapping[str, str], account: Path = ACCOUNT) -> None:
        self._entry = entry
        self._environ = environ
        self._account = account

    def check(self) -> None:
        """Raises KubernetesError where there is nothing to read credentials from."""
        self._kubeconfig()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator["KubernetesSession"]:
        """A session with the credentials as they are now: tokens expire, and certificates are renewed."""
        kubeconfig = self._kubeconfig()
        try:
            async with asyncio.timeout(ANSWER_S):
                configuration, namespace = await self._load(kubeconfig)
            client = ApiClient(configuration)
        except Exception as error:  # a kubeconfig runs programs, and the library asserts what is in it
            raise KubernetesError(f"has no usable credentials: {_worded(error)}") from error
        async with client:
            client.user_agent = "dispatcher"
            yield KubernetesSession(client, self._entry.namespace or namespace)

    def _kubeconfig(self) -> str | None:
        """Its path, or its paths; None in a pod."""
        if self._entry.kubeconfig is None and "KUBERNETES_SERVICE_HOST" in self._environ:
            if self._entry.context is not None:
                raise KubernetesError("has a context, but no kubeconfig: a pod's service account has none")
            if not (self._account / "token").is_file():
                what = f"there is no service account token in {self._account}"
                raise KubernetesError(f"{what}: set automountServiceAccountToken, or kubeconfig")
            return None
        given = str(self._entry.kubeconfig or self._environ.get("KUBECONFIG") or "~/.kube/config")
        if not any(Path(path).expanduser().is_file() for path in given.split(":")):
            raise KubernetesError(f"this is no pod of Kubernetes, and there is no kubeconfig at {given}")
        return given

    async def _load(self, kubeconfig: str | None) -> tuple[Configuration, str]:
        configuration = Configuration()
        if kubeconfig is not None:
            loader = await load_kube_config(
                kubeconfig, self._entry.context, configuration, persist_config=False
            )
            context = loader.current_context or {}
            return configuration, context.get("context", {}).get("namespace") or "default"
        load_incluster_config(  # type: ignore[no-untyped-call]  # the library left it without
            configuration,
            token_filename=str(self._account / "token"),
            cert_filename=str(self._account / "ca.crt"),
            environ=dict(self._environ),
        )
        return configuration, (self._account / "namespace").read_text().strip()


class KubernetesSession:
    """`discovery.kubernetes.Session`."""

    def __init__(self, client: ApiClient, namespace: str) -> None:
        self.namespace = namespace
        self._client = client
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"

    async def list_all(self, selector: str) -> Listed:
        """In pages, and as of now: not from the API server's cache, which may be older than what we know."""
        slices: list[EndpointSlice] = []
        query = {"labelSelector": selector, "limit": str(PAGE_SLICES)}
        for _ in range(PAGES_MAX):
            page = await self._page(query)
            slices += page.items or ()
            if not page.metadata.continue_:
                return Listed(slices, page.metadata.resource_version)
            query["continue"] = page.metadata.continue_
        raise KubernetesError(f"lists more than {PAGES_MAX * PAGE_SLICES} EndpointSlices")

    @asynccontextmanager
    async def watch(self, selector: str, version: str) -> AsyncIterator[AsyncIterator[Change]]:
        """Bookmarks are asked for: they keep the version young where nothing changes."""
        query = {"labelSelector": selector, "watch": "true", "allowWatchBookmarks": "true"}
        query |= {"resourceVersion": version, "timeoutSeconds": str(WATCH_S)}
        bounds = aiohttp.ClientTimeout(WATCH_S_MAX, sock_connect=CONNECT_S, sock_read=SILENCE_S)
        response = await self._get(self._path, query, bounds)
        try:
            if response.status != _OK:
                await self._refuse(response, "watch")
            async with aclosing(_changes(response)) as changes:
                yield changes
        finally:
            response.close()

    async def lacks_namespace(self) -> bool:
        """Asks for it; to an account that may not ask, it does not."""
        path = f"/api/v1/namespaces/{self.namespace}"
        response = await self._get(path, {}, aiohttp.ClientTimeout(total=ANSWER_S))
        response.close()
        return response.status == _NOT_FOUND

    async def _page(self, query: Mapping[str, str]) -> _Page:
        response = await self._get(self._path, query, aiohttp.ClientTimeout(total=ANSWER_S))
        try:
            if response.status != _OK:
                await self._refuse(response, "list")
            return msgspec.json.decode(await response.read(), type=_Page)
        except msgspec.MsgspecError as error:
            raise KubernetesError("does not answer as an API server of Kubernetes") from error
        except (aiohttp.ClientError, OSError) as error:
            raise KubernetesError(f"breaks off its list: {_worded(error)}") from error
        finally:
            response.close()

    async def _get(
        self, path: str, query: Mapping[str, str], bounds: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        try:
            response: aiohttp.ClientResponse = await self._client.call_api(
                path,
                "GET",
                query_params=list(query.items()),
                header_params={"Accept": "application/json"},
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=bounds,
            )
        except (aiohttp.ClientError, OSError, ValueError, ConfigException) as error:
            raise KubernetesError(f"is not reached: {_worded(error)}") from error
        return response

    async def _refuse(self, response: aiohttp.ClientResponse, verb: str) -> NoReturn:
        message = await _message(response)
        match response.status:
            case status if status == _GONE:
                raise WatchEndedError(message)
            case status if status == _FORBIDDEN:
                rule = "{apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}"
                may_not = f"does not let this account {verb} EndpointSlices in namespace {self.namespace}"
                raise KubernetesError(f"{may_not}: bind a Role with the rule {rule} ({message})")
            case status if status == _UNAUTHORIZED:
                raise KubernetesError("refuses the credentials (401): another cluster's, or expired")
            case status if status == _NOT_FOUND:
                raise KubernetesError("has no discovery.k8s.io/v1 (404): Kubernetes 1.21 or newer is needed")
            case status:
                raise KubernetesError(f"answers {status} ({message})", _retry_after_s(response))


async def _changes(response: aiohttp.ClientResponse) -> AsyncGenerator[Change, None]:
    try:
        async for line in response.content:
            if not line.endswith(b"\n"):
                raise WatchEndedError("it broke off in a line")
            if line.strip():
                yield _change(line)
    except (aiohttp.ClientError, OSError) as error:
        raise WatchEndedError(_worded(error)) from error
    except (ValueError, HttpProcessingError) as error:  # the latter for a line beyond the buffer of 4 MiB
        raise WatchEndedError("it sent what is no event") from error


def _change(line: bytes) -> Change:
    """Raises ValueError (msgspec's is one) for what is none."""
    event = msgspec.json.decode(line, type=_Event)
    match event.type:
        case "ADDED" | "MODIFIED":
            return Changed(msgspec.json.decode(event.object, type=EndpointSlice))
        case "DELETED":
            gone = msgspec.json.decode(event.object, type=_Marked).metadata
            return Removed(gone.name, gone.resource_version)
        case "BOOKMARK":
            return Bookmark(msgspec.json.decode(event.object, type=_Marked).metadata.resource_version)
        case "ERROR":
            status = msgspec.json.decode(event.object, type=_Status)
            raise WatchEndedError(f"{status.code} {status.message[:_MESSAGE_CHARACTERS_MAX]}")
        case _:
            raise WatchEndedError("it sent an event of an unknown type")


async def _message(response: aiohttp.ClientResponse) -> str:
    """The API server's words, where there are any."""
    try:
        async with asyncio.timeout(ANSWER_S):
            status = msgspec.json.decode(await response.content.read(2**16), type=_Status)
    except (aiohttp.ClientError, OSError, ValueError):
        return "without a word"
    return status.message[:_MESSAGE_CHARACTERS_MAX] or "without a word"


def _retry_after_s(response: aiohttp.ClientResponse) -> float:
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isdecimal() else 0.0


def _worded(error: Exception) -> str:
    """In the same words each time: without addresses of objects, ports and times."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return f"its certificate is not valid: {error.certificate_error.args[-1]}"
        case TimeoutError():
            return "no answer in time"
        case OSError() if error.strerror:
            return error.strerror
        case ConfigException():
            return str(error)
        case _:
            return type(error).__name__
