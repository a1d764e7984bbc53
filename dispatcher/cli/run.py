"""`dispatcher run`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from dispatcher.cli import options


def run(  # noqa: PLR0913, PLR0917  # one parameter for each flag is how typer is told of them
    context: typer.Context,
    input: options.Input,  # noqa: A002  # the word of the usage line
    output: options.Output = None,
    errors: options.Errors = None,
    server: options.Servers = None,
    servers_file: options.ServersFile = None,
    servers_dns: options.ServersDns = None,
    model: options.Model = None,
    model_override: options.ModelOverride = None,
    api_key: options.ApiKey = None,
    concurrency: options.Concurrency = None,
    workers: options.Workers = None,
    max_attempts: options.MaxAttempts = None,
    request_timeout: options.RequestTimeout = None,
    wait_for_servers: options.WaitForServers = None,
    shard_size: options.ShardSize = None,
    state_dir: options.StateDir = None,
    restart: options.Restart = None,
    retry_failed: options.RetryFailed = None,
    keep_state: options.KeepState = None,
    on_invalid: options.OnInvalid = None,
    metrics_port: options.MetricsPort = None,
    log_format: options.LogFormat = None,
    quiet: options.Quiet = None,
    config: options.ConfigFile = None,
) -> None:
    """Answer every row of a JSON lines file in OpenAI batch format, on many vLLM servers.

    Run the same command again after any kind of stop, and it goes on where it was.
    """
    from dispatcher.cli.job import run_job  # noqa: PLC0415  # takes a second: `--help` need not wait for it

    given = {setting: context.params[flag] for flag, setting in options.SETTINGS.items()}
    raise typer.Exit(run_job(config, nested(given), input))


def nested(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Flags that were given, as a tree: `{"pool.limit": 8}` -> `{"pool": {"limit": 8}}`."""
    tree: dict[str, Any] = {}
    for name, value in flags.items():
        if value not in (None, [], ()):
            *sections, leaf = name.split(".")
            place = tree
            for section in sections:
                place = place.setdefault(section, {})
            place[leaf] = str(value) if isinstance(value, Path) else value
    return tree
