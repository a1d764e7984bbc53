"""Several questions about one table, one after the other: each a work of its own on the same staged rows."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import structlog

from dispatcher.annotate.joining import Answered, write_table
from dispatcher.annotate.payloads import TablePayloads
from dispatcher.app.clock import SystemClock
from dispatcher.app.fleet import Fleet
from dispatcher.app.questions import Question, Valid
from dispatcher.app.run import JobRun, Summary
from dispatcher.app.snapshot import Phase, Snapshot
from dispatcher.app.sources import check_sources
from dispatcher.app.state import STEPS, clear_state, open_job, remove_state
from dispatcher.app.table import Table
from dispatcher.app.table_places import Streams
from dispatcher.app.work import Found, Prepared
from dispatcher.config import Config
from dispatcher.errors import ConfigError, Fault, InputError, StateError, StoppedError, StorageError
from dispatcher.model import Job, Shard, Tally
from dispatcher.storage.filesystem import StateLock, ensure_writable

SHARDS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class StepsSummary:
    """How the steps ended that were begun."""

    steps: Sequence[tuple[str, Summary]]
    """Each one's name, and how it ended; none where all had been finished, and the state is gone."""
    snapshot: Snapshot
    """The last of them."""
    output: str
    state: Path
    finished: bool
    """Whether every step is, and the output is in place."""

    @property
    def exit_code(self) -> int:
        """0 all rows succeeded in all steps, 1 finished with failed rows, 3 stopped early and resumable."""
        if not self.finished:
            return 3
        failed = self.snapshot.done.failed or any(summary.exit_code for _, summary in self.steps)
        return 1 if failed else 0


class StepsRun:
    """The steps of one table, run. `execute` it once; the rest is as with a JobRun."""

    def __init__(self, config: Config, table: Table, *, fleet: Fleet | None = None) -> None:
        self.config = config
        self._table = table
        self._fleet = fleet
        self._steps = steps_of(table)
        self._stops = 0
        self._number = 0
        self._run: JobRun | None = None
        self._log = structlog.get_logger("dispatcher.steps")

    async def execute(self) -> StepsSummary:
        """Run one step after the other, until all are finished or until stopped; what is finished is skipped.

        Raises as a JobRun does.
        """
        for step in self._steps:
            if self._own_fleet(step):
                check_sources(step.config)
        self._table.check()
        if (found := await asyncio.to_thread(self._table.found)) is not None:
            return self._summary(
                [], Snapshot(Phase.FINISHED, found.rows, found.tally, Tally()), finished=True
            )
        state = self._table.files.state
        await asyncio.to_thread(_make, state)
        try:
            with StateLock(state):
                if self.config.run.restart:
                    await asyncio.to_thread(clear_state, state)
                if self.config.run.retry_failed:
                    await self._reopen()
                summary = await self._execute()
        except InputError:  # it leaves nothing behind, unless an earlier run's answers are there
            if not any(step.begun for step in self._steps):
                await asyncio.to_thread(remove_state, state)
            raise
        if summary.exit_code == 0 and not self.config.run.keep_state:
            await asyncio.to_thread(remove_state, state)
        return summary

    def snapshot(self) -> Snapshot:
        """The step that runs."""
        if self._run is None:
            return Snapshot(Phase.STARTING, 0, Tally(), Tally())
        name = f"step {self._number + 1} of {len(self._steps)}, {self._steps[self._number].name}"
        return replace(self._run.snapshot(), step=name)

    def request_stop(self) -> bool:
        """As with a JobRun: the step that runs ends as told, and no other begins."""
        self._stops += 1
        return self._run.request_stop() if self._run is not None else self._stops == 1

    async def _execute(self) -> StepsSummary:
        ended: list[tuple[str, Summary]] = []
        for number, step in enumerate(self._steps):
            if self._stops:
                break
            self._number = number
            self._log.info("step_begun", step=step.name, number=number + 1, steps=len(self._steps))
            self._run = JobRun(step.config, step, fleet=None if self._own_fleet(step) else self._fleet)
            summary = await self._run.execute()
            ended.append((step.name, summary))
            step.job = self._run.job
            if not summary.finished:
                break
        if not ended:
            raise StoppedError("stopped before anything was sent; run the same command to go on")
        finished = len(ended) == len(self._steps) and ended[-1][1].finished
        return self._summary(ended, ended[-1][1].snapshot, finished=finished)

    async def _reopen(self) -> None:
        """Make every step owe its failed rows again, the last one first.

        Whenever that is broken off, a later step is never finished while an earlier one is not.
        """
        for step in reversed(self._steps):
            if step.begun:
                config = _with_run(step.config, retry_failed=True)
                async with open_job(config, step, SystemClock(), self._check_stopped):
                    pass

    def _check_stopped(self) -> None:
        if self._stops:
            raise StoppedError("stopped before anything was sent; run the same command to go on")

    def _own_fleet(self, step: "TableStep") -> bool:
        return self._fleet is None or step.config.servers != self.config.servers

    def _summary(
        self, steps: Sequence[tuple[str, Summary]], snapshot: Snapshot, *, finished: bool
    ) -> StepsSummary:
        files = self._table.files
        return StepsSummary(steps, snapshot, self._table.output.place.name, files.state, finished)


