"""What a run works on: an input that becomes requests, and outcomes that become files."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dispatcher.app.files import JobFiles
from dispatcher.model import Job, Shard, Tally
from dispatcher.ports import Payloads, Review


class Prepared(Protocol):
    """An input that is ready to be read."""

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """What the input is known by again, as JSON. It may say more once `ingest` has read everything."""

    @property
    def sha256(self) -> str | None:
        """Of the input's content, in hex; None until `ingest` has read it."""

    @property
    def source(self) -> Path | None:
        """The plain file that the requests are read from; None where they are made of a table."""

    @property
    def payloads(self) -> Payloads:
        """Where a shard's requests come from, once the input has been read."""

    @property
    def review(self) -> Review | None:
        """Looks at answers before they count; None where every answer does."""

    def ingest(
        self, work_dir: Path, add_shards: Callable[[list[Shard]], None], reject: Callable[[list[int]], None]
    ) -> None:
        """Read the input once and cut it into shards. Blocks. Raises InputError with what is wrong in it."""


@dataclass(frozen=True, slots=True)
class Found:
    """What an earlier run, whose state is gone, has left finished."""

    rows: int
    tally: Tally


class Work(Protocol):
    """One input with what is to be made of it. Every method blocks: run it in a thread."""

    @property
    def files(self) -> JobFiles:
        """Where it is read and written."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that change what answers look like, or which rows there are: a run keeps them."""

    def check(self) -> None:
        """Tell before hours of reading what would be wrong after them. Raises ConfigError and StateError."""

    def found(self) -> Found | None:
        """What is finished already, without a state; None where there is work. Raises StateError."""

    def prepare(self, earlier: Mapping[str, Any] | None, check_stopped: Callable[[], None]) -> Prepared:
        """Make the input ready. `earlier` is its fingerprint of an earlier run: StateError for another."""

    def has_outputs(self, mark: str | None, tally: Tally) -> bool:
        """Whether a finished job's files are in place. Raises StateError for another job's output."""

    def write(self, job: Job, shards: Iterable[Shard], prepared: Prepared) -> None:
        """Write the files from the journals, whole or not at all."""
