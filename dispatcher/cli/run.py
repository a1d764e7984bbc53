"""`dispatcher run`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

_Path = Path | None
_Text = str | None
_Flag = bool | None


def run(  # noqa: PLR0913, PLR0917  # one parameter for each flag is how typer is told of them
    input: Annotated[str, typer.Argument(help="JSON lines of requests; .gz, .zst, or - for standard input.")],  # noqa: A002
    output: Annotated[_Path, typer.Option("-o", "--output", help="Where successes go.")] = None,
    errors: Annotated[
        _Path, typer.Option(help="Where failures go. Default: <output stem>.errors.jsonl.")
    ] = None,
    server: Annotated[
        list[str] | None,
        typer.Option(help="A server's URL, or a range like http://gpu[01-16]:8000. Repeatable."),
    ] = None,
    servers_file: Annotated[_Path, typer.Option(help="A file of servers, re-read when it changes.")] = None,
    model: Annotated[_Text, typer.Option(help="The model for rows that name none.")] = None,
    model_override: Annotated[_Text, typer.Option(help="The model for every row.")] = None,
    api_key: Annotated[
        _Text, typer.Option(help="For the servers. Better: the variable DISPATCHER_API_KEY.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="A fixed number of requests in flight per server. Default: learned.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(help="Attempts that count against a row. Default: 3.")
    ] = None,
    request_timeout: Annotated[
        float | None, typer.Option(help="Seconds for one attempt. Default: none.")
    ] = None,
    wait_for_servers: Annotated[
        float | None, typer.Option(help="Seconds to wait while no server is usable. Default: for ever.")
    ] = None,
    shard_size: Annotated[int | None, typer.Option(help="Rows leased at a time. Default: 256.")] = None,
    state_dir: Annotated[
        _Path, typer.Option(help="What makes the run resumable. Default: <output>.state.")
    ] = None,
    restart: Annotated[_Flag, typer.Option("--restart", help="Throw away an earlier run's answers.")] = None,
    retry_failed: Annotated[
        _Flag, typer.Option("--retry-failed", help="Send an earlier run's failed rows again.")
    ] = None,
    keep_state: Annotated[_Flag, typer.Option("--keep-state", help="Keep the state of a success.")] = None,
    on_invalid: Annotated[
        _Text, typer.Option(help="fail, or skip lines that are no requests. Default: fail.")
    ] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Serve Prometheus metrics on this port.")] = None,
    log_format: Annotated[_Text, typer.Option(help="console or json. Default: console.")] = None,
    quiet: Annotated[_Flag, typer.Option("--quiet", help="Warnings and errors only.")] = None,
    config: Annotated[_Path, typer.Option(help="A YAML file with any of the settings.")] = None,
) -> None:
    """Answer every row of a JSON lines file in OpenAI batch format, on many vLLM servers.

    Run the same command again after any kind of stop, and it goes on where it was.
    """
    flags = {
        "servers": server or None,
        "api_key": api_key,
        "discovery.file": servers_file,
        "dispatch.max_attempts": max_attempts,
        "dispatch.request_timeout_s": request_timeout,
        "pool.limit": concurrency,
        "pool.wait_for_servers_s": wait_for_servers,
        "queue.shard_size": shard_size,
        "telemetry.metrics_port": metrics_port,
        "telemetry.log_format": log_format,
        "run.output": output,
        "run.errors": errors,
        "run.state_dir": state_dir,
        "run.model": model,
        "run.model_override": model_override,
        "run.on_invalid": on_invalid,
        "run.restart": restart,
        "run.retry_failed": retry_failed,
        "run.keep_state": keep_state,
        "run.quiet": quiet,
    }
    from dispatcher.cli.job import run_job  # noqa: PLC0415  # takes a second: `--help` need not wait for it

    raise typer.Exit(run_job(config, nested(flags), input))


def nested(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Flags that were given, as a tree: `{"pool.limit": 8}` -> `{"pool": {"limit": 8}}`."""
    tree: dict[str, Any] = {}
    for name, value in flags.items():
        if value is not None:
            *sections, leaf = name.split(".")
            place = tree
            for section in sections:
                place = place.setdefault(section, {})
            place[leaf] = str(value) if isinstance(value, Path) else value
    return tree
