"""Which files make up a table, and how each kind of file is told: by its name's ending."""

import glob
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from dispatcher.errors import InputError


class Format(Enum):
    """How a table is written down."""

    JSONL = "JSON lines"
    CSV = "CSV"
    TSV = "TSV"
    PARQUET = "Parquet"
    ARROW = "Arrow IPC"


SUFFIXES = {
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".csv": Format.CSV,
    ".tsv": Format.TSV,
    ".parquet": Format.PARQUET,
    ".arrow": Format.ARROW,
    ".feather": Format.ARROW,
}
PACKED = (".gz", ".zst")
"""Archives of text formats. Parquet and Arrow have compression of their own."""
TEXT = (Format.JSONL, Format.CSV, Format.TSV)


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of one table, in the order of their rows."""

    name: str
    """As the user gave it."""
    paths: tuple[Path, ...]
    format: Format


def format_of(path: Path, *, packed: bool = False) -> Format | None:
    """The format by suffix; None for an unknown one. `packed`: archives of text formats count, too."""
    suffixes = path.suffixes
    if packed and suffixes and suffixes[-1] in PACKED:
        found = SUFFIXES.get(suffixes[-2].lower()) if len(suffixes) > 1 else None
        return found if found in TEXT else None
    return SUFFIXES.get(path.suffix.lower())


def known_suffixes() -> str:
    """For messages."""
    return ", ".join(SUFFIXES)


def find_files(name: str) -> TableFiles:
    """The files of a table: one file, those of a directory, or those that a pattern matches, by path.

    Directories are searched to their depths; in them, files of other kinds are passed over. Raises InputError
    where there are none, where a named file is of no known kind, or where files are of different kinds.
    """
    paths = _candidates(name)
    formats = {path: format_of(path, packed=True) for path in paths}
    known = {path: kind for path, kind in formats.items() if kind is not None}
    if not known:
        raise InputError(
            f"{name}: no table; a table ends in {known_suffixes()}, the text formats also in .gz"
        )
    kinds = {kind.value for kind in known.values()}
    if len(kinds) > 1:
        raise InputError(f"{name}: files of different formats ({', '.join(sorted(kinds))}); name one kind")
    return TableFiles(name, tuple(known), next(iter(known.values())))


def _candidates(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        return sorted(found for found in path.rglob("*") if found.is_file() and not _hidden(found, path))
    if path.exists():
        return [path]
    if glob.has_magic(name):
        matches = glob.iglob(name, recursive=True)  # noqa: PTH207  # Path.glob takes no absolute pattern
        return sorted(path for path in map(Path, matches) if path.is_file())
    raise InputError(f"{name}: no such file or directory")


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.relative_to(root).parts)
