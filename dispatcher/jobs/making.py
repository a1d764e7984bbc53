"""The files that a job's outcomes have become."""

from dispatcher.jobs.files import Files
from dispatcher.jobs.kept import Kept
from dispatcher.model import Tally
from dispatcher.queue.keeping import FileRecord

OUTPUT_PURPOSE = "batch_output"


async def made_files(kept: Kept, tally: Tally, files: Files) -> list[FileRecord]:
    """Records of the files that were written, the output first."""
    making, details = kept.details.making, kept.details
    assert making is not None, "its files have no names"
    wanted = ((making.output, "output", tally.succeeded), (making.errors, "error", tally.failed))
    return [
        await files.described(
            name, details.owner, f"{kept.id}_{kind}.jsonl", OUTPUT_PURPOSE, details.output_expires_s
        )
        for name, kind, count in wanted
        if count
    ]
