"""`dispatcher annotate`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from dispatcher.cli import annotate_options, options
from dispatcher.cli.run import nested


def annotate(  # noqa: PLR0913, PLR0917  # one parameter for each flag is how typer is told of them
    context: typer.Context,
    input: annotate_options.Input,  # noqa: A002  # the word of the usage line
    output: annotate_options.Output = None,
    prompt: annotate_options.Prompt = None,
    system: annotate_options.System = None,
    messages_column: annotate_options.MessagesColumn = None,
    image_columns: annotate_options.ImageColumns = None,
    labels: annotate_options.Labels = None,
    confidence: annotate_options.Confidence = None,
    max_calls: annotate_options.MaxCalls = None,
    schema: annotate_options.Schema = None,
    prefix: annotate_options.Prefix = None,
    max_tokens: annotate_options.MaxTokens = None,
    temperature: annotate_options.Temperature = None,
    top_p: annotate_options.TopP = None,
    seed: annotate_options.Seed = None,
    extra_body: annotate_options.ExtraBody = None,
    validate_retries: annotate_options.ValidateRetries = None,
    drop_invalid: annotate_options.DropInvalid = None,
    keep_reasoning: annotate_options.KeepReasoning = None,
    id_column: annotate_options.IdColumn = None,
    where: annotate_options.Where = None,
    limit: annotate_options.Limit = None,
    columns: annotate_options.Columns = None,
    input_format: annotate_options.InputFormat = None,
    output_format: annotate_options.OutputFormat = None,
    preview: annotate_options.Preview = None,
    verify: annotate_options.Verify = None,
    server: options.Servers = None,
    servers_file: options.ServersFile = None,
    servers_dns: options.ServersDns = None,
    model: options.Model = None,
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
    metrics_port: options.MetricsPort = None,
    log_format: options.LogFormat = None,
    quiet: options.Quiet = None,
    config: options.ConfigFile = None,
) -> None:
    """Ask about every row of a table, and write the table with the answers as columns.

    Run the same command again after any kind of stop, and it goes on where it was.
    """
    raise typer.Exit(_done(context.params, config, input, preview, verify=verify))


def _done(
    flags: Mapping[str, Any], config: Path | None, table: str, preview: int | None, *, verify: bool | None
) -> int:
    """What these flags ask for. Returns the exit code."""
    from dispatcher.cli.table import annotate_table, preview_table, verify_table  # noqa: PLC0415  # as `run` does

    settings = {**options.SETTINGS, **annotate_options.SETTINGS}
    given = nested({setting: flags[flag] for flag, setting in settings.items() if flag in flags})
    if preview is not None:
        return preview_table(config, given, table, preview)
    if verify:
        return verify_table(config, given, table)
    return annotate_table(config, given, table)
