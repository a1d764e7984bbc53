"""The settings as a worker is given them, and how many workers they ask for."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import SecretStr
from pydantic.main import IncEx

from dispatcher.app.sources import check_sources
from dispatcher.config import Config
from dispatcher.config.settings import WORKERS_MAX
from dispatcher.errors import ConfigError, Fault

NOT_FOR_WORKERS: Mapping[str, IncEx | bool] = {
    "api": True,
    "storage": True,
    "discovery": {"registration"},
}
"""What is the service's."""


def packed(config: Config) -> Mapping[str, Any]:
    """Every setting that a worker needs, as plain values, keys included: for its eyes only."""
    tree = config.model_dump(mode="python", exclude=NOT_FOR_WORKERS)
    plain: Mapping[str, Any] = _plain(tree)
    return plain


def unpacked(values: Mapping[str, Any]) -> Config:
    """The settings that were packed."""
    return Config.model_validate(values)


def worker_count(config: Config) -> int:
    """How many processes are to send.

    Raises ConfigError where there would be more of them than permits at a server: each needs one there.
    """
    wanted = config.run.workers
    if wanted == "auto":
        cores = len(os.sched_getaffinity(0))
        return max(1, min(cores, WORKERS_MAX, *(limit for _, limit in _fixed_limits(config))))
    for where, limit in _fixed_limits(config) if wanted > 1 else ():
        if limit < wanted:
            why = f"a worker needs a permit at each server, and {where} is {limit}"
            raise ConfigError((Fault("run.workers", f"must be at most {limit}: {why}"),))
    return wanted


def _fixed_limits(config: Config) -> Iterator[tuple[str, int]]:
    """Limits that are fixed, and whose they are."""
    if config.pool.limit != "auto":
        yield "pool.limit", config.pool.limit
    for source in check_sources(config):
        for server in source.servers:
            if server.limit is not None:
                yield f"the limit of {server.id}", server.limit
    for entry in config.discovery.dns or ():
        if entry.limit is not None:
            yield f"the limit of {entry.url}", entry.limit


def _plain(value: Any) -> Any:
    match value:
        case SecretStr():
            return value.get_secret_value()
        case Mapping():
            return {str(key): _plain(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(each) for each in value]
        case os.PathLike():
            return os.fspath(value)
        case _:
            return value
