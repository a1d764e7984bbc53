"""Inputs uploaded and outputs fetched with the `openai` package, as any client of the service would."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import openai
from openai.types import Batch

from dispatcher.cli.connection import Connection, ServiceError
from dispatcher.cli.exits import Exit
from dispatcher.cli.job_lines import ENDED, exit_of
from dispatcher.errors import ConfigError, Fault, InputError, StorageError
from dispatcher.storage.filesystem import replacing
from dispatcher.storage.source import given_stdin, prepare_source

HEAD_LINES_MAX = 1000
"""Lines that are looked at for one that says its route."""
HEAD_BYTES_MAX = 64 * 2**20
NO_KEY = "none"
"""What is sent to a service without keys: the package insists on sending one."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What was written, and what it says of the job."""

    job: Mapping[str, Any]
    output: Path | None
    errors: Path | None
    so_far: tuple[int, int] | None = None
    """Rows of each that were written of a job that has not ended."""

    @property
    def status(self) -> Exit:
        """The command's exit status."""
        return exit_of(self.job)

    def shown(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "job": self.job,
            "output": str(self.output) if self.output else None,
            "errors": str(self.errors) if self.errors else None,
        }

    def lines(self) -> Iterator[str]:
        """For a person."""
        counts = self.job["counts"]
        yield f"{self.job['status']}: {counts['succeeded']:,} of {counts['total']:,} rows succeeded"
        if self.so_far is not None:
            yield f"  so far {self.so_far[0]:,} rows, and {self.so_far[1]:,} that failed: it has not ended"
        elif self.job["status"] not in ENDED:
            yield "  not written: it has not ended; --partial writes what is finished"
        if self.output:
            yield f"  output {self.output}"
        if self.errors:
            yield f"  errors {self.errors}"


def submit_job(
    service: Connection,
    input_name: str,
    endpoint: str | None,
    window: str,
    metadata: dict[str, str],
    extra: dict[str, Any],
) -> Batch:
    """Upload an input and make a batch of it.

    `endpoint` is None for the first row's. Raises InputError for an input that cannot be read, ServiceError.
    """
    with (
        tempfile.TemporaryDirectory(prefix="dispatcher-") as work,
        service_errors(service),
        sdk(service) as client,
    ):
        source = prepare_source(input_name, Path(work), given_stdin())
        route = endpoint or _first_route(source.path)
        with source.path.open("rb") as content:  # a path would be read into memory
            file = client.files.create(file=(Path(source.name).name or "input", content), purpose="batch")
        return client.batches.create(
            input_file_id=file.id,
            endpoint=route,  # type: ignore[arg-type]  # we have more routes than OpenAI
            completion_window=window,  # type: ignore[arg-type]  # and more windows
            metadata=metadata or None,
            extra_body=extra,
        )


def fetch_job(service: Connection, job_id: str, output: Path, errors: Path | None) -> Fetched:
    """Write the files of a job that has ended; of any other, nothing.

    Raises ConfigError for two files of one name, StorageError, ServiceError.
    """
    output, errors = places_of(output, errors)
    job = service.get(f"/jobs/{job_id}")
    written: dict[Path, bool] = {}
    with service_errors(service), sdk(service) as client:
        for path, field in ((errors, "error_file_id"), (output, "output_file_id")):
            file_id = job[field] if job["status"] in ENDED else None
            written[path] = file_id is not None
            if file_id is not None:
                _download(client, file_id, path)
    return Fetched(job, output if written[output] else None, errors if written[errors] else None)


def places_of(output: Path, errors: Path | None) -> tuple[Path, Path]:
    """Where both files go. Raises ConfigError for two of one name, StorageError where they cannot be."""
    errors = errors or output.with_name(f"{output.stem}.errors.jsonl")
    if os.path.abspath(errors) == os.path.abspath(output):  # noqa: PTH100  # it need not exist
        raise ConfigError((Fault("--errors", "must be another file than the output"),))
    for path in (output, errors):
        if not path.parent.is_dir():
            raise StorageError(f"{path.parent} is not a directory")
    return output, errors


def sdk(service: Connection) -> openai.OpenAI:
    """The package's client for this service."""
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key=service.api_key or NO_KEY)


@contextmanager
def service_errors(service: Connection) -> Iterator[None]:
    """Turn the package's errors into ServiceError."""
    try:
        yield
    except openai.APIStatusError as error:
        body = error.body if isinstance(error.body, Mapping) else {}
        message = body.get("message") or f"HTTP status {error.status_code}"
        raise ServiceError(f"{service.url} says: {message}") from error
    except openai.OpenAIError as error:
        reason = error.__cause__ or error
        raise ServiceError(f"{service.url} cannot be reached: {reason}") from error


def _download(client: openai.OpenAI, file_id: str, path: Path) -> None:
    with client.files.with_streaming_response.content(file_id) as answer, replacing(path) as file:
        for chunk in answer.iter_bytes():
            file.write(chunk)


class _Line(msgspec.Struct):
    url: str


def _first_route(path: Path) -> str:
    """Where the first row goes. Raises InputError where no row says so; the service would refuse it, too."""
    decoder = msgspec.json.Decoder(_Line)
    with path.open("rb") as lines:
        for _ in range(HEAD_LINES_MAX):
            line = lines.readline(HEAD_BYTES_MAX).removeprefix(b"\xef\xbb\xbf")
            if line.strip():
                try:
                    return decoder.decode(line).url
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    break
            if not line:
                break
    raise InputError(f"{path.name}: the first row has no url; `dispatcher check` says what is wrong")