class TableStep:
    """A `Work`: one question about the rows that the first of them has staged.

    Args:
        table: The whole.
        question: What is asked.
        earlier: The steps before it, in order.
        is_last: Whether it writes the table.
    """

    def __init__(
        self, table: Table, question: Question, earlier: Sequence["TableStep"], *, is_last: bool
    ) -> None:
        self.name = question.name
        self.config = _with_run(question.config, keep_state=True, restart=False, retry_failed=False)
        self.files = replace(table.files, state=table.files.state / STEPS / question.name)
        self.table = table
        self.question = question
        self.job: Job | None = None
        """Once it has run."""
        self.prepared: Prepared | None = None
        """Once it runs."""
        self._earlier = earlier
        self._is_last = is_last

    @property
    def begun(self) -> bool:
        """Whether an earlier run may have left answers."""
        return self.files.journals.exists()

    @property
    def settings(self) -> Mapping[str, Any]:
        """See Work."""
        return self.table.settings_of(self.question)

    def check(self) -> None:
        """See Work. The whole has been looked at."""

    def found(self) -> Found | None:
        """See Work. The whole has been looked for."""
        return None

    def prepare(self, earlier: Mapping[str, Any] | None, check_stopped: Callable[[], None]) -> Prepared:
        """See Work."""
        if self._earlier:
            self.prepared = PreparedStep(self, self._earlier, earlier)
        else:
            self.prepared = self.table.prepare(earlier, check_stopped)
        return self.prepared

    def has_outputs(self, mark: str | None, tally: Tally) -> bool:
        """See Work."""
        return not self._is_last or self.table.has_outputs(mark, tally)

    def write(self, job: Job, shards: Iterable[Shard], prepared: Prepared) -> None:
        """See Work. Steps before the last have nothing to write."""
        if self._is_last:
            answered = [*(step.answered() for step in self._earlier), self._as_answered(job)]
            mark = self.table.mark(prepared.sha256)
            write_table(shards, self.table.staged, answered, self.table.output, mark)

    def answered(self) -> Answered:
        """What later steps need of it, once it has run."""
        assert self.job is not None, "steps run in order"
        return self._as_answered(self.job)

    def _as_answered(self, job: Job) -> Answered:
        return Answered(job, self.files.journals, self.question.annotator.layout, self.name)


class PreparedStep:
    """A `Prepared`. Raises StateError where `expected` tells of other rows, or of other steps before it."""

    source: Path | None = None

    def __init__(
        self, step: TableStep, earlier: Sequence[TableStep], expected: Mapping[str, Any] | None
    ) -> None:
        self.review = step.question.annotator.review
        self._step = step
        self._earlier = earlier
        first = earlier[0].prepared
        if first is None:  # its failed rows are to be owed again, and nothing is asked yet
            assert expected is not None, "a step is begun when those before it have run"
            self.fingerprint = expected
        else:
            marks = [[step.name, step.answered().job.mark] for step in earlier]
            self.fingerprint = {"sha256": first.sha256, "earlier": marks}
            if expected not in (None, self.fingerprint):
                raise StateError(
                    f"{step.files.state}: its rows were asked when they, or the steps before, were others; "
                    "give the steps as they were, or --restart to throw all answers away"
                )
        self.sha256: str | None = self.fingerprint["sha256"]

    @property
    def payloads(self) -> TablePayloads:
        """See Prepared."""
        step = self._step
        return step.table.payloads_of(step.question, [each.answered() for each in self._earlier])

    def ingest(
        self,
        work_dir: Path,  # noqa: ARG002  # there is nothing to sort
        add_shards: Callable[[list[Shard]], None],
        reject: Callable[[list[int]], None],  # noqa: ARG002  # the first step has found all rows good
    ) -> None:
        """See Prepared. The shards are those of the first step."""
        shards = self._step.table.staged.shards()
        while some := list(islice(shards, SHARDS_AT_ONCE)):
            add_shards(some)


def steps_of(table: Table) -> Sequence[TableStep]:
    """A table's questions as works, in order."""
    steps: list[TableStep] = []
    for question in table.questions:
        is_last = question is table.questions[-1]
        steps.append(TableStep(table, question, tuple(steps), is_last=is_last))
    return steps


def annotation(
    config: Config,
    input_name: str,
    fleet: Fleet | None = None,
    valid: Valid | None = None,
    streams: Streams | None = None,
) -> JobRun | StepsRun:
    """The run of `dispatcher annotate`, of one question or of several. Raises ConfigError and InputError."""
    table = Table(config, input_name, valid, streams)
    if config.run.workers != 1:
        _refuse_workers(table, valid)
    return (StepsRun if table.has_steps else JobRun)(config, table, fleet=fleet)


def _refuse_workers(table: Table, valid: Valid | None) -> None:
    """Raises ConfigError for what only one process can do: others know the settings, and no more."""
    if table.has_steps:
        raise ConfigError((Fault("run.workers", "must be 1 where there are annotate.steps"),))
    if valid is not None:
        raise ConfigError((Fault("run.workers", "must be 1 where answers are looked at by a function"),))


def _with_run(config: Config, **run: bool) -> Config:
    return config.model_copy(update={"run": config.run.model_copy(update=run)})


def _make(state: Path) -> None:
    try:
        ensure_writable(state)
    except StorageError as error:  # nothing has begun: not a run to resume, but a setting to change
        raise StateError(str(error)) from error
