"""A bare aiohttp client, the least that the rows can cost: `python pump.py INPUT CONCURRENCY URL...`."""

import asyncio
import json
import sys
from pathlib import Path

import aiohttp
import uvloop

ROUTE = "/v1/chat/completions"


def main() -> None:
    """Read all rows, then send them."""
    path, concurrency, *urls = sys.argv[1:]
    with Path(path).open("rb") as lines:
        bodies = [json.dumps(json.loads(line)["body"]).encode() for line in lines]
    uvloop.run(pump(bodies, int(concurrency), urls))


async def pump(bodies: list[bytes], concurrency: int, urls: list[str]) -> None:
    """Post, read, check the status; nothing is judged, recorded or sent twice."""
    waiting = iter(bodies)
    headers = {"Content-Type": "application/json"}

    async def worker(session: aiohttp.ClientSession, url: str) -> None:
        for body in waiting:
            async with session.post(url, data=body, headers=headers) as response:
                await response.read()
                response.raise_for_status()

    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        targets = [urls[number % len(urls)] + ROUTE for number in range(concurrency)]
        await asyncio.gather(*(worker(session, target) for target in targets))


if __name__ == "__main__":
    main()
