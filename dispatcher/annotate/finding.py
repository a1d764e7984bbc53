"""Which files make up a table: those that a name, a directory, a pattern or a URL stands for."""

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

import msgspec

from dispatcher.annotate.formats import Format, format_of, known_suffixes
from dispatcher.annotate.hugging_face import hub_files, is_hub_name
from dispatcher.annotate.table_files import LocalFile, RemoteFile, TableFile, is_remote
from dispatcher.errors import InputError

SPLITS = "dataset_dict.json"
STATE, INFO = "state.json", "dataset_info.json"
"""What `datasets.Dataset.save_to_disk` writes beside its files, and what a dictionary of datasets has.

https://github.com/huggingface/datasets/blob/main/src/datasets/config.py
"""


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of one table, in the order of their rows."""

    name: str
    """As the user gave it."""
    files: tuple[TableFile, ...]
    format: Format


def find_files(name: str, kind: Format | None = None) -> TableFiles:
    """The files of a table: one file, those of a directory, or those that a pattern matches, by path.

    Directories are searched to their depths; in them, files of other kinds are passed over. `s3://bucket/key`
    and its like name an object, or with a slash at the end a folder; `hf://org/name/split` a split of a
    dataset of Hugging Face's. `kind` is what the files are, whatever their names end in. Raises InputError
    where there are none, where a named file is of no known kind, or where files are of different kinds.
    """
    if is_hub_name(name):
        return TableFiles(name, hub_files(name), Format.ARROW)
    files = _candidates(name)
    formats = {file: kind or format_of(PurePosixPath(file.name), packed=True) for file in files}
    known = {file: found for file, found in formats.items() if found is not None}
    if not files:
        raise InputError(f"{name}: no file is there")
    if not known:
        raise InputError(
            f"{name}: no table; a table ends in {known_suffixes()}, the text formats also in .gz. "
            "What it is can be said with --input-format"
        )
    kinds = {found.value for found in known.values()}
    if len(kinds) > 1:
        raise InputError(f"{name}: files of different formats ({', '.join(sorted(kinds))}); name one kind")
    return TableFiles(name, tuple(known), next(iter(known.values())))


def _candidates(name: str) -> Sequence[TableFile]:
    if is_remote(name):
        return [RemoteFile(url) for url in _remote_names(name)]
    path = Path(name)
    if path.is_dir():
        return [LocalFile(found) for found in _saved(path) or _within(path)]
    if path.exists():
        return [LocalFile(path)]
    if glob.has_magic(name):
        matches = glob.iglob(name, recursive=True)  # noqa: PTH207  # Path.glob takes no absolute pattern
        return [LocalFile(path) for path in sorted(map(Path, matches)) if path.is_file()]
    raise InputError(f"{name}: no such file or directory")


def _remote_names(name: str) -> Sequence[str]:
    if not name.endswith("/"):
        return [name]
    from dispatcher.storage.listing import listed  # noqa: PLC0415  # 7 MB that a run on files need not have

    return listed(name)


def _within(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not _hidden(path, folder))


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.relative_to(root).parts)


def _saved(folder: Path) -> list[Path]:
    """The files of a dataset that was saved to disk: caches may lie beside them. None for another folder."""
    if (folder / SPLITS).is_file():
        splits = _described(folder / SPLITS, _Splits).splits
        told = ", ".join(str(folder / split) for split in splits)
        raise InputError(f"{folder}: a dataset with splits; name one of them: {told}")
    if not ((folder / STATE).is_file() and (folder / INFO).is_file()):
        return []
    return [folder / file.filename for file in _described(folder / STATE, _State).data_files]


Kind = TypeVar("Kind")


class _Splits(msgspec.Struct):
    splits: list[str]


class _DataFile(msgspec.Struct):
    filename: str


class _State(msgspec.Struct, rename={"data_files": "_data_files"}):
    data_files: list[_DataFile] = []


def _described(path: Path, kind: type[Kind]) -> Kind:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"{path}: not as datasets.save_to_disk writes it: {error}") from error
