"""One server as the pool sees it: its state, its permits and what it has done for us. No I/O."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dispatcher.model import Judgement, ServerSpec, Telemetry, Verdict
from dispatcher.pool.limits import Limit
from dispatcher.pool.states import Machine, State

DOUBTS_MAX = 5
"""Doubtful endings in a row, without one good answer between them, that make a server a suspect."""
MODELS_SHOWN_MAX = 5
LACK_S = 60.0
"""How long a server gets no row of a model that it answered 404 for, or by another model."""
ANSWER_WEIGHT = 1 / 32
"""What the latest answer counts for in the mean time of a server's answers."""
PAUSE_DEFAULT_S = 1.0
"""How long a server that refused for load is left alone when it sends no Retry-After."""
PAUSE_MIN_S = 0.1
"""And at least, when it sends one of 0: a refused request comes back at once, and would again."""


@dataclass(slots=True)
class Record:
    """What a server has done since it was found."""

    succeeded: int = 0
    failed: int = 0
    tokens: int = 0
    evictions: int = 0
    last_fault: str = ""
    last_fault_plain: str = ""
    """The same without the server's words: what a log may hold."""
    last_fault_at: float | None = None


class Server:
    """State and figures of one server. The pool changes them; nothing here awaits."""

    __slots__ = (
        "admitted_at",
        "alive_since",
        "answer_s",
        "answered_at",
        "blocked_until",
        "context_tokens",
        "doubted_at",
        "doubts",
        "examine_at",
        "hanging",
        "in_flight",
        "lacking",
        "limit",
        "looked_at",
        "machine",
        "models",
        "next_check_at",
        "next_scrape_at",
        "patience",
        "progress_at",
        "proven",
        "record",
        "reserve",
        "seen",
        "setbacks",
        "silent",
        "spec",
        "started_at",
        "tokens_seen",
        "version",
    )

    def __init__(self, spec: ServerSpec, limit: Limit, now: float, reserve: float = 0.0) -> None:
        self.spec = spec
        self.reserve = reserve
        """The share of its permits that jobs leave to live requests."""
        self.machine = Machine(now)
        self.limit = limit
        self.in_flight = 0
        self.models: dict[str, str] | None = None
        """Served name -> root, as it lists them; None where it has no list."""
        self.context_tokens: Mapping[str, int] = {}
        """Served name -> tokens that prompt and answer may have together, as far as it says."""
        self.lacking: dict[str, float] = {}
        """Models it answered 404 for, although it has no list, or lists them."""
        self.next_check_at = now
        self.looked_at = float("-inf")
        """When the latest look at it began."""
        self.examine_at = now
        """A suspect's canary waits until then, where suspicion has become a habit."""
        self.next_scrape_at = now
        self.setbacks = 0
        """Times it left service or failed to enter it, since it last was well for five minutes."""
        self.version: str | None = None
        self.started_at: float | None = None
        """The latest start of its process that it has told of."""
        self.admitted_at = now
        self.alive_since = now
        """When it last came up: unlike an admission, an acquittal begins no new life."""
        self.blocked_until = now
        self.doubts = 0
        self.doubted_at: float | None = None
        """When it gave a plain error of which is not known yet whether it was its engine's last word."""
        self.answered_at: float | None = None
        """When it last answered well."""
        self.hanging = False
        """Whether it was found without progress while it held requests, and not admitted again since."""
        self.silent = 0
        """Requests that were open when its canary passed in spite of a stall, and still are."""
        self.patience = 1
        """Times `stall_s` until it is taken for stalled: doubled by each canary passed in spite of that."""
        self.proven = False
        """Whether it has answered a request since it was last admitted: a canary's word is less than that."""
        self.answer_s: float | None = None
        """How long its answers take, as a mean over the last ones; None before the first."""
        self.progress_at = now
        self.tokens_seen: float | None = None
        """What its token counters said last; None where it has none."""
        self.record = Record()
        self.seen = ""
        """What was wrong at the latest look at its health; empty where nothing was."""

    @property
    def state(self) -> State:
        """Where it stands."""
        return self.machine.state

    @property
    def reason(self) -> str:
        """Why it stands where it stands, for the operator to read."""
        return self._with_seen(self.machine.reason)

    @property
    def plain_reason(self) -> str:
        """The same without the server's words, which can repeat a prompt: what a log may hold."""
        return self._with_seen(self.machine.plain)

    def _with_seen(self, reason: str) -> str:
        unanswered = self.state is State.JOINING and self.seen
        return f"{reason}: {self.seen}" if unanswered else reason

    @property
    def serving(self) -> str:
        """Which models it takes requests for, for the operator to read."""
        if self.models is None:
            return f"serves any model{_but(self.lacking)}"
        served = [model for model in self.models if model not in self.lacking]
        refused = [model for model in self.models if model in self.lacking]
        return f"serves {_names(served) or 'no model'}{_but(refused)}"

    def serves(self, model: str | None) -> bool:
        """Whether a request for this model may go there; an unlisted server may serve anything."""
        if model is None:
            return True
        if model in self.lacking:
            return False
        return self.models is None or model in self.models

    def permits_free(self, now: float) -> int:
        """How many more requests it may be given now.

        One that has answered nothing well since its admission, and something doubtfully, gets no more than
        would convict it: a server that fails at once must not be fed. One that was silent to requests and
        passed its canary gets one more until it answers.
        """
        permits = self._permits(now)
        return permits - self.in_flight if permits else 0

    def permits_for_jobs(self, now: float) -> int:
        """How many more requests of jobs it may be given now: the reserve is left free.

        However small its limit is, one permit of it is for jobs.
        """
        permits = self._permits(now)
        return permits - self._left_free(permits) - self.in_flight if permits else 0

    def spoken_for(self, now: float) -> int:
        """Permits that are taken, or left free on purpose: what tells whether its limit is made use of."""
        return self.in_flight + self._left_free(self.limit.permits(now))

    def _left_free(self, permits: int) -> int:
        return min(math.ceil(self.reserve * permits), permits - 1) if permits > 0 else 0

    def _permits(self, now: float) -> int:
        if self.machine.state is not State.ACTIVE or now < self.blocked_until:
            return 0
        permits = self.limit.permits(now)
        if self.doubts and not self.proven:
            permits = min(permits, max(1, DOUBTS_MAX - self.doubts))
        if self.silent and not self.proven:
            permits = min(permits, self.silent + 1)
        return permits

    def free_share(self, now: float) -> float:
        """The share of its limit that is free: what the assigner compares."""
        permits = self.limit.permits(now)
        return (permits - self.in_flight) / permits

    def took(self, now: float) -> None:
        """A permit was taken."""
        if self.in_flight == 0:
            self.progress_at = now
        self.in_flight += 1

    def gave_back(self, sent_at: float) -> None:
        """A permit came back, of a request that was sent then."""
        assert self.in_flight > 0, f"{self.spec.id} gave back a permit it did not hold"
        self.in_flight -= 1
        if self.silent and sent_at < self.admitted_at:
            self.silent -= 1

    def answered(self, judgement: Judgement, seconds: float, now: float) -> None:
        """Note a good answer after so long, or one whose fault is the request's: the server is well."""
        self.doubts = 0
        self.patience = 1
        self.progress_at = self.answered_at = now
        if self.doubted_at is not None and now - seconds > self.doubted_at:
            self.doubted_at = None
        if judgement.verdict is Verdict.SUCCESS:
            self.proven = True
            self.record.succeeded += 1
            before_s = seconds if self.answer_s is None else self.answer_s
            self.answer_s = before_s + (seconds - before_s) * ANSWER_WEIGHT
            self.record.tokens += judgement.tokens.completion
            self.limit.completed(self.spoken_for(now), now)

    def failed(self, judgement: Judgement, now: float) -> None:
        """Note a fault, for the operator to see."""
        self.record.failed += 1
        self.record.last_fault = judgement.message
        self.record.last_fault_plain = judgement.plainly
        self.record.last_fault_at = now

    def stalled(self, stall_s: float, now: float) -> bool:
        """Whether it holds requests of ours and has shown no progress by any sign for `stall_s`."""
        return self.in_flight > 0 and now - self.progress_at >= stall_s * self.patience

    def restarted(self, started_at: float | None) -> bool:
        """Whether this start of the process is a later one than any it has told of.

        An earlier one is no restart: it is another replica behind the same address.
        """
        return started_at is not None and self.started_at is not None and started_at > self.started_at

    def note_start(self, started_at: float | None) -> None:
        """Remember the latest start; an absent one changes nothing."""
        if self.started_at is None or self.restarted(started_at):
            self.started_at = started_at

    def forget_lacks(self, now: float) -> None:
        """Believe again what its list says of models that it lacked long ago.

        A proxy may have led to another server for a moment; otherwise the rows of the model would wait for
        ever on a server that has it.
        """
        self.lacking = {model: at for model, at in self.lacking.items() if now - at < LACK_S}

    def note_models(self, models: dict[str, str] | None) -> None:
        """Take in its list of models; an absent one changes nothing, and a new one is believed."""
        if models is not None and models != self.models:
            self.models = models
            self.lacking.clear()

    def note_context(self, context_tokens: Mapping[str, int] | None) -> None:
        """Take in what it says of its models' lengths; nothing said changes nothing."""
        if context_tokens is not None:
            self.context_tokens = context_tokens

    def context_tokens_of(self, model: str | None) -> int | None:
        """Tokens that prompt and answer may have together; None where it does not say.

        A request that names no model gets the one that is listed first.
        """
        if model is None:
            return next(iter(self.context_tokens.values()), None)
        return self.context_tokens.get(model)

    def admitted(self, now: float, *, spared: bool) -> None:
        """It enters, or comes back into, rotation. One that was `spared` still has its doubts to answer."""
        self.admitted_at = self.progress_at = self.blocked_until = now
        if not spared:
            self.doubts = 0
        was_silent = spared and self.hanging
        self.silent = self.in_flight if was_silent else 0
        self.patience = self.patience * 2 if was_silent else 1
        self.hanging = False
        self.proven = False
        self.limit.admitted(now)


def _but(lacking: Collection[str]) -> str:
    return f", but answered that it has no {_names(lacking)}" if lacking else ""


def _names(models: Collection[str]) -> str:
    shown = sorted(models)[:MODELS_SHOWN_MAX]
    more = [f"{len(models) - len(shown)} more"] if len(models) > len(shown) else []
    return ", ".join([*shown, *more])


def tokens_counted(telemetry: Telemetry | None) -> float | None:
    """All tokens that the server has read or written so far; None where it does not count them."""
    if telemetry is None:
        return None
    written, read = telemetry.generation_tokens_total, telemetry.prompt_tokens_total
    return None if written is None and read is None else (written or 0.0) + (read or 0.0)
