"""What the routes work on: made once by the composition root, and found in the application."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry

from dispatcher.api.admission import Admission
from dispatcher.api.members import Members
from dispatcher.api.relay import Relay
from dispatcher.config import Config
from dispatcher.dispatch.node import Node
from dispatcher.jobs.company import Company
from dispatcher.jobs.files import Files
from dispatcher.jobs.jobs import Jobs
from dispatcher.pool.pool import Pool
from dispatcher.ports import Clock


@dataclass(frozen=True, slots=True)
class Context:
    """The service, as the routes see it."""

    config: Config
    clock: Clock
    pool: Pool
    node: Node
    members: Members
    files: Files
    jobs: Jobs
    registry: CollectorRegistry
    obstacles: Callable[[], list[str]]
    """Why the service cannot do its work just now: no queue, no storage, draining. Empty where it can."""
    relay: Relay
    company: Company
    admission: Admission = field(default_factory=Admission)


CONTEXT: Final = web.AppKey("context", Context)


def context_of(request: web.Request) -> Context:
    """The service that this request is made to."""
    return request.app[CONTEXT]
