"""Random changes and random failures of the API server: what is known comes, each time, to what is so."""

import asyncio
from random import Random

import pytest
from endpoint_slices import endpoint, written_slice
from kubernetes_server import KubernetesServer, kubeconfig

from dispatcher.app.clock import SystemClock
from dispatcher.config import KubernetesEntry
from dispatcher.discovery.kubernetes import EndpointSlices
from dispatcher.discovery.kubernetes_api import KubernetesApi

STEPS = 150
WITHIN_S = 30.0
NAMES = ("a", "b", "c", "d")
PORT = 8000


class Storm:
    """An API server in bad weather, and what is so in it."""

    def __init__(self, api, seed):
        self.api = api
        self.slices = {}
        self._random = Random(seed)
        self._pods = 0

    def step(self):
        """Do anything; the API server stays as it is then until it is called again."""
        weather = (self._fail, self._forbid, self._drop, self._forget, self._lose_pages)
        change = (self._put, self._put, self._put, self._terminate, self._relabel, self._remove)
        self._random.choice([*change, *change, *weather])()

    def clear_up(self):
        self.api.failing = None
        self.api.forbidden.clear()
        self.api.pages_lost = 0

    def so(self):
        """The addresses that are servers: each pod once, none that terminates."""
        own = [each for each in self.slices.values() if each["metadata"]["labels"]]
        endpoints = [each for slice_ in own for each in slice_["endpoints"] or ()]
        leaving = {_pod(each) for each in endpoints if each["conditions"].get("terminating")}
        return sorted({each["addresses"][0] for each in endpoints if _pod(each) not in leaving})

    def _put(self):
        endpoints = [self._endpoint() for _ in range(self._random.randrange(4))]
        self._keep(written_slice(self._random.choice(NAMES), *endpoints))

    def _endpoint(self):
        """A new pod, or one that may be in another slice, too; at an address that may have been another's."""
        if not self._pods or self._random.random() < 0.6:
            self._pods += 1
        pod = self._random.randrange(max(1, self._pods - 4), self._pods + 1)
        return endpoint(f"10.0.0.{pod % 9}", f"uid-{pod}", ready=self._random.random() < 0.5)

    def _terminate(self):
        if self.slices:
            found = self._random.choice([*self.slices.values()])
            endpoints = [
                each | {"conditions": {"serving": True, "terminating": True}}
                for each in found["endpoints"] or ()
            ]
            self._keep(found | {"endpoints": endpoints or None})

    def _relabel(self):
        if self.slices:
            found = self._random.choice([*self.slices.values()])
            service = None if found["metadata"]["labels"] else "vllm"
            labels = written_slice("x", service=service)["metadata"]["labels"]
            self._keep(found | {"metadata": found["metadata"] | {"labels": labels}})

    def _remove(self):
        if self.slices:
            name = self._random.choice([*self.slices])
            del self.slices[name]
            self.api.remove(name)

    def _keep(self, slice_):
        self.slices[slice_["metadata"]["name"]] = slice_
        self.api.put(slice_)

    def _fail(self):
        self.api.failing = self._random.choice((None, None, 410, 429, 500, 503))

    def _forbid(self):
        self.api.forbidden ^= {self._random.choice(("list", "watch"))}

    def _drop(self):
        self.api.drop()

    def _forget(self):
        self.api.forget()

    def _lose_pages(self):
        self.api.pages_lost = self._random.randrange(3)


def _pod(written):
    return written["targetRef"]["uid"]


@pytest.mark.parametrize("seed", range(4))
async def test_after_any_weather_the_servers_are_those_that_there_are(seed, tmp_path):
    pace = Random(seed)
    async with KubernetesServer() as api:
        api.page_slices, api.watch_s_max, api.bookmark_s = 2, 0.2, 0.02
        storm, seen = Storm(api, seed), []

        async def follow():
            async for servers in source(tmp_path, api).watch(SystemClock(), interval_s=0.01):
                seen.append(sorted(server.id.removeprefix("http://") for server in servers))  # noqa: PERF401

        following = asyncio.create_task(follow())
        try:
            for _ in range(STEPS):
                storm.step()
                if pace.random() < 0.4:
                    await asyncio.sleep(pace.uniform(0, 0.03))
                if pace.random() < 0.1:
                    storm.clear_up()
                    await _comes_to(seen, storm.so(), following)
            storm.clear_up()
            await _comes_to(seen, storm.so(), following)
        finally:
            following.cancel()
            await asyncio.wait([following])
    assert len(seen) > STEPS / 20


def source(directory, api):
    entry = KubernetesEntry(service="vllm", kubeconfig=kubeconfig(directory, api))
    return EndpointSlices(entry, KubernetesApi(entry, {}), None, Random(0))


async def _comes_to(seen, addresses, following):
    expected = [f"{address}:{PORT}" for address in addresses]
    async with asyncio.timeout(WITHIN_S):
        while (seen[-1] if seen else []) != expected:
            assert not following.done(), following.result()
            await asyncio.sleep(0.005)
