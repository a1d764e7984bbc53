"""A service in this process that has keys and registration tokens, and what asks it."""

import asyncio
import hashlib
from contextlib import asynccontextmanager

import aiohttp

import dispatcher.app.service as composition
from dispatcher.config import load_config

ADMIN, USER, OTHER, METERED, TOKEN, TOKEN_2 = (
    f"{name}-secret-0123456789" for name in ("admin", "user", "other", "metered", "token", "token2")
)
SERVER_KEY = "server-secret-0123456789"
SECRETS = (ADMIN, USER, OTHER, METERED, TOKEN, TOKEN_2, SERVER_KEY)
QUICK = {"probe_interval_s": 0.2, "readmit_backoff_min_s": 0.2, "readmit_backoff_max_s": 0.4}


def hashed(secret):
    return f"sha256:{hashlib.sha256(secret.encode()).hexdigest()}"


def keys():
    return [
        {"name": "ann", "hash": hashed(ADMIN), "role": "admin"},
        {"name": "bob", "hash": hashed(USER)},
        {"name": "cid", "hash": hashed(OTHER), "limits": {"open_jobs": 1}},
        {"name": "dot", "hash": hashed(METERED), "limits": {"live_per_minute": 2}},
    ]


def registration(**settings):
    tokens = [{"name": "nodes", "hash": hashed(TOKEN)}, {"name": "more", "hash": hashed(TOKEN_2)}]
    return {"tokens": tokens, "networks": ["127.0.0.0/8"], "ttl_s": 3, **settings}


class Asking:
    """Asks a service: `await asking.get("/servers", key=USER)` gives status, JSON or text, and headers."""

    def __init__(self, service, application, session):
        self.service, self.application, self.session = service, application, session
        host, port = service.address
        self.url = f"http://{host}:{port}"

    async def ask(self, method, path, *, key=None, headers=None, **options):
        auth = {"Authorization": f"Bearer {key}"} if key else {}
        sent = {**auth, **(headers or {})}
        async with self.session.request(method, self.url + path, headers=sent, **options) as answer:
            is_json = answer.content_type == "application/json"
            return answer.status, await answer.json() if is_json else await answer.text(), answer.headers

    async def get(self, path, **options):
        return await self.ask("GET", path, **options)

    async def post(self, path, body=None, **options):
        return await self.ask("POST", path, json=body, **options)

    async def servers(self):
        _, answer, _ = await self.get("/servers", key=USER)
        return {each["url"]: each for each in answer["data"]}

    async def until(self, condition, timeout_s=15):
        """Wait until the servers are so."""
        async with asyncio.timeout(timeout_s):
            while not condition(servers := await self.servers()):  # noqa: ASYNC110  # told by nobody
                await asyncio.sleep(0.05)
            return servers


@asynccontextmanager
async def keyed(directory, *, servers=(), registration=None, api_key=None, **api):
    """A service that runs, in a storage directory. `api` may replace its keys."""
    settings = {
        "servers": list(servers),
        "pool": QUICK,
        "storage": {"url": str(directory)},
        "api": {"port": 0, "keys": keys(), **api},
        "discovery": {"registration": registration},
        "api_key": api_key,
    }
    made = []

    def remember(context, make=composition.make_application):
        made.append(make(context))
        return made[-1]

    original, composition.make_application = composition.make_application, remember
    service = composition.Service(load_config(None, settings, {}))
    serving = asyncio.create_task(service.run())
    try:
        async with asyncio.timeout(15):
            while service.address is None and not serving.done():  # noqa: ASYNC110  # as above
                await asyncio.sleep(0.02)
        if serving.done():
            serving.result()
        composition.make_application = original
        async with aiohttp.ClientSession() as session:
            yield Asking(service, made[0], session)
    finally:
        composition.make_application = original
        service.request_stop()
        service.request_stop()
        async with asyncio.timeout(20):
            await asyncio.wait([serving])
