"""One sending of a request to a server."""

from dispatcher.dispatch.item import Item
from dispatcher.model import Break
from dispatcher.pool.server import Server
from dispatcher.ports import Span


class Attempt:
    """One sending of a request to a server, from the permit it took to its end."""

    __slots__ = (
        "begun",
        "given_up",
        "is_copy",
        "item",
        "judged",
        "lone",
        "request",
        "request_id",
        "sent_at",
        "server",
        "span",
        "suspect",
        "twin",
    )

    def __init__(self, item: Item, server: Server, sent_at: float) -> None:
        self.item = item
        self.request = item.request
        """What it sends: the item may have gone on to another question when its copy ends."""
        self.server = server
        self.sent_at = sent_at
        self.is_copy = False
        """Whether it was sent while another attempt of its request, the twin, was open."""
        self.twin: Attempt | None = None
        self.suspect = item.suspect
        """Whether the request was a suspect when it was sent."""
        self.lone = item.lone
        """Whether it was to run there without another suspect."""
        self.begun = False
        """Whether its task has run: it is created in one turn of the loop and runs in the next."""
        self.given_up: Break | None = None
        """How it is to end, if we closed it ourselves."""
        self.request_id = ""
        """What its server knows it by, once it has begun."""
        self.span: Span | None = None
        """What a tracer keeps of it, if there is one."""
        self.judged = False
        """Whether its server's death was held against the request while it was open: once is enough."""

    @property
    def unsent(self) -> bool:
        """Whether it was closed before anything was sent."""
        return self.given_up is not None and not self.begun

    @property
    def of_another_life(self) -> bool:
        """Whether its server has died, or come back, since it was sent."""
        return self.judged or self.sent_at < self.server.alive_since
