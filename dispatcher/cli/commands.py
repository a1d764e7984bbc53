"""The command `dispatcher` and its subcommands."""

import typer

from dispatcher.cli.annotate import annotate
from dispatcher.cli.check import check
from dispatcher.cli.demo import demo
from dispatcher.cli.fake_server import fake_server
from dispatcher.cli.gc import gc
from dispatcher.cli.jobs_commands import cancel, delete, fetch, pause, resume, status, submit, watch
from dispatcher.cli.key import key
from dispatcher.cli.migrate import migrate
from dispatcher.cli.nodes import nodes
from dispatcher.cli.register import register
from dispatcher.cli.run import run
from dispatcher.cli.serve import serve
from dispatcher.cli.servers import app as servers
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
app.command("annotate")(annotate)
app.command("check")(check)
app.command("verify")(verify)
app.command("demo")(demo)
app.command("fake-server")(fake_server)
app.command("serve")(serve)
for command in (submit, status, watch, pause, resume, cancel, fetch, delete):
    app.command(command.__name__)(command)
app.command("gc")(gc)
app.command("key")(key)
app.command("migrate")(migrate)
app.command("nodes")(nodes)
app.command("register")(register)
app.add_typer(servers, name="servers")
app.command("simulate")(simulate)
