"""One simulated vLLM server: an engine under virtual time, and the manners of shared/VLLM.md around it."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from random import Random

from dispatcher.model import Answer, Break, BreakKind, Ending, ServerId, Telemetry
from dispatcher.testing.engine import Engine
from dispatcher.testing.simulation import replies
from dispatcher.testing.simulation.rows import Row, RowKind
from dispatcher.testing.simulation.scenario import FaultKind, ServerPlan
from dispatcher.testing.simulation.state import Manners, Work
from dispatcher.testing.simulation.timers import Timers

DYING_S = 0.3
"""How long a server whose engine is dead still answers, `/health` with 200 (seen on vLLM 0.32.0)."""
SHUTDOWN_S = 30.0
"""How long a terminated server leaves its open requests without answer or close, at least (as seen)."""
POISON_S = 0.2
"""From a poison row's arrival to the engine's death."""
RESET_S = 0.05
VERSION = "0.32.0"


@dataclass(slots=True, eq=False)
class Flight:
    """A request that the server has, until its ending is known."""

    row: Row
    ending: asyncio.Future[Ending]
    arrived_at: float

    def end(self, ending: Ending) -> None:
        """Answer, or break off; only the first ending counts."""
        if not self.ending.done():
            self.ending.set_result(ending)


class SimulatedServer:
    """A server in virtual time. `submit` and the life-cycle methods act at once; nothing here awaits."""

    def __init__(self, id_: ServerId, plan: ServerPlan, loop: Timers, random: Random) -> None:
        self.id = id_
        self.plan = plan
        self.work = Work()
        self.spoilt: Counter[int] = Counter()
        """Rows whose answers were spoilt, and how often: that is charged to them."""
        self.manners = Manners(health_s=plan.health_s, metrics_s=plan.metrics_s)
        self.models = self._models_next = plan.models
        self.started_at = 0.0
        self.listening = False
        self.dying = False
        self._loop = loop
        self._random = random
        self._life = 0
        self._engine: Engine[Flight] = Engine(plan.engine)
        self._flights: dict[Flight, None] = {}
        self._held: list[Flight] = []
        """Answered while no packet came through."""
        self._timer: asyncio.TimerHandle | None = None
        if plan.joins_at > 0:
            loop.call_at(plan.joins_at, self._rise, self._life)
        else:
            self._rise(self._life)

    @property
    def open(self) -> int:
        """Requests that it holds, or has held open in silence."""
        return len(self._flights)

    def is_up(self, started_at: float) -> bool:
        """Whether the process that began then still listens."""
        return self.listening and self.started_at == started_at

    # Requests

    def submit(self, row: Row) -> Ending | Flight:
        """Take a request: an ending that is known at once, or the flight whose ending is to come."""
        if not self.listening:
            return Break(BreakKind.REFUSED)
        if self.dying:
            return replies.engine_dead()
        return self._refusal(row) or self._take_in(row)

    def leave(self, flight: Flight) -> None:
        """The client has its answer, or has gone away: then the request is aborted."""
        if flight in self._flights:
            del self._flights[flight]
            self._engine.abort(flight, self._loop.time())
            self._settle(self._loop.time())

    def telemetry(self) -> Telemetry:
        """The load figures of `/metrics`. A frozen engine's are 0, and its counters stand still."""
        self._settle(self._loop.time())
        load = self._engine.load()
        still = self.manners.frozen
        return Telemetry(
            running=0.0 if still else float(load.running),
            waiting=0.0 if still else float(load.waiting),
            kv_usage=load.kv_usage,
            preemptions_total=float(load.preemptions),
            generation_tokens_total=float(load.generation_tokens),
            prompt_tokens_total=float(load.prompt_tokens),
            started_at=self.started_at,
            kv_max_concurrency=self.plan.engine.kv_tokens / self.plan.model_len,
        )

    def _refusal(self, row: Row) -> Answer | None:
        if row.model not in self.models:
            return replies.unknown_model(row.model)
        fits = row.prompt_tokens + row.output_tokens <= self.plan.engine.kv_tokens
        if row.kind is RowKind.TOO_LONG or not fits:
            return replies.too_long(row, self.plan.model_len)
        if self._overflows():
            retry_after_s = self._random.choice((None, 1.0, 2.0))
            return replies.full(unavailable=self._random.random() < 0.5, retry_after_s=retry_after_s)  # noqa: PLR2004  # even odds
        return None

    def _overflows(self) -> bool:
        bound = 0 if self.manners.full else self.plan.waiting_max
        if bound is None:
            return False
        load = self._engine.load()
        return load.running >= self.plan.engine.max_sequences and load.waiting >= bound

    def _take_in(self, row: Row) -> Flight:
        flight = Flight(row, self._loop.create_future(), self._loop.time())
        self._flights[flight] = None
        if self.manners.resetting and self._random.random() < self.manners.resetting:
            self._loop.call_later(RESET_S, flight.end, Break(BreakKind.RESET))
        elif row.kind is RowKind.POISON:
            self._loop.call_later(POISON_S, self._die_of, flight, self._life)
        if row.kind not in (RowKind.SILENT, RowKind.POISON):
            self._engine.submit(flight, row.prompt_tokens, row.output_tokens, flight.arrived_at)
            self._settle(flight.arrived_at)
        return flight

    def _die_of(self, flight: Flight, life: int) -> None:
        if life != self._life or flight not in self._flights:
            return
        if self.manners.frozen:  # it dies when it goes on
            self._loop.call_later(POISON_S, self._die_of, flight, life)
        else:
            self.kill(back_after_s=self._random.uniform(5.0, 20.0))

    # The engine

    def _settle(self, now: float) -> None:
        for flight in self._engine.advance(now):
            if flight in self._flights:
                del self._flights[flight]
                self._answer(flight)
        self._arm()

    def _arm(self) -> None:
        """Wake up at the engine's next event. A timer that is too early costs less than one set anew."""
        at = self._engine.next_event_at()
        if at is None or (self._timer is not None and self._timer.when() <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._wake, at)

    def _wake(self, at: float) -> None:
        self._timer = None
        # The loop calls up to its resolution of 1 ns early, at which the engine would have nothing to do yet.
        self._settle(max(at, self._loop.time()))

    def _answer(self, flight: Flight) -> None:
        if self.manners.unreachable:
            self._held.append(flight)
            return
        ending = self._reply(flight.row)
        if isinstance(ending, Answer) and ending.status == 200:  # noqa: PLR2004  # HTTP
            self.work.delivered += flight.row.output_tokens
        flight.end(ending)

    def _reply(self, row: Row) -> Ending:
        model = self.models[0]
        if row.kind is RowKind.BROKEN:
            return replies.failed()
        for kind, share in self.manners.spoiling.items():
            if self._random.random() < share:
                self.spoilt[row.index] += kind is not FaultKind.MISNAMING
                return _spoilt(kind, row, model)
        return replies.answered(row, model)

    # Life and death

    def kill(self, back_after_s: float) -> None:
        """The engine dies: open requests get 500, the listener closes a little later."""
        if self.listening and not self.dying:
            self.dying = True
            life = self._end_process()
            for flight in tuple(self._flights):
                flight.end(replies.engine_dead())
            self._loop.call_later(DYING_S, self._close, life)
            self._loop.call_later(DYING_S + back_after_s, self._rise, life)

    def terminate(self, back_after_s: float) -> None:
        """SIGTERM: refused at once; open requests hear nothing until the process has ended."""
        if self.listening and not self.dying:
            life = self._end_process()
            self._close(life)
            self._loop.call_later(min(SHUTDOWN_S, back_after_s), self.reset_open)
            self._loop.call_later(back_after_s, self._rise, life)

    def restart(self, back_after_s: float, models: tuple[str, ...] | None = None) -> None:
        """Gone at once, connections broken, and back as a new process; perhaps with other models.

        A process that is gone or going already will come back with these models.
        """
        self._models_next = models or self.plan.models
        if self.listening and not self.dying:
            life = self._end_process()
            self._close(life)
            self.reset_open()
            self._loop.call_later(back_after_s, self._rise, life)

    def stand_still(self, *, frozen: bool) -> None:
        """Freeze the engine, or let it go on."""
        self.manners.frozen = frozen
        now = self._loop.time()
        (self._engine.freeze if frozen else self._engine.thaw)(now)
        self._settle(now)

    def lose_packets(self, *, lost: bool) -> None:
        """Become a black hole, or be one no longer: then what TCP had to send again arrives."""
        self.manners.unreachable = lost
        if not lost:
            held, self._held = self._held, []
            for flight in held:
                self._answer(flight)

    def reset_open(self) -> None:
        """Break every open connection."""
        for flight in tuple(self._flights):
            flight.end(Break(BreakKind.RESET))

    def tokens_made(self) -> int:
        """Output tokens made so far, by all its processes."""
        self._settle(self._loop.time())
        return self.work.generated + self._engine.load().generation_tokens

    def _end_process(self) -> int:
        now = self._loop.time()
        self._settle(now)
        self.work.generated += self._engine.load().generation_tokens
        self.work.deaths += 1
        self.work.went_down(now)
        self._life += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._engine = Engine(self.plan.engine, now)
        return self._life

    def _close(self, life: int) -> None:
        if life == self._life:
            self.listening = self.dying = False

    def _rise(self, life: int) -> None:
        if life != self._life:
            return
        now = self._loop.time()
        self._held.clear()
        self.reset_open()
        self.work.came_up(now)
        self.models = self._models_next
        self.started_at = now + 1.0  # a start time of 0 would not be one
        self._engine = Engine(self.plan.engine, now)
        if self.manners.frozen:
            self._engine.freeze(now)
        self.listening = True


def _spoilt(kind: FaultKind, row: Row, model: str) -> Ending:
    match kind:
        case FaultKind.TRUNCATING:
            return Break(BreakKind.TRUNCATED)
        case FaultKind.GARBLING:
            return replies.garbled(row, model)
        case FaultKind.UNFINISHED:
            return replies.unfinished(row, model)
        case FaultKind.FAILING:
            return replies.failed()
        case FaultKind.MISNAMING:
            return replies.answered(row, replies.OTHER_MODEL)
        case _:
            raise AssertionError(f"{kind} does not spoil answers")
