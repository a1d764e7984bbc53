"""What `dispatcher gc` does, and how it says so."""

import asyncio
import os
import sys
from pathlib import Path

from dispatcher.app.collecting import collect
from dispatcher.cli.exits import Exit, exit_for, tell
from dispatcher.config import load_config
from dispatcher.errors import DispatcherError
from dispatcher.jobs.garbage import Collected


def run_collection(config_path: Path | None, *, dry_run: bool) -> Exit:
    """Remove what belongs to nothing, and say how much that was."""
    try:
        config = load_config(config_path, {}, os.environ)
        collected, uploads = asyncio.run(collect(config, dry_run=dry_run))
    except DispatcherError as error:
        tell(error)
        return exit_for(error)
    sys.stdout.write(_told(collected, uploads, "would be removed" if dry_run else "removed"))
    return Exit.DONE


def _told(collected: Collected, uploads: int | None, what: str) -> str:
    lines = [
        f"{kind.value}: {found.objects:,} {what}, {found.bytes:,} bytes\n"
        for kind, found in collected.found.items()
        if found.objects
    ]
    if uploads:
        lines.append(f"multipart uploads that were cut off: {uploads:,} {what}\n")
    return "".join(lines) or "nothing to remove\n"
