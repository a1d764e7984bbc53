"""`dispatcher nodes`."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dispatcher.cli.figures import count, duration, rate
from dispatcher.cli.remote import URL_DEFAULT, ApiKey, Json, Url, act, print_json

if TYPE_CHECKING:
    from dispatcher.cli.connection import Connection


def nodes(url: Url = URL_DEFAULT, api_key: ApiKey = None, *, json: Json = False) -> None:
    """Show each node of the service: its state, requests in flight, shards it holds, jobs it drives."""

    def show(service: "Connection") -> None:
        answer = service.get("/nodes")
        if json:
            print_json(answer)
        else:
            _print_table(answer["data"])

    act(url, api_key, show)


def _print_table(found: list[Mapping[str, Any]]) -> None:
    names = [f"{each['host']} {each['pid']}" for each in found]
    width = max(map(len, names), default=0)
    for name, each in zip(names, found, strict=True):
        line = f"{name:<{width}}  {_state(each):<18} {_work(each)}  dispatcher {each['version']}"
        sys.stdout.write(f"{line}\n")


def _state(node: Mapping[str, Any]) -> str:
    silent = node["state"] == "silent"
    return f"silent for {duration(node['silent_s'])}" if silent else str(node["state"])


def _work(node: Mapping[str, Any]) -> str:
    in_flight, shards, jobs = (count(node[name]) for name in ("in_flight", "shards", "jobs"))
    return f"{in_flight:>7} in flight {shards:>7} shards {jobs:>5} jobs {rate(node['rows_per_s']):>8} rows/s"
