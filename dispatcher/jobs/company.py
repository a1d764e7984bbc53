"""The nodes that share the queue, as this one sees them: itself now, the others as they told last."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum, auto

import structlog

from dispatcher.errors import QueueError, StorageError
from dispatcher.jobs.elsewhere import Elsewhere
from dispatcher.model import NodeId
from dispatcher.ports import Clock
from dispatcher.queue.custody import Custodies
from dispatcher.queue.nodes import NodeFigures, NodeIdentity, NodeRecord, Nodes
from dispatcher.telemetry.metrics import Metrics

LOOK_S = 1.0
SILENT_S = 10.0
"""Without a heartbeat, of which there is one in two seconds."""
FORGET_S = 900.0
"""How long a node that went without a word stays on the list: long enough to be asked about."""


class Presence(StrEnum):
    """What the others think of a node."""

    ACTIVE = auto()
    DRAINING = auto()  # it takes nothing more
    SILENT = auto()  # it was not heard of lately: dead, frozen or cut off


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node now."""

    identity: NodeIdentity
    presence: Presence
    started_at: float
    """Seconds since the epoch."""
    silent_s: float
    """Since its last heartbeat."""
    figures: NodeFigures
    """A silent one's are its last."""
    driven: int
    """Jobs that it takes through their life."""


@dataclass(frozen=True, slots=True)
class Oneself:
    """This node."""

    identity: NodeIdentity
    figures: Callable[[], NodeFigures]
    driven: Callable[[], int]
    share_out: Callable[[int], None]
    """Called where so many others have nothing to send: they are to have what is not begun here."""


class Company:
    """What is known of all nodes. On a queue that nobody shares there is this one, and `run` is not called.

    Args:
        silent_s: After so long without a heartbeat another node counts as silent.
        elsewhere: Told what the others that live have in hand, at each look.
    """

    def __init__(
        self,
        oneself: Oneself,
        elsewhere: Elsewhere,
        metrics: Metrics,
        clock: Clock,
        silent_s: float = SILENT_S,
    ) -> None:
        self._oneself = oneself
        self._elsewhere = elsewhere
        self._metrics = metrics
        self._clock = clock
        self._silent_s = silent_s
        self._started_at = clock.wall()
        self._others: Sequence[NodeRecord] = ()
        self._driven: Mapping[NodeId, int] = {}
        self._seen_at = clock.now()
        self._shared_at = float("-inf")
        self._count()

    def nodes(self) -> list[NodeView]:
        """All nodes, by host and age."""
        me = self._oneself
        figures = me.figures()
        ours = NodeView(
            me.identity, Presence(figures.state.value), self._started_at, 0.0, figures, me.driven()
        )
        others = [self._view(record) for record in self._others]
        return sorted(
            (ours, *others), key=lambda node: (node.identity.host, node.started_at, node.identity.id)
        )

    def saw(self, records: Sequence[NodeRecord], driven: Mapping[NodeId, int]) -> None:
        """These are the nodes now, and so many jobs each of them drives."""
        me = self._oneself.identity.id
        self._seen_at, self._driven = self._clock.now(), driven
        self._others = [record for record in records if record.identity.id != me]
        for record in records:
            if record.identity.id == me:
                self._started_at = record.started_at
        self._share_out()
        self._tell()

    async def run(self, nodes: Nodes, custodies: Custodies) -> None:
        """Look again and again, until cancelled. While the queue is away the others fall silent."""
        forgot_at = -FORGET_S
        while True:
            try:
                self.saw(await nodes.list(), Counter((await custodies.holders()).values()))
                if self._clock.now() - forgot_at >= FORGET_S / 10:
                    forgot_at = self._clock.now()
                    await nodes.forget(FORGET_S)
            except (QueueError, StorageError):  # the queue itself has said so
                self._tell()
            except Exception as error:  # noqa: BLE001  # a task's boundary: what is shown must not end the service
                structlog.get_logger("dispatcher.service").error("nodes_not_seen", exc_info=error)
            await self._clock.sleep(LOOK_S)

    def _share_out(self) -> None:
        """Once for each word of theirs: what was given after it they may have by now."""
        now = self._clock.now()
        hungry = sum(
            record.figures.hungry and now - record.silent_s > self._shared_at
            for record in self._others
            if self._presence(record) is Presence.ACTIVE
        )
        if hungry:
            self._shared_at = now
            self._oneself.share_out(hungry)

    def _tell(self) -> None:
        self._elsewhere.told(
            record.figures for record in self._others if self._presence(record) is not Presence.SILENT
        )
        self._count()

    def _count(self) -> None:
        counts = Counter({presence.value: 0 for presence in Presence})
        counts.update(self._presence(record).value for record in self._others)
        counts[self._oneself.figures().state.value] += 1
        self._metrics.nodes_counted(counts)

    def _view(self, record: NodeRecord) -> NodeView:
        return NodeView(
            record.identity,
            self._presence(record),
            record.started_at,
            self._silence_s(record),
            record.figures,
            self._driven.get(record.identity.id, 0),
        )

    def _presence(self, record: NodeRecord) -> Presence:
        silent = self._silence_s(record) >= self._silent_s
        return Presence.SILENT if silent else Presence(record.figures.state.value)

    def _silence_s(self, record: NodeRecord) -> float:
        return record.silent_s + self._clock.now() - self._seen_at
