"""The pool: every server's state, and what each piece of evidence does to it.

All methods decide at once and never await. What must be done about a decision comes back as effects; the
monitor and the node do it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import assert_never

import structlog

from dispatcher.config import PoolSettings
from dispatcher.model import (
    CanaryFault,
    CanaryReport,
    ErrorCode,
    Health,
    Judgement,
    ProbeReport,
    ServerId,
    ServerSpec,
    Telemetry,
    Verdict,
)
from dispatcher.pool.brake import Brake
from dispatcher.pool.effects import AttemptEnd, Effect, GiveUp
from dispatcher.pool.finding import finding_of
from dispatcher.pool.limits import ALL, FixedLimit, LearnedLimit, Limit, Portion
from dispatcher.pool.moves import IN_SERVICE, Moves
from dispatcher.pool.pulse import DYING_S
from dispatcher.pool.server import DOUBTS_MAX, PAUSE_DEFAULT_S, PAUSE_MIN_S, Server, tokens_counted
from dispatcher.pool.states import Event, State
from dispatcher.telemetry.absences import Absences
from dispatcher.telemetry.metrics import Metrics


class Pool:
    """The servers by id, and the rules that move them from state to state."""

    def __init__(  # noqa: PLR0913  # each has a default but what every pool needs
        self,
        settings: PoolSettings,
        metrics: Metrics,
        clock_now: Callable[[], float],
        random: Random,
        absences: Absences | None = None,
        *,
        live_reserve: float = 0.0,
        portion: Portion = ALL,
        log_prompts: bool = False,
    ) -> None:
        self.settings = settings
        self._live_reserve = live_reserve
        self._portion = portion
        self.servers: dict[ServerId, Server] = {}
        self._metrics = metrics
        self._now = clock_now
        self._absences = absences or Absences(clock_now)
        self._moves = Moves(settings, metrics, clock_now, random, log_prompts=log_prompts)
        self._brake = Brake()
        self._log = structlog.get_logger("dispatcher.pool")

    # Membership

    def set_members(self, specs: Sequence[ServerSpec]) -> list[Server]:
        """Make these the members: new ones join, missing ones drain. Returns the ones to start watching."""
        listed = {spec.id: spec for spec in specs}
        for server in list(self.servers.values()):
            if server.spec.id not in listed:
                self._withdraw(server)
        return [joined for spec in listed.values() if (joined := self._list(spec)) is not None]

    def _list(self, spec: ServerSpec) -> Server | None:
        known = self.servers.get(spec.id)
        if known is None:
            return self._join(spec)
        if spec.limit != known.spec.limit:
            known.limit = self._limit_of(spec)
            known.limit.admitted(known.admitted_at)
        known.spec = spec
        self._moves.make(known, Event.RETURNED, "listed again")
        return None

    def _join(self, spec: ServerSpec) -> Server:
        server = Server(spec, self._limit_of(spec), self._now(), self._live_reserve)
        self.servers[spec.id] = server
        self._metrics.server_joined(spec.id, lambda: server.in_flight, lambda: self._permits_shown(server))
        self._metrics.server_state(spec.id, server.state.value)
        return server

    def _limit_of(self, spec: ServerSpec) -> Limit:
        limit = self.settings.limit if spec.limit is None else spec.limit
        if limit == "auto":
            return LearnedLimit(self._portion.of)
        return FixedLimit(self._portion.part(limit, spec.id))

    def _permits_shown(self, server: Server) -> int:
        return server.limit.permits(self._now()) if server.state is State.ACTIVE else 0

    def _withdraw(self, server: Server) -> None:
        self._moves.make(server, Event.WITHDRAWN, "no longer listed")
        self.remove_drained(server)

    def remove_drained(self, server: Server) -> None:
        """Forget a draining server once nothing of ours is open there."""
        if server.state is State.DRAINING and server.in_flight == 0:
            self._moves.make(server, Event.DRAINED, "drained")
            del self.servers[server.spec.id]
            self._metrics.forget_server(server.spec.id)

    # Capacity, for the assigner

    def permits_total(self, now: float) -> int:
        """The sum of the active servers' limits."""
        return sum(server.limit.permits(now) for server in self.active())

    def active(self) -> Iterator[Server]:
        """The servers in rotation."""
        return (server for server in self.servers.values() if server.state is State.ACTIVE)

    def can_serve(self, model: str | None) -> bool:
        """Whether a server in rotation serves this model, busy or not."""
        return any(server.serves(model) for server in self.active())

    # Evidence from attempts

    def attempt_ended(self, server: Server, end: AttemptEnd) -> Sequence[Effect]:
        """What one attempt's end means for its server. The permit has been given back already."""
        good = end.judgement.verdict in (Verdict.SUCCESS, Verdict.REQUEST_FAULT)
        since = server.admitted_at if end.judgement.verdict is Verdict.DOUBTFUL else server.alive_since
        late = end.sent_at < since  # a fault of a life that has ended, or a doubt that was settled
        effects = self._weigh(server, end) if good or not late else ()
        self.remove_drained(server)
        return effects

    def attempt_given_up(self, server: Server) -> None:
        """We closed an attempt ourselves, for whatever reason: that is no evidence against its server."""
        self.remove_drained(server)

    def _weigh(self, server: Server, end: AttemptEnd) -> Sequence[Effect]:
        judgement = end.judgement
        match judgement.verdict:
            case Verdict.SUCCESS | Verdict.REQUEST_FAULT:
                now = self._now()
                server.answered(judgement, now - end.sent_at, now)
                return ()
            case Verdict.STALE_CONNECTION | Verdict.LOCAL_FAULT:
                return self._unreached(server, judgement)
            case Verdict.OVERLOAD:
                return self._overloaded(server, end)
            case Verdict.DOUBTFUL | Verdict.STALLED:
                return self._doubtful(server, end)
            case Verdict.SERVER_FAULT:
                return self._faulted(server, judgement)
            case Verdict.MISMATCH:
                return self._mismatched(server, end)
            case _ as never:
                assert_never(never)

    def _unreached(self, server: Server, judgement: Judgement) -> Sequence[Effect]:
        """No fault of the server's; but where no way leads to it, it can be given nothing."""
        return self._told(server, Event.DOUBTED, judgement) if judgement.offline else ()

    def _overloaded(self, server: Server, end: AttemptEnd) -> Sequence[Effect]:
        now = self._now()
        server.failed(end.judgement, now)
        server.limit.overloaded(server.in_flight, end.sent_at, now)
        retry_after_s = end.judgement.retry_after_s
        pause_s = PAUSE_DEFAULT_S if retry_after_s is None else max(PAUSE_MIN_S, retry_after_s)
        server.blocked_until = max(server.blocked_until, now + pause_s)
        return ()

    def _doubtful(self, server: Server, end: AttemptEnd) -> Sequence[Effect]:
        if end.judgement.code is ErrorCode.SERVER_ERROR and server.doubted_at is None:
            server.doubted_at = self._now()
        if end.repeated:
            return ()
        server.failed(end.judgement, self._now())
        server.doubts += 1
        if server.doubts < DOUBTS_MAX:
            return ()
        before = f"{server.doubts} doubtful answers in a row, the last: "
        return self._told(server, Event.DOUBTED, end.judgement, before)

    def _faulted(self, server: Server, judgement: Judgement) -> Sequence[Effect]:
        server.failed(judgement, self._now())
        if judgement.hard:
            return self._process_gone(server, Event.DIED, judgement.message, judgement.plainly)
        return self._told(server, Event.DOUBTED, judgement)

    def _mismatched(self, server: Server, end: AttemptEnd) -> Sequence[Effect]:
        server.failed(end.judgement, self._now())
        if end.judgement.code is ErrorCode.MODEL_NOT_FOUND and end.model is not None:
            server.lacking[end.model] = self._now()
        return self._told(server, Event.MISMATCHED, end.judgement)

    def _told(self, server: Server, event: Event, judgement: Judgement, before: str = "") -> Sequence[Effect]:
        """What an attempt's end tells, for a reason: in the log without the server's words."""
        reason, plain = before + judgement.message, before + judgement.plainly
        return self._moves.make(server, event, reason, plain)

    # Evidence from probes

    def probed(self, server: Server, report: ProbeReport) -> Sequence[Effect]:
        """What a look at `/health` means. A slow answer means nothing: busy servers are slow."""
        server.seen = report.detail
        if report.health is Health.UNASKED:
            self._moves.plan(server)
            return ()
        self._moves.looked(server)
        if server.doubted_at is not None and server.looked_at >= server.doubted_at + DYING_S:
            server.doubted_at = None
        match report.health:
            case Health.UP | Health.ABSENT:
                return self._moves.make(server, Event.ANSWERED, "answers")
            case Health.DOWN | Health.REFUSED:
                return self._process_gone(server, Event.DIED, report.detail)
            case Health.UNREACHABLE:
                return self._moves.make(server, Event.DOUBTED, report.detail)
            case Health.SLOW:
                return ()
            case _ as never:
                assert_never(never)

    def refreshed(self, server: Server, report: ProbeReport) -> Sequence[Effect]:
        """Take in a full inspection of a server in rotation: it may have been put to sleep, or reloaded."""
        if report.sleeping:
            return self._moves.make(server, Event.SLEPT, "asleep")
        server.forget_lacks(self._now())
        server.note_models(report.models)
        server.note_context(report.context_tokens)
        return self.probed(server, report)

    def reminded(self, server: Server, canary: CanaryReport) -> Sequence[Effect]:
        """What a server in rotation answered to the known question. A busy one's silence says nothing."""
        if canary.fault not in (CanaryFault.MISMATCHED, CanaryFault.WRONG):
            return ()
        lost = self._give_up_wrong(server, canary)
        return (*lost, *self._moves.make(server, Event.MISMATCHED, canary.detail))

    def scraped(
        self, server: Server, telemetry: Telemetry | None, asked_at: float | None = None
    ) -> Sequence[Effect]:
        """Take in a server's own figures: load, progress, and whether it is still the same process.

        `asked_at` is when they were asked for, now if None: what they show may be as old as that.
        """
        if telemetry is None:
            server.limit.unmeasured()
            return ()
        restarted = server.restarted(telemetry.started_at)
        server.note_start(telemetry.started_at)
        if restarted:
            return self._process_gone(server, Event.RESTARTED, "the process was restarted")
        self._note_progress(server, telemetry, self._now() if asked_at is None else asked_at)
        server.limit.measured(telemetry, server.spoken_for(self._now()))
        return ()

    def _note_progress(self, server: Server, telemetry: Telemetry, asked_at: float) -> None:
        seen = tokens_counted(telemetry)
        if seen is not None and server.tokens_seen is not None and seen > server.tokens_seen:
            server.progress_at = max(server.progress_at, asked_at)
        server.tokens_seen = seen

    def look_for_stall(self, server: Server) -> Sequence[Effect]:
        """What it means that a server holds requests of ours and shows no progress, if so.

        One in rotation becomes a suspect. A suspect's canary decides about the server; but where its own
        figures stand still, too, it has lost our requests, and even a good canary brings them no answer.
        """
        if not self._stalled(server):
            return ()
        reason = f"no progress for {self.settings.stall_s:g} s with {server.in_flight} requests open"
        if server.state is State.ACTIVE:
            server.hanging = True
            return self._moves.make(server, Event.DOUBTED, reason)
        if server.state is State.SUSPECT and server.tokens_seen is None:
            return ()
        return (GiveUp(server, reason),)

    def _stalled(self, server: Server) -> bool:
        """Without progress for too long, of which we have been there to see it."""
        unseen_s = self._absences.seconds_since(server.progress_at)
        return server.stalled(self.settings.stall_s, self._now() - unseen_s)

    def examined(
        self, server: Server, report: ProbeReport, canary: CanaryReport, *, progress: bool | None = None
    ) -> Sequence[Effect]:
        """Decide about a server out of rotation, from a full inspection and a canary.

        `progress` says whether its token counters moved while the canary waited; None where they are unknown.
        """
        if progress:
            server.progress_at = self._now()
        stalled, figures = self._stalled(server), progress is not None
        finding = finding_of(server, report, canary, self.settings, stalled=stalled, figures=figures)
        if finding is None:
            return self._put_off(server, canary)
        self._moves.looked(server)
        event, reason = finding
        lost = self._give_up_wrong(server, canary) or self.look_for_stall(server)
        if event is Event.VERIFIED:
            lost = _with_one_silent(server, lost)
            self._take_in(server, report)
        if event is Event.FAILED and self._brakes(server, reason):
            return lost
        return (*lost, *self._moves.make(server, event, reason))

    def _put_off(self, server: Server, canary: CanaryReport) -> Sequence[Effect]:
        """Nothing was learned: the server stays what it is. Where we could not ask, its silence is ours."""
        if canary.fault is not CanaryFault.SLOW:
            server.progress_at = self._now()
        self._moves.plan_later(server)
        return ()

    def _give_up_wrong(self, server: Server, canary: CanaryReport) -> Sequence[Effect]:
        """What a server with wrong weights is answering is not to be recorded."""
        wrong = canary.fault is CanaryFault.WRONG and server.in_flight > 0
        return (GiveUp(server, canary.detail),) if wrong else ()

    def _brakes(self, server: Server, reason: str) -> bool:
        """Whether this soft eviction would be one too many: then the suspect stays, and is asked again."""
        if server.state is not State.SUSPECT:
            return False
        in_service = sum(each.state in IN_SERVICE for each in self.servers.values())
        if self._brake.allows(server.spec.id, in_service, self._now()):
            return False
        self._log.warning("soft_eviction_held_back", server=server.spec.id, reason=reason)
        server.setbacks += 1
        self._moves.plan_later(server)
        return True

    def _take_in(self, server: Server, report: ProbeReport) -> None:
        if server.state is State.VERIFYING or server.restarted(report.started_at):
            server.lacking.clear()  # a new life: what it lacked before it may have now
        server.note_models(report.models)
        server.note_context(report.context_tokens)
        server.note_start(report.started_at)
        server.version = report.version or server.version
        if report.telemetry is not None:  # what it can hold is known before the first request
            server.limit.measured(report.telemetry, server.spoken_for(self._now()))

    def _process_gone(
        self, server: Server, event: Event, reason: str, plain: str | None = None
    ) -> Sequence[Effect]:
        """Move; a draining server stays what it is, but its open requests must not wait for an answer."""
        if server.state is State.DRAINING:
            return (GiveUp(server, reason),)
        return self._moves.make(server, event, reason, plain)


def _with_one_silent(server: Server, lost: Sequence[Effect]) -> Sequence[Effect]:
    """Of many requests a server may have lost the connections; a single one may be what nothing answers."""
    return [
        replace(effect, silent=server.in_flight == 1) if isinstance(effect, GiveUp) else effect
        for effect in lost
    ]
