"""What a job has finished so far, written to files while it runs."""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import msgspec

from dispatcher.cli.connection import Connection, ServiceError
from dispatcher.cli.job_lines import ENDED
from dispatcher.cli.submission import Fetched, fetch_job, places_of
from dispatcher.storage.filesystem import replacing


def fetch_partial(service: Connection, job_id: str, output: Path, errors: Path | None) -> Fetched:
    """Write the rows that are finished, in input order; of a job that has ended its files.

    Files of an earlier fetch are replaced: an earlier one's error file is removed where no row has failed.
    Raises ConfigError for two files of one name, StorageError, ServiceError.
    """
    output, errors = places_of(output, errors)
    job = service.get(f"/jobs/{job_id}")
    if job["status"] in ENDED:
        return fetch_job(service, job_id, output, errors)
    with service.lines(f"/jobs/{job_id}/results") as lines:
        succeeded, failed = _write(lines, output, errors)
    written = {path: path if rows else None for path, rows in ((output, succeeded), (errors, failed))}
    for path, kept in written.items():
        if kept is None:
            path.unlink(missing_ok=True)
    return Fetched(job, written[output], written[errors], (succeeded, failed))


class _Line(msgspec.Struct):
    error: msgspec.Raw


def _write(lines: Iterable[bytes], output: Path, errors: Path) -> tuple[int, int]:
    """How many lines went to each."""
    decoder, counts = msgspec.json.Decoder(_Line), {True: 0, False: 0}
    with ExitStack() as stack:
        files = {
            True: stack.enter_context(replacing(output)),
            False: stack.enter_context(replacing(errors)),
        }
        for line in lines:
            try:
                ok = bytes(decoder.decode(line).error) == b"null"
            except msgspec.DecodeError as error:
                raise ServiceError(f"the service sent what is no result: {error}") from error
            files[ok].write(line + b"\n")
            counts[ok] += 1
    return counts[True], counts[False]
