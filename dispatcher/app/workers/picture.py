"""What the workers of a run have told of themselves, added up as if they were one."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from dispatcher.app.snapshot import Phase, ServerView, Snapshot
from dispatcher.model import Tally
from dispatcher.pool.states import State


@dataclass(slots=True)
class _Gone:
    """What those have left that tell no more."""

    done: Tally = field(default_factory=Tally)
    this_run: Tally = field(default_factory=Tally)
    by_server: Counter[str] = field(default_factory=Counter)
    succeeded: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    evictions: Counter[str] = field(default_factory=Counter)


class Picture:
    """The run by its workers' latest reports. Plain state, no clock.

    A worker that was killed leaves what it has settled, which the queue knows. The rest of what it had
    recorded stands in its journals, and counts again when another worker has read them. What it did in this
    run is known by its last report, half a second before its end.
    """

    def __init__(self) -> None:
        self._living: dict[int, Snapshot] = {}
        self._gone = _Gone()

    def told(self, number: int, snapshot: Snapshot) -> None:
        """This is how a worker stands."""
        self._living[number] = snapshot

    def ended(self, number: int, settled: Tally | None = None) -> None:
        """A worker tells no more. `settled`: what it had settled; None where all that it told holds good."""
        last = self._living.pop(number, _UNHEARD)
        gone = self._gone
        gone.done += last.done if settled is None else settled
        gone.this_run += last.this_run
        gone.by_server.update(last.by_server)
        for view in last.servers:
            gone.succeeded[view.server] += view.succeeded
            gone.failed[view.server] += view.failed
            gone.evictions[view.server] += view.evictions

    def view(self, phase: Phase, rows: int, earlier: Tally, seconds: float) -> Snapshot:
        """The whole run. `earlier` is what the shards settled by earlier runs add up to."""
        living = [self._living[number] for number in sorted(self._living)]
        by_server = Counter(self._gone.by_server)
        for snapshot in living:
            by_server.update(snapshot.by_server)
        waiting_for = {model for snapshot in living for model in snapshot.waiting_for}
        return Snapshot(
            phase=phase,
            rows=rows,
            done=_sum([earlier, self._gone.done, *(snapshot.done for snapshot in living)]),
            this_run=_sum([self._gone.this_run, *(snapshot.this_run for snapshot in living)]),
            in_flight=sum(snapshot.in_flight for snapshot in living),
            rows_per_s=sum(snapshot.rows_per_s for snapshot in living),
            tokens_per_s=sum(snapshot.tokens_per_s for snapshot in living),
            seconds=seconds,
            obstacle=next((each.obstacle for each in living if each.obstacle), None),
            waiting_for=tuple(sorted(waiting_for, key=lambda model: model or "")),
            servers=self._servers(living),
            by_server=dict(by_server),
        )

    def _servers(self, living: Sequence[Snapshot]) -> tuple[ServerView, ...]:
        views: dict[str, list[ServerView]] = {}
        for snapshot in living:
            for view in snapshot.servers:
                views.setdefault(view.server, []).append(view)
        return tuple(self._server(views[server], len(living)) for server in sorted(views))

    def _server(self, views: Sequence[ServerView], workers: int) -> ServerView:
        """One server as all see it: where they differ, as the one that it is out of rotation for."""
        odd = next((view for view in views if view.state != State.ACTIVE.value), views[0])
        alike = sum(view.state == odd.state for view in views)
        faults = [view for view in views if view.last_fault_ago_s is not None]
        latest = min(faults, key=lambda view: view.last_fault_ago_s or 0.0, default=odd)
        name = odd.server
        return replace(
            odd,
            reason=odd.reason if alike == workers else f"{odd.reason} ({alike} of {workers} workers)",
            in_flight=sum(view.in_flight for view in views),
            limit=sum(view.limit for view in views),
            succeeded=sum(view.succeeded for view in views) + self._gone.succeeded[name],
            failed=sum(view.failed for view in views) + self._gone.failed[name],
            evictions=sum(view.evictions for view in views) + self._gone.evictions[name],
            last_fault=latest.last_fault,
            last_fault_ago_s=latest.last_fault_ago_s,
        )


_UNHEARD = Snapshot(Phase.STARTING, 0, Tally(), Tally())
"""Of a worker that ended before it told anything."""


def _sum(tallies: Iterable[Tally]) -> Tally:
    return sum(tallies, Tally())
