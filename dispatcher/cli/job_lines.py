"""A service's job in words."""

from collections.abc import Mapping
from typing import Any

from dispatcher.cli.exits import Exit
from dispatcher.cli.figures import count, duration, rate, share

ENDED = frozenset({"completed", "failed", "cancelled", "expired"})


def job_line(job: Mapping[str, Any]) -> str:
    """Where it stands, in one line."""
    counts = job["counts"]
    done = counts["succeeded"] + counts["failed"]
    parts = [f"{job['id']}  {_state(job):<11}  {count(done)}/{count(counts['total'])} rows"]
    if counts["total"]:
        parts.append(share(done, counts["total"]))
    if counts["failed"]:
        parts.append(f"{count(counts['failed'])} failed")
    if job["status"] not in ENDED:
        parts.append(f"{count(counts['in_flight'])} in flight")
        moves = not job["paused"] and not job["obstacle"]  # the rate is that of the last minute
        if moves and job["rows_per_s"] > 0:
            parts.append(f"{rate(job['rows_per_s'])} rows/s")
        if moves and job["eta_s"] is not None:
            parts.append(f"{duration(job['eta_s'])} left")
    if job["starving"]:
        parts.append("starving")
    if job["obstacle"]:
        parts.append(job["obstacle"])
    return ", ".join(parts)


def exit_of(job: Mapping[str, Any]) -> Exit:
    """What a job's state is as the exit status of a command."""
    if job["status"] not in ENDED:
        return Exit.RESUMABLE
    if job["status"] == "failed":
        return Exit.USAGE
    counts = job["counts"]
    return Exit.DONE if counts["succeeded"] == counts["total"] else Exit.FAILED_ROWS


def problem_lines(job: Mapping[str, Any]) -> list[str]:
    """Why an input was refused; or failed rows by their codes."""
    refused = [f"  line {each.get('line')}: {each.get('message')}" for each in job["validation_errors"]]
    failed = sorted(job["errors"].items(), key=lambda item: -item[1])
    return [*refused, *(f"  {code:<20} {count(number):>12}" for code, number in failed)]


def _state(job: Mapping[str, Any]) -> str:
    return "paused" if job["paused"] and job["status"] not in ENDED else str(job["status"])
