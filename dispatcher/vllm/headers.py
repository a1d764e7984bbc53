"""HTTP headers that the data plane and the control plane share."""

import re
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

from dispatcher.model import ServerSpec

RETRY_AFTER_S_MAX: Final = 600.0
"""However long a server asks for, it is asked again after ten minutes."""

_SECONDS: Final = re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)


def server_headers(server: ServerSpec) -> dict[str, str]:
    """What every request to this server carries: who we are, its key, and its own headers, which win.

    `Accept-Encoding: identity`, because unpacking costs more than a local network saves.
    """
    headers = {"User-Agent": "dispatcher", "Accept": "application/json", "Accept-Encoding": "identity"}
    if server.api_key is not None:
        headers["Authorization"] = f"Bearer {server.api_key}"
    if server.host_name is not None:
        port = urlsplit(server.base_url).port
        headers["Host"] = server.host_name if port is None else f"{server.host_name}:{port}"
    own = {name.lower() for name, _ in server.headers}
    return {name: text for name, text in headers.items() if name.lower() not in own} | dict(server.headers)


def retry_after_s(value: str | None, date: str | None) -> float | None:
    """Read a `Retry-After` header in seconds, at most ten minutes. None where it is absent or nonsense.

    It holds seconds or a date (RFC 9110, section 10.2.3). A date is taken relative to the answer's own
    `Date`, so that clocks which disagree do no harm; without one it cannot be read.
    """
    if value is None:
        return None
    value = value.strip()
    if _SECONDS.fullmatch(value):
        return min(float(value), RETRY_AFTER_S_MAX)
    if date is None:
        return None
    try:
        wait = parsedate_to_datetime(value) - parsedate_to_datetime(date)
    except (ValueError, TypeError, OverflowError):  # TypeError: only one of the two names a time zone
        return None
    return min(max(wait.total_seconds(), 0.0), RETRY_AFTER_S_MAX)
