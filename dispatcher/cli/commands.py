"""The command `dispatcher` and its subcommands."""

import typer

from dispatcher.cli import check, demo, fake_server, run, verify

app = typer.Typer(
    name="dispatcher",
    help="Run very large annotation jobs over many vLLM servers.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("run")(run.run)
app.command("check")(check.check)
app.command("verify")(verify.verify)
app.command("demo")(demo.demo)
app.command("fake-server")(fake_server.fake_server)
