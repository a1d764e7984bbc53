"""A request on its way through this node, with what its attempts have cost so far."""

from collections.abc import Mapping
from types import MappingProxyType

from dispatcher.dispatch.blame import Suspicion
from dispatcher.model import NO_TOKENS, Judgement, Lease, Request, ServerId

NO_TRACE: Mapping[str, str] = MappingProxyType({})


class Item:
    """One request in hand. Mutable, and owned by the desk."""

    __slots__ = (
        "accused_at",
        "asked_again",
        "charged",
        "complaint",
        "died_at",
        "done",
        "hedged",
        "lease",
        "notes",
        "order",
        "poison",
        "ready_at",
        "request",
        "resends",
        "running",
        "sends",
        "so_far",
        "spent",
        "stales",
        "suspicion",
        "trace",
        "tried",
    )

    def __init__(self, request: Request, lease: Lease, order: int, ready_at: float = 0.0) -> None:
        self.request = request
        self.lease = lease
        self.order = order
        """Its place in this node's order of work: by lease, then by index."""
        self.ready_at = ready_at
        """Since when it waits for a permit, or waited for the one it has."""
        self.trace: Mapping[str, str] = NO_TRACE
        """What makes its later attempts children of the first in a tracer's eyes."""
        self.sends = 0
        """Attempts made, whoever was at fault; a send into a connection that was already closed is none."""
        self.running = 0
        """Attempts that have begun and are not judged yet; two where it was copied."""
        self.hedged = False
        """Whether it was copied: once is enough."""
        self.done = False
        """Whether it has its outcome: an attempt that ends later changes nothing."""
        self.stales = 0
        """Sends that met a connection which the server had closed meanwhile."""
        self.charged = 0
        """Attempts that count against the job's max_attempts."""
        self.resends = 0
        """Free resends after a server's fault or mismatch; bounded by dispatch.free_resends_max."""
        self.asked_again = 0
        """How often a server's answer was of no use, and the request was changed to be asked again."""
        self.complaint = ""
        """What was wrong with the last such answer."""
        self.notes: object = None
        """What the review keeps of it while it asks more than one question."""
        self.so_far: Judgement | None = None
        """The success that it has already, should the rest of those questions get no answer."""
        self.spent = NO_TOKENS
        """Tokens of answers that led to another question."""
        self.tried: tuple[ServerId, ...] = ()
        """Servers that answered it doubtfully: it goes elsewhere while there is an elsewhere."""
        self.suspicion: Suspicion | None = None
        """What speaks for its having killed a server."""
        self.accused_at: tuple[ServerId, ...] = ()
        """Servers where its attempts broke, while it is not known whether they are dead."""
        self.died_at: tuple[ServerId, ...] = ()
        """Servers that died while it ran there: another server's death says more, if it is poison."""
        self.poison = False
        """Whether it is convicted: its next fault is its last."""

    @property
    def suspect(self) -> bool:
        """Whether it may be what kills servers, and is to be kept from other suspects."""
        held_against = self.suspicion is not None and not self.suspicion.excused
        return held_against or bool(self.accused_at)

    @property
    def lone(self) -> bool:
        """Whether it is to be the only suspect at its server, whatever others may."""
        return self.suspicion is not None and self.suspicion.lone

    def avoids(self, server: ServerId) -> bool:
        """Whether it goes elsewhere while there is an elsewhere."""
        return server in self.tried or server in self.died_at

    def excuse(self, server: ServerId) -> None:
        """The fate of a server where its attempt broke is known."""
        self.accused_at = tuple(accused for accused in self.accused_at if accused != server)

    def refund(self, server: ServerId) -> None:
        """One charged attempt was the server's fault after all: it becomes a free resend."""
        tried = list(self.tried)
        tried.remove(server)
        self.tried = tuple(tried)
        self.charged -= 1
        self.resends += 1

    def __lt__(self, other: "Item") -> bool:
        return (-self.lease.job.priority, self.order) < (-other.lease.job.priority, other.order)
