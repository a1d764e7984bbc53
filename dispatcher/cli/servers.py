"""`dispatcher servers`."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dispatcher.cli.figures import count
from dispatcher.cli.remote import URL_DEFAULT, ApiKey, Json, Url, act, print_json

if TYPE_CHECKING:
    from dispatcher.cli.connection import Connection

Server = Annotated[str, typer.Argument(help="The server's URL.")]

app = typer.Typer(help="See and change a service's servers.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_servers(url: Url = URL_DEFAULT, api_key: ApiKey = None, *, json: Json = False) -> None:
    """Show each server: its state and why, requests in flight and its limit, what it has done."""

    def show(service: "Connection") -> None:
        answer = service.get("/servers")
        if json:
            print_json(answer)
        else:
            _print_table(answer["data"])

    act(url, api_key, show)


@app.command()
def add(
    server: Annotated[str, typer.Argument(help="Its URL, or a range like http://gpu[01-16]:8000.")],
    server_api_key: Annotated[
        str | None, typer.Option(envvar="DISPATCHER_SERVER_API_KEY", help="The key that it asks for.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Requests in flight there. Default: learned.")] = None,
    url: Url = URL_DEFAULT,
    api_key: ApiKey = None,
    *,
    json: Json = False,
) -> None:
    """Add a server. It stays when the service restarts."""
    body = {"url": server, "api_key": server_api_key, "limit": limit}

    def change(service: "Connection") -> None:
        _show_change(service.post("/servers", body)["data"], "added", json=json)

    act(url, api_key, change)


@app.command()
def remove(server: Server, url: Url = URL_DEFAULT, api_key: ApiKey = None, *, json: Json = False) -> None:
    """Take away a server that was added. What is open there may end."""

    def change(service: "Connection") -> None:
        service.delete("/servers", url=server)
        _show_change([{"url": server}], "removed", json=json)

    act(url, api_key, change)


@app.command()
def drain(server: Server, url: Url = URL_DEFAULT, api_key: ApiKey = None, *, json: Json = False) -> None:
    """Send a server nothing more, until it is undrained. What is open there may end."""

    def change(service: "Connection") -> None:
        _show_change([service.post("/servers/drain", {"url": server})], "drained", json=json)

    act(url, api_key, change)


@app.command()
def undrain(server: Server, url: Url = URL_DEFAULT, api_key: ApiKey = None, *, json: Json = False) -> None:
    """Give a drained server work again."""

    def change(service: "Connection") -> None:
        _show_change([service.post("/servers/undrain", {"url": server})], "undrained", json=json)

    act(url, api_key, change)


def _show_change(servers: list[Mapping[str, Any]], what: str, *, json: bool) -> None:
    if json:
        print_json({"object": "list", "data": servers})
    else:
        for each in servers:
            sys.stdout.write(f"{what} {each['url']}\n")


def _print_table(servers: list[Mapping[str, Any]]) -> None:
    width = max((len(each["url"]) for each in servers), default=0)
    for each in servers:
        load = f"{each['in_flight']}/{each['limit']}"
        rows = f"{count(each['succeeded'])} rows"
        line = f"{each['url']:<{width}}  {each['state']:<10} {load:>9} {rows:>14}  {each['reason']}"
        sys.stdout.write(f"{line}\n")
