"""Tells when rows wait for servers: in the log, in the metrics, and to whoever gives up at some time."""

import structlog

from dispatcher.dispatch.desk import Desk
from dispatcher.dispatch.waiting import Waiting
from dispatcher.pool.monitor import Monitor
from dispatcher.telemetry.metrics import Metrics


class Lookout:
    """Looks whether what waits can be served, each time it is asked to."""

    def __init__(self, desk: Desk, monitor: Monitor, waiting: Waiting, metrics: Metrics) -> None:
        self._desk = desk
        self._monitor = monitor
        self._waiting = waiting
        self._metrics = metrics
        self._log = structlog.get_logger("dispatcher.node")

    def look(self, now: float) -> None:
        """Raises ServersUnavailableError where rows have waited for too long."""
        desk = self._desk
        unserved = desk.unserved()
        stuck = bool(unserved) and desk.in_flight == 0 and not desk.servable(unserved)
        self._metrics.waiting_for_servers(waiting=bool(unserved))
        wait = self._waiting.look(unserved, stuck=stuck, now=now)
        if wait is not None:
            self._log.warning(
                "waiting_for_servers",
                models=[model or "any" for model in wait.models],
                requests=len(desk.backlog),
                seconds=round(wait.seconds, 1),
                servers=self._monitor.states(),
            )
