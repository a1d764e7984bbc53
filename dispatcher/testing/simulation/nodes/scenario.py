"""What a simulation of several nodes consists of. Records only; times are virtual seconds from the start."""

from dataclasses import dataclass
from enum import StrEnum, auto

from dispatcher.testing.simulation.scenario import Scenario


class Trouble(StrEnum):
    """What can happen to a node."""

    KILLED = auto()  # kill -9; another one starts on its machine, with its disk
    LOST = auto()  # the same, and its disk with it
    DRAINED = auto()  # SIGTERM; another one starts on its machine
    FROZEN = auto()  # SIGSTOP, and SIGCONT
    NO_QUEUE = auto()  # the queue cannot be reached
    QUEUE_DEAF = auto()  # the queue does what it is asked, and its answers are lost
    NO_STORE = auto()
    STORE_DEAF = auto()
    NO_SERVERS = auto()  # half of the servers cannot be reached from there


class Moment(StrEnum):
    """What a node does when a trouble that waits for it strikes."""

    ANY = auto()
    LEASED = auto()  # its leases are made, and it has not heard so
    SETTLING = auto()  # it is about to settle a shard
    SETTLED = auto()  # a shard is settled, and it has not heard so
    PUTTING = auto()  # it is about to put a journal into the store
    PUT = auto()  # a journal is in the store, and it has not heard so


ENDS = (Trouble.KILLED, Trouble.LOST, Trouble.DRAINED)
"""After these another node goes on in its place, under another name."""


@dataclass(frozen=True, slots=True)
class NodeTrouble:
    """Something that happens to one node, at the first such moment from `at` on."""

    kind: Trouble
    node: int
    at: float
    seconds: float
    """How long it lasts, or until the next node starts in its place."""
    moment: Moment = Moment.ANY


@dataclass(frozen=True, slots=True)
class NodesScenario:
    """One simulation of several nodes, whole. The same one always takes the same course."""

    base: Scenario
    """Servers and what happens to them, the job, and the settings of all nodes."""
    starts: tuple[float, ...]
    """When each node starts."""
    clocks_ahead: tuple[float, ...]
    """How far each machine's clocks are ahead of the queue's, in seconds."""
    troubles: tuple[NodeTrouble, ...] = ()
    shared_disk: bool = False
    """Whether all nodes write their journals into one directory of one machine, as the workers of a run do.

    Then leases never expire: whoever starts the nodes gives back what a dead one had. Otherwise journals are
    checkpointed into a store.
    """
    checkpoint_s: float = 30.0
    rows_at_once: int | None = None
    """What a node takes from the queue at a time, so that a small job is shared out. None: all it can."""
