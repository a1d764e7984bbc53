"""What happens, in numbers: methods are named for events, and callers know no series and no label.

Labels are bounded: servers by the pool, which forgets those that are gone; models by `MODELS_MAX`; all others
by enumerations.
"""

import collections
import importlib.metadata
import platform
from collections.abc import Callable, Collection, Mapping
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge

from dispatcher.model import NO_TOKENS, AgainReason, ErrorCode, Outcome, QueueDepth, Tokens, Verdict
from dispatcher.telemetry.series import FleetFamilies, ServerFamilies

MODELS_MAX = 64
"""Models with a label of their own; tokens of any further model are counted as `other`."""
UNNAMED = "unknown"
"""Stands for the model of requests that name none."""
EVICTION_REASONS = ("died", "failed")
HEDGE_RESULTS = ("won", "lost", "failed")
SUCCESS = "success"


class Metrics:
    """All metrics of one dispatcher, in one registry. No method waits.

    `role` says what it is: a `service`, whose silence is always worth an alert, or a `run`, which ends.
    """

    def __init__(self, registry: CollectorRegistry, *, role: Literal["service", "run"] = "run") -> None:
        self._server_families = ServerFamilies(registry)
        self._fleet = FleetFamilies(registry)
        self._servers: dict[str, _ServerSeries] = {}
        self._models: dict[str, _ModelSeries] = {}
        # Counters begin at 0, not at their first event: to Prometheus, a series that begins at 1 never rose.
        self._outcomes: dict[str, Counter] = {
            result: self._fleet.outcomes.labels(result) for result in (SUCCESS, *map(str, ErrorCode))
        }
        for result in HEDGE_RESULTS:
            self._fleet.hedges.labels(result)
        version = importlib.metadata.version("dispatcher")
        self._fleet.build_info.labels(version, platform.python_version(), role).set(1)

    def server_state(self, server: str, state: str) -> None:
        """The server is in this state from now on, and in no other."""
        self._server(server).enter(state)

    def server_joined(self, server: str, in_flight: Callable[[], float], limit: Callable[[], float]) -> None:
        """A server was found. Its requests in flight and its permits are read at each scrape.

        So they cost a row nothing, and cannot drift.
        """
        series = self._server(server)
        series.in_flight.set_function(in_flight)
        series.limit.set_function(limit)

    def attempt_ended(self, server: str, verdict: Verdict, seconds: float) -> None:
        """An attempt was judged, so long after its sending."""
        self._server(server).attempt_ended(verdict, seconds)

    def server_evicted(self, server: str, reason: str) -> None:
        """The server was taken out of rotation. `reason` is one of a few fixed words."""
        self._server(server).evicted(reason)

    def server_readmitted(self, server: str) -> None:
        """The server earned its way back."""
        self._server(server).readmissions.inc()

    def probe_ended(self, server: str, seconds: float) -> None:
        """A probe of the server was answered, or given up."""
        self._server(server).probe_seconds.observe(seconds)

    def forget_server(self, server: str) -> None:
        """Remove every series of a server that is gone. Call it when its last attempt has ended."""
        self._servers.pop(server, None)
        self._server_families.forget(server)

    def outcomes_recorded(self, outcomes: Collection[Outcome]) -> None:
        """These requests have their final results. Told together: every increment takes a lock."""
        for code, count in collections.Counter(outcome.code for outcome in outcomes).items():
            self._outcomes[SUCCESS if code is None else code.value].inc(count)
            if code is ErrorCode.POISON:
                self._fleet.poison.inc(count)
        for model, (prompt, completion) in _tokens_by_model(outcomes).items():
            series = self._model(model)
            series.prompt.inc(prompt)
            series.completion.inc(completion)

    def tokens_counted(self, model: str | None, tokens: Tokens) -> None:
        """What a server counted for a live request."""
        if tokens != NO_TOKENS:
            series = self._model(UNNAMED if model is None else model)
            series.prompt.inc(tokens.prompt)
            series.completion.inc(tokens.completion)

    def hedge_ended(self, result: str) -> None:
        """A request's copy brought its outcome ("won"), or none ("failed"), or came too late ("lost")."""
        self._fleet.hedges.labels(result).inc()

    def asked_again(self, reason: AgainReason) -> None:
        """A request is sent again, changed, though its server had answered it."""
        self._fleet.asked_again.labels(reason.value).inc()

    def queue_depth(self, depth: QueueDepth) -> None:
        """What the queue holds now."""
        requests, shards = self._fleet.queue_requests, self._fleet.queue_shards
        requests.labels("ready").set(depth.requests_ready)
        requests.labels("leased").set(depth.requests_leased)
        requests.labels("settled").set(depth.requests_settled)
        shards.labels("ready").set(depth.shards_ready)
        shards.labels("leased").set(depth.shards_leased)
        shards.labels("settled").set(depth.shards_settled)

    def jobs_counted(self, by_status: Mapping[str, int], starving: int, late: int = 0) -> None:
        """So many jobs have each status, those with none included; so many starve, or will be late."""
        for status, count in by_status.items():
            self._fleet.jobs.labels(status).set(count)
        self._fleet.jobs_starving.set(starving)
        self._fleet.jobs_late.set(late)

    def nodes_counted(self, by_state: Mapping[str, int]) -> None:
        """So many nodes share the queue, by state, those with none included."""
        for state, count in by_state.items():
            self._fleet.nodes.labels(state).set(count)

    def leases_lost(self, count: int) -> None:
        """So many leases were taken over by another node."""
        self._fleet.leases_lost.inc(count)

    def journal_synced(self, seconds: float) -> None:
        """Outcomes were made durable, which took so long."""
        self._fleet.journal_sync_seconds.observe(seconds)

    def event_loop_lagged(self, seconds: float) -> None:
        """A timer of the event loop rang this late."""
        self._fleet.event_loop_lag_seconds.observe(seconds)

    def source_followed(self, source: str, faulty: Callable[[], bool]) -> None:
        """A source of servers is followed. Whether it is faulty is read at each scrape."""
        self._fleet.source_faulty.labels(source).set_function(faulty)

    def hindered(self, *, queue: bool, journal: bool) -> None:
        """Whether the queue cannot be used just now, and whether nothing can be recorded."""
        self._fleet.obstacle.labels("queue").set(queue)
        self._fleet.obstacle.labels("journal").set(journal)

    def waiting_for_servers(self, *, waiting: bool) -> None:
        """Whether there is work and no usable server."""
        self._fleet.waiting_for_servers.set(waiting)

    def _server(self, server: str) -> "_ServerSeries":
        series = self._servers.get(server)
        if series is None:
            series = self._servers[server] = _ServerSeries(server, self._server_families)
        return series

    def _model(self, model: str) -> "_ModelSeries":
        name = model if model in self._models or len(self._models) < MODELS_MAX else "other"
        series = self._models.get(name)
        if series is None:
            series = self._models[name] = _ModelSeries(name, self._fleet)
        return series


