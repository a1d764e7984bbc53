"""How tables are written down, and how that is told: by a file's name's ending."""

from enum import Enum
from pathlib import PurePath


class Format(Enum):
    """How a table is written down."""

    JSONL = "JSON lines"
    CSV = "CSV"
    TSV = "TSV"
    PARQUET = "Parquet"
    ARROW = "Arrow IPC"

    @classmethod
    def named(cls, name: str) -> "Format":
        """By the name that settings have for it: `jsonl`."""
        return cls[name.upper()]


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


def format_of(path: PurePath, *, packed: bool = False) -> Format | None:
    """The format by suffix; None for an unknown one. `packed`: archives of text formats count, too."""
    suffixes = path.suffixes
    if packed and suffixes and suffixes[-1] in PACKED:
        found = SUFFIXES.get(suffixes[-2].lower()) if len(suffixes) > 1 else None
        return found if found in TEXT else None
    return SUFFIXES.get(path.suffix.lower())


def known_suffixes() -> str:
    """For messages."""
    return ", ".join(SUFFIXES)
