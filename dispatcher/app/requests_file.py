"""The work of `dispatcher run`: a file of requests in, output and error files out."""

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from dispatcher.app.files import answers_mark, check_files, job_files, mark_of
from dispatcher.app.work import Found, Prepared
from dispatcher.config import Config
from dispatcher.errors import StateError
from dispatcher.ingest.payloads import FilePayloads
from dispatcher.ingest.scan import scan
from dispatcher.ingest.sharding import TAIL_SHARE, ScanLimits
from dispatcher.model import Job, Shard, Tally
from dispatcher.results.finalise import finalise
from dispatcher.results.verify import verify
from dispatcher.storage.source import Fingerprint, Source, prepare_source


class RequestsFile:
    """A `Work`.

    Args:
        config: Every setting.
        input_name: A JSON lines file, a `.gz` or `.zst` of one, or `-` for standard input.
        stdin: What `-` reads; None where standard input is not given.
    """

    def __init__(self, config: Config, input_name: str, stdin: BinaryIO | None = None) -> None:
        self.files = job_files(config, input_name)
        self._config = config
        self._stdin = stdin

    @property
    def settings(self) -> Mapping[str, Any]:
        """See Work."""
        run = self._config.run
        return {
            "run.model": run.model,
            "run.model_override": run.model_override,
            "run.on_invalid": run.on_invalid,
            "results.provenance": self._config.results.provenance,
        }

    def check(self) -> None:
        """See Work."""
        check_files(self.files, skip=self._skips)

    def found(self) -> Found | None:
        """The output is there and its state is not: fine if it answers this input, else not ours to touch."""
        files = self.files
        has_state = (files.state / "queue.sqlite").exists()
        if not files.output.exists() or has_state or self._config.run.restart:
            return None
        advice = "Give --restart to replace it, or another output"
        if not Path(files.input).is_file():  # standard input, or a pipe: read once, and gone
            raise StateError(f"{files.output} exists already. {advice}")
        with tempfile.TemporaryDirectory(prefix="dispatcher-") as work:
            errors = files.errors if files.errors.exists() else None
            report = verify(Path(files.input), files.output, errors, work_dir=Path(work))
        marks = {mark_of(files.output), mark_of(files.errors)} - {None}
        if not report.ok or marks - {self._mark_of_input()}:
            raise StateError(
                f"{files.output} exists already, and does not answer {files.input} as it is now under these "
                f"settings (model, provenance). {advice}"
            )
        if report.failed and self._config.run.retry_failed:
            raise StateError(
                f"{files.output} is finished and {files.state} is gone, so its failed rows cannot be sent "
                "again by themselves: make a new input of them, or give --restart to send every row again"
            )
        return Found(report.requests, Tally(report.succeeded, report.failed))

    def prepare(self, earlier: Mapping[str, Any] | None, check_stopped: Callable[[], None]) -> Prepared:
        """See Work."""
        expected = None if earlier is None else Fingerprint(**earlier)
        source = prepare_source(
            self.files.input, self.files.state, self._stdin, expected=expected, check_stopped=check_stopped
        )
        rejected = self.files.rejected if self._skips else None
        size = self._config.queue.shard_size
        shared = self._config.run.workers != 1
        tail_size = max(1, size // TAIL_SHARE) if shared else None
        limits = ScanLimits(shard_size=size, tail_size=tail_size)
        return PreparedFile(source, rejected, limits)

    def has_outputs(self, mark: str | None, tally: Tally) -> bool:
        """See Work."""
        found = mark_of(self.files.output)
        if found not in (None, mark):
            raise StateError(
                f"{self.files.output} exists already, and is not the output of the finished run in "
                f"{self.files.state}. Move it away, or choose another output"
            )
        return self.files.output.exists() and (self.files.errors.exists() or not tally.failed)

    def write(self, job: Job, shards: Iterable[Shard], prepared: Prepared) -> None:  # noqa: ARG002  # journals say all
        """See Work."""
        finalise(job, shards, self.files.journals, self.files.output, self.files.errors)

    @property
    def _skips(self) -> bool:
        return self._config.run.on_invalid == "skip"

    def _mark_of_input(self) -> str:
        with Path(self.files.input).open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return answers_mark(sha256, self.settings)


class PreparedFile:
    """A `Prepared`: a plain file of requests. `rejected` is where lines go that are none; None: they fail."""

    review = None

    def __init__(self, source: Source, rejected: Path | None, limits: ScanLimits) -> None:
        self.payloads = FilePayloads(source.path)
        self.source: Path | None = source.path
        self._path = source.path
        self._fingerprint = source.fingerprint
        self._rejected = rejected
        self._limits = limits

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """See Prepared."""
        return asdict(self._fingerprint)

    @property
    def sha256(self) -> str | None:
        """See Prepared."""
        return self._fingerprint.sha256

    def ingest(
        self, work_dir: Path, add_shards: Callable[[list[Shard]], None], reject: Callable[[list[int]], None]
    ) -> None:
        """See Prepared."""
        skip = self._rejected is not None
        report = scan(
            self._path,
            work_dir,
            add_shards,
            on_repeated=reject if skip else None,
            skip_invalid=skip,
            rejected_path=self._rejected,
            limits=self._limits,
        )
        self._fingerprint = self._fingerprint.with_content(report.sha256)
