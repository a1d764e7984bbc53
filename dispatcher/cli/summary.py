"""What a run came to, in words."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import structlog

from dispatcher.app.run import Summary
from dispatcher.app.snapshot import Snapshot
from dispatcher.cli.figures import count, duration, rate, share

if TYPE_CHECKING:
    from dispatcher.app.steps import StepsSummary


def lines(summary: Summary) -> Iterator[str]:
    """The summary for a person."""
    snapshot = summary.snapshot
    yield f"{_verdict(summary)}: {_counts(snapshot)}"
    if summary.rejected:
        yield f"  {count(summary.rejected)} input lines were no requests: {summary.files.rejected}"
    yield from _errors(snapshot)
    if not summary.sent_nothing:
        yield from _this_run(summary)
    yield from _whereabouts(summary)


def lines_of_steps(summary: "StepsSummary") -> Iterator[str]:
    """The summary of several steps for a person."""
    for name, step in summary.steps:
        yield f"step {name}, {_verdict(step)}: {_counts(step.snapshot)}"
        yield from _errors(step.snapshot)
        if not step.sent_nothing:
            yield from _this_run(step)
    if not summary.steps:
        yield f"finished before: {_counts(summary.snapshot)}"
    if not summary.finished:
        yield f"  the state is in {summary.state}; run the same command to go on"
        return
    yield f"  output {summary.output}"
    if summary.exit_code:
        yield "  send the failed rows again with --retry-failed"


def log_of_steps(summary: "StepsSummary") -> None:
    """The summary of several steps for a machine: one entry each, or one where all were finished before."""
    for name, step in summary.steps:
        log(step, step=name)
    if not summary.steps:
        done = summary.snapshot.done
        structlog.get_logger("dispatcher.run").info(
            "run_finished",
            rows=summary.snapshot.rows,
            succeeded=done.succeeded,
            failed=done.failed,
            output=summary.output,
            exit_code=summary.exit_code,
        )


def _verdict(summary: Summary) -> str:
    if not summary.finished:
        return "stopped"
    return "finished before" if summary.sent_nothing else "finished"


def _counts(snapshot: Snapshot) -> str:
    done = snapshot.done
    left = f", {count(snapshot.left)} left" if snapshot.left else ""
    return (
        f"{count(done.succeeded)} of {count(snapshot.rows)} rows succeeded, {count(done.failed)} failed{left}"
    )


def _errors(snapshot: Snapshot) -> Iterator[str]:
    for code, number in sorted(snapshot.done.errors.items(), key=lambda item: -item[1]):
        yield f"  {code:<20} {count(number):>12}"


def _this_run(summary: Summary) -> Iterator[str]:
    snapshot, tally = summary.snapshot, summary.snapshot.this_run
    rows = tally.succeeded + tally.failed
    seconds = max(snapshot.seconds, 1e-3)
    yield (
        f"  this run: {count(rows)} rows in {duration(seconds)} ({rate(rows / seconds)} rows/s), "
        f"{count(tally.prompt_tokens)} prompt and {count(tally.completion_tokens)} generated tokens"
    )
    for server, number in sorted(snapshot.by_server.items()):
        yield f"  {server:<40} {count(number):>12} rows {share(number, tally.succeeded):>8}"


def _whereabouts(summary: Summary) -> Iterator[str]:
    files = summary.files
    if not summary.finished:
        yield f"  the state is in {files.state}; run the same command to go on"
        return
    yield f"  output {files.output_name or files.output}"
    if summary.snapshot.done.failed:
        if files.errors != files.output:
            yield f"  errors {files.errors}"
        yield "  send the failed rows again with --retry-failed"


def log(summary: Summary, **more: str) -> None:
    """The summary for a machine, with `more` fields."""
    snapshot, done = summary.snapshot, summary.snapshot.done
    structlog.get_logger("dispatcher.run").info(
        "run_finished" if summary.finished else "run_stopped",
        rows=snapshot.rows,
        succeeded=done.succeeded,
        failed=done.failed,
        left=snapshot.left,
        rejected=summary.rejected,
        errors=dict(done.errors),
        prompt_tokens=snapshot.this_run.prompt_tokens,
        completion_tokens=snapshot.this_run.completion_tokens,
        seconds=round(snapshot.seconds, 1),
        by_server=dict(snapshot.by_server),
        output=summary.files.output_name or str(summary.files.output),
        exit_code=summary.exit_code,
        **more,
    )
