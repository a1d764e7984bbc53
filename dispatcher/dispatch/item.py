"""A request on its way through this node, with what its attempts have cost so far."""

from dispatcher.model import Lease, Request, ServerId


class Item:
    """One request in hand. Mutable, and owned by the desk."""

    __slots__ = ("charged", "lease", "order", "request", "resends", "sends", "stales", "tried")

    def __init__(self, request: Request, lease: Lease, order: int) -> None:
        self.request = request
        self.lease = lease
        self.order = order
        """Its place in this node's order of work: by lease, then by index."""
        self.sends = 0
        """Attempts made, whoever was at fault; a send into a connection that was already closed is none."""
        self.stales = 0
        """Sends that met a connection which the server had closed meanwhile."""
        self.charged = 0
        """Attempts that count against the job's max_attempts."""
        self.resends = 0
        """Free resends after a server's fault or mismatch; bounded by dispatch.free_resends_max."""
        self.tried: tuple[ServerId, ...] = ()
        """Servers that answered it doubtfully: it goes elsewhere while there is an elsewhere."""

    def __lt__(self, other: "Item") -> bool:
        return self.order < other.order
