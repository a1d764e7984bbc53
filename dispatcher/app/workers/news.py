"""What each worker is to know of the others."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from dispatcher.app.workers.messages import Elsewhere, Ended, Failed, Hungry
from dispatcher.app.workers.process import WorkerProcess
from dispatcher.model import NodeId


@dataclass(slots=True, eq=False)
class Worker:
    """A worker that lives, as its parent knows it. Times are monotonic seconds."""

    number: int
    node: NodeId
    process: WorkerProcess
    heard_at: float
    last: Ended | Failed | None = None
    """Its last message, once that has come."""
    suspects_at: Sequence[str] = ()
    hungry: bool = False
    others_hungry: int = 0
    """What it was told last."""
    series_told: asyncio.Event = field(default_factory=asyncio.Event)


def tell_suspects(workers: Collection[Worker]) -> None:
    """Tell each where the others have requests that may end servers."""
    for worker in workers:
        others = [each.suspects_at for each in workers if each is not worker]
        servers = sorted({server for suspects_at in others for server in suspects_at})
        worker.process.channel.tell(Elsewhere(servers))


def tell_hunger(workers: Collection[Worker]) -> None:
    """Tell each how many of the others have nothing left to send, where that has changed."""
    for worker in workers:
        others = sum(each.hungry for each in workers if each is not worker)
        if others != worker.others_hungry:
            worker.others_hungry = others
            worker.process.channel.tell(Hungry(others))
