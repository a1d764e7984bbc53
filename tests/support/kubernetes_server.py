"""An API server of Kubernetes, as far as EndpointSlices go: list and watch as they are on the wire.

https://kubernetes.io/docs/reference/using-api/api-concepts/ : pages and their 410, watches from a version,
DELETED for what leaves the selector, bookmarks, a watch's own time-out, 410 for a version that is too old.
"""

import asyncio
import json
import ssl
from dataclasses import dataclass, field

import yaml
from aiohttp import web

PATH = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
TOKEN = "secret-token"  # noqa: S105  # of nothing


REASONS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 410: "Expired", 503: "ServiceUnavailable"}
_GROUP = {"groupVersion": "discovery.k8s.io/v1", "version": "v1"}
KINDS = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [{"name": "discovery.k8s.io", "versions": [_GROUP], "preferredVersion": _GROUP}],
    },
    "/apis/discovery.k8s.io/v1": {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": "discovery.k8s.io/v1",
        "resources": [
            {
                "name": "endpointslices",
                "singularName": "endpointslice",
                "namespaced": True,
                "kind": "EndpointSlice",
                "verbs": ["list", "watch"],
            }
        ],
    },
}
"""What kubectl asks before it asks for anything."""


@dataclass
class Watch:
    """One open watch, and the connection that it is on."""

    request: web.Request
    queue: asyncio.Queue = field(default_factory=asyncio.Queue)


