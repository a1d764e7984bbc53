"""What `dispatcher migrate` does, and how it says so."""

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from dispatcher.app.clock import SystemClock
from dispatcher.app.extras import require_postgresql
from dispatcher.cli.exits import Exit, tell
from dispatcher.config import Config, QueueUrl, load_config
from dispatcher.errors import ConfigError, DispatcherError, Fault
from dispatcher.telemetry.logging import configure_logging


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for."""

    check: bool
    sql: bool
    grant_to: str | None


def run_migration(config_path: Path | None, wanted: Wanted) -> Exit:
    """Migrate, or only look. Status 1: `--check` has found something to do."""
    try:
        config = load_config(config_path, {}, os.environ)
    except DispatcherError as error:
        tell(error)
        return Exit.USAGE
    configure_logging(config.telemetry.log_format, config.telemetry.log_level, sys.stderr)
    return migrate_with(config, wanted)


def migrate_with(config: Config, wanted: Wanted) -> Exit:
    """The same, with these settings."""
    try:
        if (url := config.queue.url) is None:
            raise ConfigError((Fault("queue.url", "is not set; an embedded queue needs no migration"),))
        if wanted.check and (wanted.sql or wanted.grant_to is not None):
            raise ConfigError((Fault("--check", "changes nothing: it takes neither --sql nor --grant-to"),))
        require_postgresql()
        return asyncio.run(_migrate(url, wanted))
    except DispatcherError as error:
        tell(error)
        return Exit.USAGE


async def _migrate(url: QueueUrl, wanted: Wanted) -> Exit:
    from dispatcher.queue.migrating import open_migration  # noqa: PLC0415
    from dispatcher.queue.migrations import HEAD  # noqa: PLC0415  # an extra, which most do without

    async with open_migration(url, SystemClock()) as migration:
        if wanted.sql:
            sys.stdout.write(await migration.sql(wanted.grant_to))
            return Exit.DONE
        if wanted.check:
            revision = await migration.revision()
            behind = revision is None or revision < HEAD
            _say(f"{url}: {_revision(revision)}; {_needs(revision, HEAD)}")
            return Exit.FAILED_ROWS if behind else Exit.DONE
        migrated = await migration.run()
        if migrated.before != migrated.after:
            _say(f"{url}: migrated from {_revision(migrated.before)} to {_revision(migrated.after)}")
        else:
            _say(f"{url}: {_revision(migrated.before)}; nothing to do")
        if wanted.grant_to is not None:
            await migration.grant(wanted.grant_to)
            _say(f"{url}: {wanted.grant_to} may work on the queue")
    return Exit.DONE


def _revision(revision: str | None) -> str:
    return "no tables" if revision is None else f"revision {revision}"


def _needs(revision: str | None, head: str) -> str:
    if revision is None or revision < head:
        return f"this dispatcher needs revision {head}: run `dispatcher migrate`"
    return "nothing to do" if revision == head else f"newer than this dispatcher, which knows {head}"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
