"""`dispatcher serve`."""

import typer

from dispatcher.cli import options


def serve(
    server: options.Servers = None,
    servers_file: options.ServersFile = None,
    servers_dns: options.ServersDns = None,
    config: options.ConfigFile = None,
) -> None:
    """Serve jobs and live requests over HTTP, on many vLLM servers, until stopped.

    A restart continues every job.
    """
    from dispatcher.cli.run import nested  # noqa: PLC0415  # as below
    from dispatcher.cli.service import run_service  # noqa: PLC0415  # takes a second: `--help` need not wait for it

    flags = {"servers": server, "discovery.file": servers_file, "discovery.dns": servers_dns}
    raise typer.Exit(run_service(config, nested(flags)))