class KubernetesServer:
    """Use as an async context manager.

    One that has stopped starts again at the same port, and knows what it knew.

    Slices are put with `put` and `remove`, as `endpoint_slices.written_slice` makes them.
    """

    def __init__(self, namespace="gpu", context: ssl.SSLContext | None = None):
        self.namespace = namespace
        self.port = 0
        self.tokens = {TOKEN}
        self.forbidden = set()
        """Verbs that RBAC does not grant."""
        self.page_slices = 100
        self.pages_lost = 0
        """So many pages beyond the first are too old to be had, as after a compaction."""
        self.bookmark_s = 0.05
        self.watch_s_max = 60.0
        self.delay_s = 0.0
        """Before each piece of an event, of which there are many."""
        self.failing = None
        """A status that everything is answered with."""
        self.headers = {}
        self.silent = False
        """Watches say nothing, and do not end."""
        self.gone_as_event = True
        self.requests = []
        self.watches = []
        self._context = context
        self._version = 1
        self._oldest = 0
        self._objects = {}
        self._listed = {}
        self._history = []

    async def __aenter__(self):
        application = web.Application()
        application.router.add_get(PATH, self._slices)
        application.router.add_get("/api/v1/namespaces/{namespace}", self._one_namespace)
        for path in KINDS:
            application.router.add_get(path, _kinds)
        # Not 0: that is for ever, to aiohttp.
        self._runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._context)
        await self._site.start()
        self.port = self._runner.addresses[0][1]
        self.url = f"{'https' if self._context else 'http'}://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_):
        if self._runner.server is not None:  # a second call has nothing to stop
            await self._site.stop()  # first: what comes in while a server closes is never closed
        self.drop()
        await self._runner.cleanup()

    @property
    def lists(self):
        return [query for query in self.requests if "watch" not in query]

    @property
    def versions(self):
        """Where each watch began."""
        return [query["resourceVersion"] for query in self.requests if "watch" in query]

    def put(self, *slices):
        for each in slices:
            name = each["metadata"]["name"]
            old, self._version = self._objects.get(name), self._version + 1
            metadata = each["metadata"] | {"resourceVersion": str(self._version)}
            self._objects[name] = each | {"metadata": metadata}
            self._tell(old, self._objects[name])

    def remove(self, name):
        old, self._version = self._objects.pop(name), self._version + 1
        self._tell(old, None)

    def forget(self):
        """Compaction: no watch can begin at an earlier version any more, and no page goes on."""
        self._version += 1
        self._oldest = self._version
        self._history.clear()
        self._listed.clear()

    def drop(self):
        """Break every watch off, as a restart does."""
        for watch in self.watches:
            if watch.request.transport is not None:
                watch.request.transport.abort()

    def send(self, data: bytes):
        """These bytes on every watch, in place of an event; without any the watch ends."""
        for watch in self.watches:
            watch.queue.put_nowait(data)

    def _tell(self, old, new):
        self._history.append((self._version, old, new))
        for watch in self.watches:
            watch.queue.put_nowait((self._version, old, new))

    async def _slices(self, request):
        query = dict(request.query)
        self.requests.append(query)
        verb = "watch" if query.get("watch") == "true" else "list"
        refusal = self._refusal(request, verb)
        if refusal is not None:
            return refusal
        if verb == "list":
            return self._list(request.match_info["namespace"], query)
        return await self._watch(request, query)

    def _refusal(self, request, verb):
        if self.failing is not None:
            return _status(self.failing, "the server is currently unable to handle the request", self.headers)
        if request.headers.get("Authorization") not in {f"Bearer {token}" for token in self.tokens}:
            return _status(401, "Unauthorized")
        if verb in self.forbidden:
            user = 'User "system:serviceaccount:gpu:dispatcher"'
            what = f'cannot {verb} resource "endpointslices" in API group "discovery.k8s.io"'
            return _status(403, f"endpointslices.discovery.k8s.io is forbidden: {user} {what}")
        return None

    def _list(self, namespace, query):
        known = self._objects.values() if namespace == self.namespace else ()
        found = [each for each in known if _matches(query.get("labelSelector"), each)]
        version, start = self._version, 0
        if "continue" in query:
            version, start = map(int, query["continue"].split("-"))
            if self.pages_lost or version < self._oldest:
                self.pages_lost = max(0, self.pages_lost - 1)
                return _status(410, "The provided continue parameter is too old")
            found = self._listed[version]  # whatever has come or gone since the first page
        self._listed[version] = found
        most = min(int(query.get("limit", 500)), self.page_slices)
        metadata = {"resourceVersion": str(version)}
        if len(found) > start + most:
            metadata["continue"] = f"{version}-{start + most}"
        kind = {"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1"}
        return web.json_response(kind | {"metadata": metadata, "items": found[start : start + most] or None})

    async def _watch(self, request, query):
        version = int(query["resourceVersion"])
        too_old = f"too old resource version: {version} ({self._version})"
        if version < self._oldest and not self.gone_as_event:
            return _status(410, too_old)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        if version < self._oldest:
            await self._write(response, "ERROR", json.loads(_status(410, too_old).text))
            return response
        watch = Watch(request)
        for entry in self._history:
            if entry[0] > version:
                watch.queue.put_nowait(entry)
        self.watches.append(watch)
        try:
            await self._stream(watch, response, query)
        finally:
            self.watches.remove(watch)
        return response

    async def _stream(self, watch, response, query):
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + min(float(query.get("timeoutSeconds", 1800)), self.watch_s_max)
        while self.silent or loop.time() < ends_at:
            try:
                async with asyncio.timeout(min(self.bookmark_s, max(0.01, ends_at - loop.time()))):
                    entry = await watch.queue.get()
            except TimeoutError:
                entry = None
            if self.silent:
                continue
            if entry == b"":
                return
            if isinstance(entry, bytes):
                await response.write(entry)
            elif entry is not None:
                await self._event(response, query.get("labelSelector"), *entry)
            elif query.get("allowWatchBookmarks") == "true" and watch.queue.empty():  # all before was told
                metadata = {"resourceVersion": str(self._version)}
                await self._write(response, "BOOKMARK", {"kind": "EndpointSlice", "metadata": metadata})

    async def _event(self, response, selector, version, old, new):
        was, stays = _matches(selector, old), _matches(selector, new)
        if stays:
            await self._write(response, "MODIFIED" if was else "ADDED", new)
        elif was:
            metadata = old["metadata"] | {"resourceVersion": str(version)}
            await self._write(response, "DELETED", old | {"metadata": metadata})

    async def _write(self, response, kind, content):
        line = json.dumps({"type": kind, "object": content}).encode() + b"\n"
        if not self.delay_s:
            await response.write(line)
            return
        for start in range(0, len(line), 64):
            await response.write(line[start : start + 64])
            await asyncio.sleep(self.delay_s)

    async def _one_namespace(self, request):
        name = request.match_info["namespace"]
        if "get" in self.forbidden:
            return _status(403, f'namespaces "{name}" is forbidden')
        if name != self.namespace:
            return _status(404, f'namespaces "{name}" not found')
        return web.json_response({"kind": "Namespace", "metadata": {"name": name}})


def kubeconfig(directory, server, token=TOKEN, namespace="gpu"):
    """A kubeconfig with one context."""
    path = directory / "kubeconfig"
    context = {"cluster": "c", "user": "u"} | ({"namespace": namespace} if namespace else {})
    content = {
        "current-context": "x",
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": context}],
    }
    path.write_text(yaml.safe_dump(content))
    return path


async def _kinds(request):
    return web.json_response(KINDS[request.path])


def _status(code, message, headers=None):
    told = {"status": "Failure", "message": message, "reason": REASONS.get(code, ""), "code": code}
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}} | told
    return web.json_response(body, status=code, headers=headers)


def _matches(selector, slice_):
    """Of equality-based requirements, all."""
    if slice_ is None:
        return False
    labels = slice_["metadata"].get("labels") or {}
    parts = (requirement.split("=") for requirement in selector.split(","))
    return all(labels.get(key) == value for key, value in parts)
