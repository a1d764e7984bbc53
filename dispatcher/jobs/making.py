"""The files that a job's outcomes have become."""

from dispatcher.jobs.files import Files
from dispatcher.jobs.kept import Kept
from dispatcher.jobs.places import Places
from dispatcher.model import Tally
from dispatcher.queue.keeping import FileRecord

OUTPUT_PURPOSE = "batch_output"


def made_files(kept: Kept, tally: Tally, files: Files, places: Places) -> list[FileRecord]:
    """Records of the files that were written, the output first. An output without a line is removed."""
    making, details = kept.details.making, kept.details
    assert making is not None, "its files have no names"
    if not tally.succeeded:
        places.file(making.output).unlink(missing_ok=True)
    wanted = ((making.output, "output", tally.succeeded), (making.errors, "error", tally.failed))
    return [
        files.described(
            name, details.owner, f"{kept.id}_{kind}.jsonl", OUTPUT_PURPOSE, details.output_expires_s
        )
        for name, kind, count in wanted
        if count
    ]
