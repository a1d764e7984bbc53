"""Datasets of Hugging Face's by their names, by way of the package `datasets`."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from dispatcher.annotate.table_files import LocalFile, TableFile
from dispatcher.errors import InputError

SCHEME = "hf://"
_FORM = "hf://ORG/NAME/SPLIT, or hf://ORG/NAME/CONFIG/SPLIT"


def is_hub_name(name: str) -> bool:
    """Whether this names a dataset: `hf://org/name`, perhaps with a configuration and a split behind it."""
    return name.startswith(SCHEME)


def hub_files(name: str) -> tuple[TableFile, ...]:
    """The Arrow files of a split, which `datasets` has fetched into its cache, or has there already.

    Blocks for as long as that takes. Who may read a private one is what `datasets` says: HF_TOKEN, HF_HOME
    and its other variables hold. Raises InputError.
    """
    organisation, dataset, configuration, split = _parts(name)
    datasets = _package(name)
    try:
        found = datasets.load_dataset(f"{organisation}/{dataset}", configuration, split=split)
    except Exception as error:  # its errors have no common type
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{name}: cannot be loaded: {said}") from error
    if isinstance(found, dict):
        if len(found) > 1:
            raise InputError(f"{name}: has the splits {', '.join(found)}; name one: {name.rstrip('/')}/SPLIT")
        (found,) = found.values()
    return tuple(LocalFile(Path(file["filename"])) for file in found.cache_files)


def _parts(name: str) -> tuple[str, str, str | None, str | None]:
    parts: Sequence[str] = name.removeprefix(SCHEME).removeprefix("datasets/").strip("/").split("/")
    if not all(parts):
        raise InputError(f"{name}: no name of a dataset; it is {_FORM}")
    match parts:
        case [organisation, dataset]:
            return organisation, dataset, None, None
        case [organisation, dataset, split]:
            return organisation, dataset, None, split
        case [organisation, dataset, configuration, split]:
            return organisation, dataset, configuration, split
        case _:
            raise InputError(f"{name}: no name of a dataset; it is {_FORM}")


def _package(name: str) -> ModuleType:
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise InputError(
            f"{name}: needs datasets, which is not installed: pip install 'dispatcher[datasets]'; or name a "
            "folder that save_to_disk has written"
        ) from error
