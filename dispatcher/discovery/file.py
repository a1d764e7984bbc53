"""A file of servers, read again whenever it changes: what a Slurm job or a cron script can write to."""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from pydantic import SecretStr, TypeAdapter, ValidationError

from dispatcher.config import ServerEntry, ServerList
from dispatcher.config.document import Document, Place, parse_yaml
from dispatcher.config.faults import dotted, explain
from dispatcher.discovery.static import expand_servers
from dispatcher.errors import ConfigError, Fault
from dispatcher.model import ServerSpec
from dispatcher.ports import Clock
from dispatcher.telemetry.logging import get_logger

_Stamp = tuple[int, int, int]
"""When a file was written, its size and its inode: while these stay, it is not read."""


class ServersFile:
    """Servers from a file: one on each line, ranges and `#` comments allowed, or a YAML list (.yaml, .yml).

    While watched, the last good list stays in force until there is another: a missing, unreadable, faulty or
    empty file takes no server away. (Servers that are really gone are found by probing them.) A file counts
    as written when it looks the same on two looks in a row, so a half-written one is not taken for a list.
    """

    def __init__(self, path: Path, default_api_key: SecretStr | None = None) -> None:
        self._path = path
        self._default_api_key = default_api_key
        self._entries: TypeAdapter[tuple[ServerEntry, ...]] = TypeAdapter(ServerList)
        self._servers: list[ServerSpec] = []
        self._read_stamp: _Stamp | None = None
        self._seen_stamp: _Stamp | None = None
        self._complaint: str | None = None
        self._log = get_logger("discovery")

    def read(self) -> list[ServerSpec]:
        """Read the file now; an empty one lists no servers.

        Raises:
            ConfigError: With every fault, by line; or the reason why there is nothing to read.
        """
        stamp = self._stamp()  # before the bytes: what is written after them must be seen as a change
        self._servers = self._parsed()
        self._read_stamp = stamp
        return list(self._servers)

    @property
    def problem(self) -> str | None:
        """Why the last list stays in force, or None."""
        return self._complaint

    async def watch(self, clock: Clock, interval_s: float = 5.0) -> AsyncGenerator[list[ServerSpec], None]:
        """Yield the whole list whenever it has changed; close it (`aclosing`) to stop watching."""
        while True:
            await clock.sleep(interval_s)
            if await asyncio.to_thread(self._refresh):
                yield list(self._servers)

    def _refresh(self) -> bool:
        try:
            servers = self._changed()
        except ConfigError as error:
            self._complain(str(error))
            return False
        self._complaint = None
        if servers is None or servers == self._servers:
            return False
        self._servers = servers
        self._log.info("servers_file_changed", path=str(self._path), servers=len(servers))
        return True

    def _changed(self) -> list[ServerSpec] | None:
        stamp, previous = self._stamp(), self._seen_stamp
        self._seen_stamp = stamp
        if stamp == self._read_stamp or stamp != previous:
            return None
        servers = self._parsed()
        if self._servers and not servers:
            raise ConfigError((Fault(str(self._path), "lists no servers: the last list stays in force"),))
        self._read_stamp = stamp
        return servers

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            self._log.warning("servers_file_unreadable", path=str(self._path), faults=complaint)
        self._complaint = complaint

    def _stamp(self) -> _Stamp:
        try:
            status = self._path.stat()
        except OSError as error:
            raise self._unreadable(error) from error
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _parsed(self) -> list[ServerSpec]:
        document = self._document()
        faults = list(document.faults)
        entries = self._validated(document, faults)
        if faults:
            raise ConfigError(tuple(faults))
        return expand_servers(entries, self._default_api_key)

    def _document(self) -> Document:
        try:
            text = self._path.read_text(encoding="utf-8-sig")
        except OSError as error:
            raise self._unreadable(error) from error
        except UnicodeDecodeError as error:
            raise ConfigError((Fault(str(self._path), "is not UTF-8 text"),)) from error
        is_yaml = self._path.suffix in {".yaml", ".yml"}
        return parse_yaml(text, str(self._path)) if is_yaml else _parse_lines(text)

    def _validated(self, document: Document, faults: list[Fault]) -> Sequence[ServerEntry]:
        """The entries; or none, and more faults. As in the configuration, pydantic's own error ends here."""
        try:
            return self._entries.validate_python(document.content or ())
        except ValidationError as error:
            fields = tuple(ServerEntry.model_fields)
            for place, message in explain(error, lambda _: fields):
                named = f"{dotted(place[1:])} {message}".strip()
                faults.append(Fault(self._where(document, place), named))
            return ()

    def _where(self, document: Document, place: Place) -> str:
        line = document.lines.get(place) or document.lines.get(place[:1])
        return f"{self._path}:{line}" if line else str(self._path)

    def _unreadable(self, error: OSError) -> ConfigError:
        return ConfigError((Fault(str(self._path), f"cannot be read: {error.strerror}"),))


def _parse_lines(text: str) -> Document:
    stripped = (re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines())
    listed = [(number, line) for number, line in enumerate(stripped, 1) if line]
    lines: dict[Place, int] = {(position,): number for position, (number, _) in enumerate(listed)}
    return Document([line for _, line in listed], lines)
