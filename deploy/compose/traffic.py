"""Demo traffic: one job after the other through the Batch API, and a live request a second beside them."""

import asyncio
import io
import json
import os
from itertools import count

from openai import APIError, AsyncOpenAI

ROWS = int(os.environ.get("TRAFFIC_ROWS", "2000"))
MODEL = "demo-model"
ENDPOINT = "/v1/chat/completions"
REVIEWS = ("What a find.", "It broke on the second day.", "It does what it says.", "Never again.")
ENDED = ("completed", "failed", "cancelled", "expired")


async def main() -> None:
    """Until the container is stopped; a service that is away is waited for."""
    async with AsyncOpenAI() as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(jobs(client))
        tasks.create_task(live(client))


async def jobs(client: AsyncOpenAI) -> None:
    """Keep one job running."""
    for number in count():
        try:
            print(f"job {number}: {await job(client, number)}", flush=True)  # noqa: T201  # its log
        except APIError as error:
            print(f"job {number}: {error}", flush=True)  # noqa: T201
        await asyncio.sleep(2)


async def job(client: AsyncOpenAI, number: int) -> str:
    """Submit one, and wait for its end."""
    rows = "".join(json.dumps(row(number, index)) + "\n" for index in range(ROWS))
    file = await client.files.create(file=("reviews.jsonl", io.BytesIO(rows.encode())), purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h", metadata={"number": str(number)}
    )
    while batch.status not in ENDED:
        await asyncio.sleep(1)
        batch = await client.batches.retrieve(batch.id)
    return f"{batch.status} {batch.request_counts}"


def row(number: int, index: int) -> dict[str, object]:
    """One request."""
    body = {"model": MODEL, "messages": [message(number, index)], "max_tokens": 48}
    return {"custom_id": f"row-{index}", "method": "POST", "url": ENDPOINT, "body": body}


def message(number: int, index: int) -> dict[str, str]:
    """What is asked."""
    review = REVIEWS[index % len(REVIEWS)]
    return {"role": "user", "content": f"Is review {number}-{index} positive? {review}"}


async def live(client: AsyncOpenAI) -> None:
    """Ask once a second, as a person would who waits for the answer."""
    for number in count():
        try:
            await client.chat.completions.create(model=MODEL, messages=[message(-1, number)], max_tokens=16)
        except APIError as error:
            print(f"live request {number}: {error}", flush=True)  # noqa: T201
        await asyncio.sleep(1)


asyncio.run(main())
