"""What a node acts on and through, as one parcel."""

from dataclasses import dataclass

from dispatcher.ports import Clock, Payloads, Queue, Recorder, Tracer, Transport, Wording
from dispatcher.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class World:
    """The ports of one node."""

    queue: Queue
    payloads: Payloads
    recorder: Recorder
    transport: Transport
    clock: Clock
    metrics: Metrics
    wording: Wording | None = None
    tracer: Tracer | None = None
    log_prompts: bool = False
    """Whether the log may hold what requests and servers say."""
