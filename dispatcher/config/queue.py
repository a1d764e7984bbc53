"""Where the shared queue is: a URL as PostgreSQL's own programs take it."""

import re
from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import parse_qsl, unquote

from pydantic import PlainSerializer, PlainValidator

_SCHEMES = ("postgresql://", "postgres://")
_SHAPE = re.compile(
    r"postgres(?:ql)?://(?:(?P<user>[^:@/?#]*)(?::(?P<password>[^:@/?#]*))?@)?"
    r"(?P<hosts>(?:[\w.%-]+|\[[0-9a-fA-F:.]+\])?(?::\d{1,5})?"
    r"(?:,(?:[\w.%-]+|\[[0-9a-fA-F:.]+\])(?::\d{1,5})?)*)"
    r"/(?P<database>[^/?#]+)(?:\?(?P<query>[^#]*))?"
)


@dataclass(frozen=True, slots=True)
class QueueUrl:
    """A PostgreSQL database. It shows its `name` only, wherever it is shown."""

    name: str
    """Without the password, and without what stands after `?`."""
    secret: str = field(repr=False)
    """The whole URL."""
    passwords: frozenset[str] = field(default=frozenset(), repr=False)

    def __str__(self) -> str:
        return self.name

    def without_secrets(self, text: str) -> str:
        """A text of a driver's, unless it repeats a password."""
        shown = not any(password in text for password in self.passwords)
        return text if shown else "is not a URL of a PostgreSQL database"


def queue_url(value: object) -> QueueUrl:
    """Read a URL such as postgresql://user:password@host:5432/database?sslmode=require.

    Several hosts may stand with commas between them. Raises ValueError, which repeats nothing of the URL.
    """
    if isinstance(value, QueueUrl):
        return value
    text = str(value).strip()
    if not text.startswith(_SCHEMES):
        raise ValueError("must begin with postgresql://")
    if not text.isprintable() or " " in text:
        raise ValueError("must not hold spaces or control characters")
    found = _SHAPE.fullmatch(text)
    if found is None:
        raise ValueError(
            "must be like postgresql://user:password@host:5432/database; in a password, write "
            "@ : / ? # % as %40 %3A %2F %3F %23 %25"
        )
    user = f"{found['user']}@" if found["user"] else ""
    query = dict(parse_qsl(found["query"] or ""))
    passwords = {found["password"] or "", unquote(found["password"] or ""), query.get("password", "")}
    name = f"postgresql://{user}{found['hosts']}/{found['database']}"
    return QueueUrl(name, text, frozenset(passwords - {""}))


QueueUrlSetting = Annotated[QueueUrl, PlainValidator(queue_url), PlainSerializer(str)]
