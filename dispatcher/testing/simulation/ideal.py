"""The shortest makespan that can be had: the job given to the same engines by someone who knows everything.

The oracle knows every row's length beforehand, and its hand is free of networks, probes and limits. An outage
costs it nothing but the server's time: the rows that were running there go on elsewhere, with the tokens that
they had. Of several orders of work the best one counts.
"""

import heapq
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dispatcher.testing.engine import Engine
from dispatcher.testing.simulation.fleet import Member
from dispatcher.testing.simulation.rows import Rows

RESERVES = (0.5, 0.75, 1.0)
"""Shares of a row's output that the oracle sets aside in the cache when it lets the row in."""


def ideal_s(members: Sequence[Member], rows: Rows, *, thorough: bool = True) -> float:
    """Seconds from the start to the last answer.

    `thorough` tries every share of the cache; otherwise only the usual best one, for a third of the time.
    """
    work = _Work(rows)
    able = [member for member in members if not member.group.black_hole]
    orders = (work.longest_first(), range(rows.plan.rows))
    reserves = RESERVES if thorough else RESERVES[:1]
    return min(_Oracle(able, work, order, reserve).run() for order in orders for reserve in reserves)


class _Work:
    """Every row's lengths, packed."""

    def __init__(self, rows: Rows) -> None:
        self.prompts, self.outputs = array("l"), array("l")
        for index in range(rows.plan.rows):
            row = rows.row(index)
            self.prompts.append(row.prompt_tokens)
            self.outputs.append(row.output_tokens)

    def longest_first(self) -> Sequence[int]:
        return array("l", sorted(range(len(self.outputs)), key=self.outputs.__getitem__, reverse=True))


@dataclass(frozen=True, slots=True)
class _Share:
    """A row at a server: what it was given there."""

    output: int
    needs: float
    """Tokens set aside for it in the cache."""
    steps: int
    """The engine's steps when it came: since then it has had one token a step, less its prefill."""


@dataclass(slots=True, eq=False)
class _Place:
    """One server of the oracle's."""

    number: int
    member: Member
    engine: Engine[int]
    changes: Iterator[float]
    """When it goes down or comes back, in turn."""
    up: bool = False
    change_at: float = 0.0
    due: float | None = None
    running: int = 0
    reserved: float = 0.0
    rows: dict[int, _Share] = field(default_factory=dict)


class _Oracle:
    def __init__(self, members: Sequence[Member], work: _Work, order: Sequence[int], reserve: float) -> None:
        self._work = work
        self._order = ((index, work.outputs[index]) for index in order)
        self._moved: list[tuple[int, int]] = []
        """Rows that lost their server, with the output that they still owe."""
        self._next = self._draw()
        self._left = len(order)
        self._reserve = reserve
        self._places = [
            _Place(number, member, Engine(member.engine), _changes(member))
            for number, member in enumerate(members)
        ]
        self._heap: list[tuple[float, int]] = []

    def run(self) -> float:
        for place in self._places:
            place.change_at = next(place.changes)
            self._plan(place)
        now = 0.0
        while self._left:
            now, number = heapq.heappop(self._heap)
            place = self._places[number]
            if place.due == now:
                self._visit(place, now)
        return now

    def _visit(self, place: _Place, now: float) -> None:
        for index in place.engine.advance(now):
            self._left -= 1
            place.reserved -= place.rows.pop(index).needs
        if now >= place.change_at:
            place.up = not place.up
            place.change_at = next(place.changes, float("inf"))
            if not place.up:
                self._move_out(place, now)
            self._deal(now)
        elif place.up:
            self._fill(place, now)
        self._plan(place)

    def _deal(self, now: float) -> None:
        """When a server comes up, share out among all: at the start nobody is to have all the long rows."""
        able = [place for place in self._places if place.up]
        while able:
            able = [place for place in able if self._give(place, now)]
        for place in self._places:
            if place.up:
                self._plan(place)

    def _fill(self, place: _Place, now: float) -> None:
        while self._give(place, now):
            pass

    def _move_out(self, place: _Place, now: float) -> None:
        steps = place.engine.load().steps
        for index, share in place.rows.items():
            place.engine.abort(index, now)
            self._moved.append((index, max(1, share.output - (steps - share.steps))))
        place.rows.clear()
        place.reserved = 0.0
        self._next = self._next or self._draw()

    def _draw(self) -> tuple[int, int] | None:
        return self._moved.pop() if self._moved else next(self._order, None)

    def _give(self, place: _Place, now: float) -> bool:
        """Let the next row in, if there is one and it fits."""
        engine = place.member.engine
        if self._next is None or len(place.rows) >= engine.max_sequences:
            return False
        index, output = self._next
        prompt = self._work.prompts[index]
        needs = prompt + self._reserve * output
        if place.rows and place.reserved + needs > engine.kv_tokens * (1 - engine.kv_reserve):
            return False
        place.engine.submit(index, prompt, output, now)
        place.rows[index] = _Share(output, needs, place.engine.load().steps)
        place.reserved += needs
        self._next = self._draw()
        return True

    def _plan(self, place: _Place) -> None:
        at = place.engine.next_event_at()
        due = place.change_at if at is None else min(at, place.change_at)
        if due != place.due:
            place.due = due
            heapq.heappush(self._heap, (due, place.number))


def _changes(member: Member) -> Iterator[float]:
    yield member.joins_at
    for down_at, up_at in member.outages():
        yield down_at
        yield up_at
