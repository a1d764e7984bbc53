"""Load on a live endpoint: `python live_load.py URL --requests N (--concurrency N | --rate N)`.

Prints JSON: requests a second, and of each request when its time began and how long it took, in seconds. With
a rate, its time runs from when it was due, so that a server which falls behind cannot hide it.
"""

import argparse
import asyncio
import json
import sys
import time

import aiohttp
import uvloop
from instant_servers import MODEL

ROUTE = "/v1/chat/completions"
BODY = json.dumps(
    {
        "model": MODEL,
        "max_tokens": 32,
        "messages": [{"role": "user", "content": "Is this review positive or negative? " * 10}],
    }
).encode()
HEADERS = {"Content-Type": "application/json"}
WARM_UP = 200


def main() -> None:
    """Warm up, then measure."""
    uvloop.run(_measure(_options()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--requests", type=int, default=10_000)
    load = parser.add_mutually_exclusive_group(required=True)
    load.add_argument("--concurrency", type=int, help="as fast as it goes, so many at a time")
    load.add_argument("--rate", type=float, help="requests a second, evenly")
    return parser.parse_args()


async def _measure(options: argparse.Namespace) -> None:
    timeout = aiohttp.ClientTimeout(total=60)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        target = options.url + ROUTE
        await _saturate(session, target, WARM_UP, 8)
        began = time.perf_counter()
        if options.rate is None:
            times = await _saturate(session, target, options.requests, options.concurrency)
        else:
            times = await _pace(session, target, options.requests, options.rate)
        seconds = time.perf_counter() - began
    sys.stdout.write(json.dumps({"requests_per_s": len(times) / seconds, "times": times}) + "\n")


Times = list[tuple[float, float]]


async def _saturate(session: aiohttp.ClientSession, url: str, requests: int, concurrency: int) -> Times:
    times: Times = []
    left = iter(range(requests))

    async def worker() -> None:
        times.extend([await _post(session, url, time.perf_counter()) for _ in left])

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return times


async def _pace(session: aiohttp.ClientSession, url: str, requests: int, rate: float) -> Times:
    tasks = []
    began = time.perf_counter()
    for number in range(requests):
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(_post(session, url, due)))
    return list(await asyncio.gather(*tasks))


async def _post(session: aiohttp.ClientSession, url: str, since: float) -> tuple[float, float]:
    async with session.post(url, data=BODY, headers=HEADERS) as response:
        await response.read()
        response.raise_for_status()
    return since, time.perf_counter() - since


if __name__ == "__main__":
    main()
