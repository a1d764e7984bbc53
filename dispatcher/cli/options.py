"""The flags of `dispatcher run`: their types and help, and the setting that each one stands for."""

from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final

from typer import Argument, Option

Input = Annotated[str, Argument(help="JSON lines of requests; .gz, .zst, or - for standard input.")]
Output = Annotated[Path | None, Option("-o", "--output", help="Where successes go.")]
Errors = Annotated[Path | None, Option(help="Where failures go. Default: <output stem>.errors.jsonl.")]
Servers = Annotated[
    list[str] | None, Option(help="A server's URL, or a range like http://gpu[01-16]:8000. Repeatable.")
]
ServersFile = Annotated[Path | None, Option(help="A file of servers, re-read when it changes.")]
ServersDns = Annotated[
    list[str] | None,
    Option(
        help="A name whose DNS records are servers: http://vllm:8000, srv+http://vllm.consul. Repeatable."
    ),
]
Model = Annotated[str | None, Option(help="The model for rows that name none.")]
ModelOverride = Annotated[str | None, Option(help="The model for every row.")]
ApiKey = Annotated[str | None, Option(help="For the servers. Better: the variable DISPATCHER_API_KEY.")]
Concurrency = Annotated[
    int | None, Option(help="A fixed number of requests in flight per server. Default: learned.")
]
Workers = Annotated[str | None, Option(help="Processes that send: a number, or auto. Default: 1.")]
MaxAttempts = Annotated[int | None, Option(help="Attempts that count against a row. Default: 3.")]
RequestTimeout = Annotated[float | None, Option(help="Seconds for one attempt. Default: none.")]
WaitForServers = Annotated[
    float | None, Option(help="Seconds to wait while no server is usable. Default: for ever.")
]
ShardSize = Annotated[int | None, Option(help="Rows leased at a time. Default: 256.")]
StateDir = Annotated[Path | None, Option(help="What makes the run resumable. Default: <output>.state.")]
Restart = Annotated[bool | None, Option("--restart", help="Throw away an earlier run's answers.")]
RetryFailed = Annotated[
    bool | None, Option("--retry-failed", help="Send an earlier run's failed rows again.")
]
KeepState = Annotated[bool | None, Option("--keep-state", help="Keep the state of a success.")]
OnInvalid = Annotated[str | None, Option(help="fail, or skip lines that are no requests. Default: fail.")]
MetricsPort = Annotated[int | None, Option(help="Serve Prometheus metrics on this port.")]
LogFormat = Annotated[str | None, Option(help="console or json. Default: console.")]
Quiet = Annotated[bool | None, Option("--quiet", help="Warnings and errors only.")]
ConfigFile = Annotated[Path | None, Option(help="A YAML file with any of the settings.")]

SETTINGS: Final = MappingProxyType(
    {
        "server": "servers",
        "api_key": "api_key",
        "servers_file": "discovery.file",
        "servers_dns": "discovery.dns",
        "max_attempts": "dispatch.max_attempts",
        "request_timeout": "dispatch.request_timeout_s",
        "concurrency": "pool.limit",
        "workers": "run.workers",
        "wait_for_servers": "pool.wait_for_servers_s",
        "shard_size": "queue.shard_size",
        "metrics_port": "telemetry.metrics_port",
        "log_format": "telemetry.log_format",
        "output": "run.output",
        "errors": "run.errors",
        "state_dir": "run.state_dir",
        "model": "run.model",
        "model_override": "run.model_override",
        "on_invalid": "run.on_invalid",
        "restart": "run.restart",
        "retry_failed": "run.retry_failed",
        "keep_state": "run.keep_state",
        "quiet": "run.quiet",
    }
)
"""Each flag's setting, by its place in the tree."""
