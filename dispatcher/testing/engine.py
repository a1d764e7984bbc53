"""A model of a vLLM engine's continuous batching: no clock, no I/O, no randomness.

Time is passed in, and nothing is ticked: between two events every rate is constant, so the model jumps from
event to event and a thousand engines are cheap. A sequence waits for a slot and for KV cache, is prefilled
(one after the other, at a fixed rate), then decodes together with all others; each decoding step takes longer
the more sequences share it. When the KV cache is full, the youngest sequence loses its place and is computed
again later, as vLLM's scheduler does (preemption by recomputation).
"""

import heapq
import math
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How fast and how large the modelled engine is. The defaults resemble an 8B model on one large GPU."""

    max_sequences: int = 256
    """Sequences that run at once (vLLM's `--max-num-seqs`)."""
    prefill_tokens_per_s: float = 20_000.0
    decode_step_s: float = 0.010
    """Seconds per token of a sequence that decodes alone."""
    decode_step_growth_s: float = 0.0001
    """What each further sequence adds to every step."""
    kv_tokens: int = 400_000
    """Tokens that the KV cache holds."""
    kv_reserve: float = 0.01
    """Share of the cache that admission leaves free, so that a preempted sequence does not return at once."""

    def step_s(self, sequences: int) -> float:
        """Seconds that one decoding step of so many sequences takes."""
        return self.decode_step_s + (sequences - 1) * self.decode_step_growth_s


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What the engine says of itself, as `/metrics` shows it."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    """Share of the cache in use, 0 to 1."""
    preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    steps: int = 0
    """Decoding steps made."""


@dataclass(slots=True, eq=False)
class _Sequence(Generic[Key]):
    key: Key
    prompt_tokens: int
    output_tokens: int
    generated: float = 0.0
    """Tokens decoded before the last preemption; they are prefilled again."""
    decode_from: float | None = None
    """The step at which it began to decode; None while it waits or is prefilled."""
    prefilled_before: bool = False

    @property
    def prefill_tokens(self) -> float:
        return self.prompt_tokens + self.generated

    @property
    def decode_until(self) -> float:
        return (
            math.inf if self.decode_from is None else self.decode_from + self.output_tokens - self.generated
        )


class Engine(Generic[Key]):
    """One engine. Give it requests and the time; it says which are finished and when to look again.

    Times are seconds of any monotonic clock. A time before the last one counts as the last one.
    """

    def __init__(self, settings: EngineSettings, now: float = 0.0) -> None:
        self._settings = settings
        self._now = now
        self._frozen = False
        self._step = (
            0.0  # decoding steps made since the start: each moves every decoding sequence one token on
        )
        self._waiting: OrderedDict[Key, _Sequence[Key]] = OrderedDict()
        self._running: OrderedDict[Key, _Sequence[Key]] = OrderedDict()  # in order of admission
        self._prefilling: OrderedDict[Key, _Sequence[Key]] = OrderedDict()  # the first one is at work
        self._prefill_left = 0.0  # tokens that the first one still needs
        self._decoding = 0
        self._kv_base = 0.0  # cache use is this plus the steps of all decoding sequences
        self._endings: list[
            tuple[float, int, _Sequence[Key]]
        ] = []  # heap; an entry is stale once its time differs
        self._pushed = 0
        self._finished: list[Key] = []
        self._preemptions = 0
        self._prompt_tokens = 0
        self._generation_tokens = 0.0

    def submit(self, key: Key, prompt_tokens: int, output_tokens: int, now: float) -> None:
        """Queue a request. Raises ValueError where it could never fit the KV cache, or its key is in use."""
        if prompt_tokens + output_tokens > self._settings.kv_tokens:
            raise ValueError(f"{prompt_tokens} + {output_tokens} tokens never fit the KV cache")
        if key in self._waiting or key in self._running:
            raise ValueError(f"request {key!r} is already in the engine")
        self._run_until(now)
        self._waiting[key] = _Sequence(key, prompt_tokens, output_tokens)
        self._admit()

    def abort(self, key: Key, now: float) -> None:
        """Forget a request, wherever it is; unknown and finished ones are ignored."""
        self._run_until(now)
        self._waiting.pop(key, None)
        if key in self._running:
            self._leave(self._running[key])
        self._admit()

    def advance(self, now: float) -> list[Key]:
        """Let the time pass; return the requests that have finished since the last call, in order."""
        self._run_until(now)
        finished, self._finished = self._finished, []
        return finished

    def next_event_at(self) -> float | None:
        """When `advance` is worth calling again; None while nothing can change by itself.

        Not every event finishes a request: a prefill may end, or the cache fill up.
        """
        if self._finished:
            return self._now
        wait = min(self._prefill_wait(), self._decode_wait(), self._full_wait())
        return None if wait == math.inf else self._now + wait

    def freeze(self, now: float) -> None:
        """Stand still from now on, like a stopped engine process."""
        self._run_until(now)
        self._frozen = True

    def thaw(self, now: float) -> None:
        """Go on where `freeze` stopped."""
        self._run_until(now)
        self._frozen = False

    def load(self) -> EngineLoad:
        """The figures as of the last call that carried a time."""
        return EngineLoad(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_usage=max(0.0, self._kv_used()) / self._settings.kv_tokens,
            preemptions=self._preemptions,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=int(self._generation_tokens + 1e-6),
            steps=int(self._step + 1e-6),
        )

    # --- time ---

    def _run_until(self, now: float) -> None:
        while (at := self._event_at()) <= now:
            self._pass(at)
            self._happen()
            self._admit()
        self._pass(now)

    def _event_at(self) -> float:
        return self._now + min(self._prefill_wait(), self._decode_wait(), self._full_wait())

    def _pass(self, now: float) -> None:
        """Move both lanes, prefill and decode, on to `now`. No event may lie in between."""
        elapsed = now - self._now
        if elapsed <= 0:
            return
        self._now = now
        if self._frozen:
            return
        if self._prefilling:
            self._prefill_left -= elapsed * self._settings.prefill_tokens_per_s
        if self._decoding:
            steps = elapsed / self._settings.step_s(self._decoding)
            self._step += steps
            self._generation_tokens += steps * self._decoding

    def _happen(self) -> None:
        """The event that is due now. Of several at one time the one that frees the most goes first."""
        decode, prefill, full = self._decode_wait(), self._prefill_wait(), self._full_wait()
        nearest = min(decode, prefill, full)
        if decode == nearest:
            self._finish(self._endings[0][2])
        elif prefill == nearest:
            self._start_decoding(next(iter(self._prefilling.values())))
        else:
            self._preempt(next(reversed(self._running.values())))

    # --- when the next event of each kind is due, in seconds from now ---

    def _prefill_wait(self) -> float:
        if self._frozen or not self._prefilling:
            return math.inf
        return max(0.0, self._prefill_left / self._settings.prefill_tokens_per_s)

    def _decode_wait(self) -> float:
        self._drop_stale_endings()
        if self._frozen or not self._endings:
            return math.inf
        return max(0.0, (self._endings[0][0] - self._step) * self._settings.step_s(self._decoding))

    def _full_wait(self) -> float:
        # A sequence that runs alone always fits (`submit` sees to it), whatever the rounding says.
        if self._frozen or not self._decoding or len(self._running) == 1:
            return math.inf
        steps = (self._settings.kv_tokens - self._kv_used()) / self._decoding
        return max(0.0, steps * self._settings.step_s(self._decoding))

    def _drop_stale_endings(self) -> None:
        while self._endings and self._endings[0][0] != self._endings[0][2].decode_until:
            heapq.heappop(self._endings)

    # --- what can happen to a sequence ---

    def _admit(self) -> None:
        """Let the first waiting sequences in, in order: one that does not fit holds up those behind it."""
        while self._waiting and len(self._running) < self._settings.max_sequences:
            sequence = next(iter(self._waiting.values()))
            if self._running and sequence.prefill_tokens > self._room():
                return
            del self._waiting[sequence.key]
            self._enter(sequence)

    def _room(self) -> float:
        """Tokens that admission may hand out: at least the running sequences' next step stays free.

        Without that, a preempted sequence would come back into the very place that it had to leave, for ever.
        """
        reserve = max(self._settings.kv_tokens * self._settings.kv_reserve, len(self._running))
        return self._settings.kv_tokens - reserve - self._kv_used()

    def _enter(self, sequence: _Sequence[Key]) -> None:
        self._running[sequence.key] = sequence
        self._kv_base += sequence.prefill_tokens
        self._prefilling[sequence.key] = sequence
        if len(self._prefilling) == 1:
            self._prefill_left = sequence.prefill_tokens

    def _start_decoding(self, sequence: _Sequence[Key]) -> None:
        self._end_prefill(sequence)
        if not sequence.prefilled_before:
            sequence.prefilled_before = True
            self._prompt_tokens += sequence.prompt_tokens
        if sequence.output_tokens == 0:
            self._kv_base -= sequence.prefill_tokens
            del self._running[sequence.key]
            self._finished.append(sequence.key)
            return
        sequence.decode_from = self._step
        self._decoding += 1
        self._kv_base -= self._step
        self._pushed += 1
        heapq.heappush(self._endings, (sequence.decode_until, self._pushed, sequence))

    def _finish(self, sequence: _Sequence[Key]) -> None:
        self._step = sequence.decode_until  # exact, whatever the division of the time has rounded
        self._leave(sequence)
        self._finished.append(sequence.key)

    def _preempt(self, sequence: _Sequence[Key]) -> None:
        self._preemptions += 1
        decoded = 0.0 if sequence.decode_from is None else self._step - sequence.decode_from
        self._leave(sequence)
        sequence.generated += decoded
        self._waiting[sequence.key] = sequence
        self._waiting.move_to_end(sequence.key, last=False)

    def _leave(self, sequence: _Sequence[Key]) -> None:
        """Give back the slot and the cache."""
        del self._running[sequence.key]
        self._kv_base -= sequence.prefill_tokens
        if sequence.decode_from is None:
            self._end_prefill(sequence)
            return
        self._kv_base += sequence.decode_from
        self._decoding -= 1
        sequence.decode_from = None

    def _end_prefill(self, sequence: _Sequence[Key]) -> None:
        at_work = next(iter(self._prefilling)) == sequence.key
        del self._prefilling[sequence.key]
        if at_work and self._prefilling:
            self._prefill_left = next(iter(self._prefilling.values())).prefill_tokens

    def _kv_used(self) -> float:
        return self._kv_base + self._decoding * self._step
