"""Jobs of a running service: `submit`, `status`, `watch`, `pause`, `resume`, `cancel`, `fetch`, `delete`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dispatcher.cli.exits import Exit
from dispatcher.cli.job_lines import job_line
from dispatcher.cli.remote import URL_DEFAULT, ApiKey, Json, Url, act, print_json

if TYPE_CHECKING:
    from dispatcher.cli.connection import Connection

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job, as `submit` printed it.")]


def submit(  # noqa: PLR0913, PLR0917  # one parameter for each flag is how typer is told of them
    input: Annotated[str, typer.Argument(help="JSON lines of requests; .gz, .zst, or - for standard input.")],  # noqa: A002
    endpoint: Annotated[
        str | None, typer.Option(help="The route of all rows. Default: the first row's.")
    ] = None,
    window: Annotated[str, typer.Option(help="What is not done by then expires: 90m, 24h, 7d.")] = "24h",
    priority: Annotated[int | None, typer.Option(help="Higher goes first. Default: 0.")] = None,
    weight: Annotated[
        float | None, typer.Option(help="Its share among jobs of one priority. Default: 1.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model for rows that name none.")] = None,
    max_attempts: Annotated[int | None, typer.Option(help="Attempts that count against a row.")] = None,
    metadata: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE, up to 16 of them. Repeatable.")
    ] = None,
    url: Url = URL_DEFAULT,
    api_key: ApiKey = None,
    *,
    json: Json = False,
) -> None:
    """Upload an input and make a job of it: prints the job's ID."""
    extra = {"priority": priority, "weight": weight, "model": model, "max_attempts": max_attempts}
    wanted = {name: value for name, value in extra.items() if value is not None}

    def run(service: "Connection") -> None:
        from dispatcher.cli.submission import submit_job  # noqa: PLC0415  # the SDK takes a second

        batch = submit_job(service, input, endpoint, window, _pairs(metadata or []), wanted)
        if json:
            print_json(batch.model_dump(mode="json"))
        else:
            sys.stdout.write(f"{batch.id}\n")

    act(url, api_key, run)


def status(
    job: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="One job. Default: the latest 100.")
    ] = None,
    url: Url = URL_DEFAULT,
    api_key: ApiKey = None,
    *,
    json: Json = False,
) -> None:
    """Show how far jobs are."""

    def show(service: "Connection") -> None:
        answer = service.get("/jobs") if job is None else service.get(f"/jobs/{path_of(job)}")
        if json:
            print_json(answer)
        else:
            for each in answer["data"] if job is None else [answer]:
                sys.stdout.write(f"{job_line(each)}\n")

    act(url, api_key, show)


def watch(job: JobId, url: Url = URL_DEFAULT, api_key: ApiKey = None, *, json: Json = False) -> None:
    """Follow a job to its end.

    Exit status 0: all rows succeeded; 1: it ended with failed rows; 2: its input was refused; 3: it was not
    waited for, and goes on.
    """

    def follow(service: "Connection") -> Exit:
        from dispatcher.cli.watching import watch_job  # noqa: PLC0415  # as in `run`

        return watch_job(service, path_of(job), json=json)

    act(url, api_key, follow)


def pause(job: JobId, url: Url = URL_DEFAULT, api_key: ApiKey = None, *, json: Json = False) -> None:
    """Send nothing more of a job, until it is resumed. Its time goes on."""
    _change(job, "pause", url, api_key, json=json)


def resume(job: JobId, url: Url = URL_DEFAULT, api_key: ApiKey = None, *, json: Json = False) -> None:
    """Go on with a paused job."""
    _change(job, "resume", url, api_key, json=json)


def cancel(job: JobId, url: Url = URL_DEFAULT, api_key: ApiKey = None, *, json: Json = False) -> None:
    """End a job. What is finished is kept."""
    _change(job, "cancel", url, api_key, json=json)


def fetch(
    job: JobId,
    output: Annotated[Path, typer.Option("-o", "--output", help="Where successes go.")],
    errors: Annotated[
        Path | None, typer.Option(help="Where failures go. Default: <output stem>.errors.jsonl.")
    ] = None,
    url: Url = URL_DEFAULT,
    api_key: ApiKey = None,
    *,
    partial: Annotated[
        bool, typer.Option("--partial", help="Write what is finished, though it has not ended.")
    ] = False,
    json: Json = False,
) -> None:
    """Write a job's output and its failed rows to files, once it has ended.

    Exit status 0: all rows succeeded; 1: some failed; 2: its input was refused; 3: it has not ended.
    """

    def run(service: "Connection") -> Exit:
        from dispatcher.cli.partial import fetch_partial  # noqa: PLC0415  # the SDK takes a second
        from dispatcher.cli.submission import fetch_job  # noqa: PLC0415  # as above

        fetch = fetch_partial if partial else fetch_job
        fetched = fetch(service, path_of(job), output, errors)
        if json:
            print_json(fetched.shown())
        else:
            for line in fetched.lines():
                sys.stdout.write(f"{line}\n")
        return fetched.status

    act(url, api_key, run)


def delete(job: JobId, url: Url = URL_DEFAULT, api_key: ApiKey = None, *, json: Json = False) -> None:
    """Forget a job that has ended. Its output and its failed rows stay in their files."""

    def remove(service: "Connection") -> None:
        answer = service.delete(f"/jobs/{path_of(job)}")
        if json:
            print_json(answer)
        else:
            sys.stdout.write(f"{job}  deleted\n")

    act(url, api_key, remove)


def path_of(job: str) -> str:
    """The ID as a part of a path. Raises BadParameter where it cannot be one."""
    if not job.isascii() or not job.replace("-", "").replace("_", "").isalnum():
        raise typer.BadParameter("is not the ID of a job")
    return job


def _change(job: str, what: str, url: str, api_key: str | None, *, json: bool) -> None:
    def change(service: "Connection") -> None:
        answer = service.post(f"/jobs/{path_of(job)}/{what}")
        if json:
            print_json(answer)
        else:
            sys.stdout.write(f"{job_line(answer)}\n")

    act(url, api_key, change)


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = dict(text.split("=", 1) for text in texts if "=" in text)
    if len(pairs) < len(texts):
        raise typer.BadParameter("must be KEY=VALUE, each key once", param_hint="--metadata")
    return pairs
