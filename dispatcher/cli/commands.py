"""The command `dispatcher` and its subcommands."""

import typer

from dispatcher.cli.check import check
from dispatcher.cli.demo import demo
from dispatcher.cli.fake_server import fake_server
from dispatcher.cli.run import run
from dispatcher.cli.serve import serve
from dispatcher.cli.simulate import simulate
from dispatcher.cli.verify import verify

app = typer.Typer(
    name="dispatcher",
    help="Run very large annotation jobs over many vLLM servers.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("run")(run)
app.command("check")(check)
app.command("verify")(verify)
app.command("demo")(demo)
app.command("fake-server")(fake_server)
app.command("serve")(serve)
app.command("simulate")(simulate)
