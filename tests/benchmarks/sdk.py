"""The official SDK, one client for each server: `python sdk.py INPUT CONCURRENCY URL...`."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import openai
import uvloop


def main() -> None:
    """Read all rows, then send them."""
    path, concurrency, *urls = sys.argv[1:]
    with Path(path).open("rb") as lines:
        bodies = [json.loads(line)["body"] for line in lines]
    uvloop.run(create_all(bodies, int(concurrency), urls))


async def create_all(bodies: list[dict[str, Any]], concurrency: int, urls: list[str]) -> None:
    """`chat.completions.create` for each row."""
    waiting = iter(bodies)

    async def worker(client: openai.AsyncOpenAI) -> None:
        for body in waiting:
            await client.chat.completions.create(**body)

    clients = [openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) for url in urls]
    await asyncio.gather(*(worker(clients[number % len(urls)]) for number in range(concurrency)))
    await asyncio.gather(*(client.close() for client in clients))


if __name__ == "__main__":
    main()
