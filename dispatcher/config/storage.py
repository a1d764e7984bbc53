"""Where the service keeps what it is given and what it makes, and for how long."""

import re
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from dispatcher.config.values import Name, Seconds, Settings

OBJECT_SCHEMES: Final = frozenset({"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss"})
"""Of URLs that name an object store, as obstore has them."""
_WITH_ACCOUNT: Final = ("abfs", "abfss")
"""As Azure writes them: abfss://container@account.dfs.core.windows.net/path."""
_DAY = 86_400
_DIRECTORY: Final = "dispatcher-data"


def _place(text: str) -> str:
    """Refuse what is neither a path nor a store's URL, without repeating it: people put secrets there."""
    if "://" not in text:
        return text
    parts = urlsplit(text)
    if parts.scheme not in OBJECT_SCHEMES | {"file"}:
        raise ValueError("must be a directory, or begin with s3://, gs://, az:// or file:///")
    account = "@" if parts.scheme in _WITH_ACCOUNT else ""
    if "@" in parts.netloc.replace(account, "", 1) or ":" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("must not hold credentials or options: they come from the environment")
    named = rf"[a-z0-9]+://[A-Za-z0-9._{account}-]+(/[A-Za-z0-9._/=-]*)?"
    wanted = r"file:///.+" if parts.scheme == "file" else named
    if not re.fullmatch(wanted, text):
        raise ValueError("must be like s3://bucket/prefix, or file:///directory")
    return text.rstrip("/")


class StorageSettings(Settings):
    """Where the service keeps uploads, its queue, journals and outputs, and how long it keeps them."""

    url: Annotated[Name, AfterValidator(_place)] | None = None
    """A directory of this machine; or a store that nodes share: s3://, gs://, az://, or file:/// where it is
    a directory. None: `directory`."""
    directory: Path | None = None
    """With a store: what this node needs by itself. Nothing of it is needed again but the queue, where that
    is a file. None: `dispatcher-data` in the working directory."""
    files_kept_s: Annotated[Seconds, Field(le=3660 * _DAY)] | None = None
    """How long a file is kept that does not say so itself. None: until it is deleted."""
    journals_kept_s: Annotated[Seconds, Field(le=3660 * _DAY)] | None = None
    """How long the journals and the input of a job that has ended are kept, for `--retry-failed`. None: until
    its files are deleted."""
    orphans_kept_s: Annotated[Seconds, Field(ge=600, le=366 * _DAY)] = float(_DAY)
    """How old something in a store must be that belongs to nothing before it is taken for what a killed node
    left. Above what an upload takes."""

    @field_validator("directory")
    @classmethod
    def _is_one_place(cls, directory: Path | None, info: ValidationInfo) -> Path | None:
        url = info.data.get("url")
        if directory is not None and url is not None and "://" not in url:
            raise ValueError("must not be set where storage.url is a directory already")
        return directory

    @property
    def shared(self) -> str | None:
        """The URL of the store that nodes share, or None."""
        return self.url if self.url is not None and "://" in self.url else None

    @property
    def local(self) -> Path:
        """The directory of this machine."""
        own = self.directory or _DIRECTORY
        return Path(own if self.url is None or self.shared is not None else self.url)