def _tokens_by_model(outcomes: Collection[Outcome]) -> dict[str, tuple[int, int]]:
    """Prompt and completion tokens; those of requests that named no model as `unknown`."""
    totals: dict[str, tuple[int, int]] = {}
    for outcome in outcomes:
        named = outcome.provenance.model if outcome.provenance else None
        model = UNNAMED if named is None else named
        prompt, completion = totals.get(model, (0, 0))
        totals[model] = prompt + outcome.tokens.prompt, completion + outcome.tokens.completion
    return totals


class _ServerSeries:
    """One server's children of the families: to look them up by label would double the cost of a row."""

    def __init__(self, server: str, families: ServerFamilies) -> None:
        self._server = server
        self._families = families
        self._states: dict[str, Gauge] = {}
        self._attempts: dict[Verdict, Counter] = {}
        self._attempt_seconds = families.attempt_seconds.labels(server)
        self._since = families.since.labels(server)
        self.in_flight = families.in_flight.labels(server)
        self.limit = families.limit.labels(server)
        self.probe_seconds = families.probe_seconds.labels(server)
        self.readmissions = families.readmissions.labels(server)
        for reason in EVICTION_REASONS:  # at 0, as above
            families.evictions.labels(server, reason)

    def enter(self, state: str) -> None:
        for series in self._states.values():
            series.set(0)
        if state not in self._states:
            self._states[state] = self._families.state.labels(self._server, state)
        self._states[state].set(1)
        self._since.set_to_current_time()

    def attempt_ended(self, verdict: Verdict, seconds: float) -> None:
        self._attempt_seconds.observe(seconds)
        series = self._attempts.get(verdict)
        if series is None:
            series = self._attempts[verdict] = self._families.attempts.labels(self._server, verdict.value)
        series.inc()

    def evicted(self, reason: str) -> None:
        self._families.evictions.labels(self._server, reason).inc()


class _ModelSeries:
    """One model's children of the tokens' family."""

    def __init__(self, model: str, fleet: FleetFamilies) -> None:
        self.prompt = fleet.tokens.labels(model, "prompt")
        self.completion = fleet.tokens.labels(model, "completion")
