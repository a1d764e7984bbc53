"""A list of server entries, as the configuration holds it, becomes a list of servers."""

from collections.abc import Iterable

from pydantic import SecretStr

from dispatcher.config import ServerEntry, ServerOptions
from dispatcher.model import ServerId, ServerSpec


def expand_servers(
    entries: Iterable[ServerEntry], default_api_key: SecretStr | None = None
) -> list[ServerSpec]:
    """Expand ranges, and count what is listed twice once.

    `default_api_key` is for entries with neither a key nor an Authorization header of their own.
    """
    servers: dict[str, ServerSpec] = {}
    for entry in entries:
        for url in entry.urls:
            servers.setdefault(url, server_at(url, entry, default_api_key))
    return list(servers.values())


def server_at(url: str, entry: ServerOptions, default_api_key: SecretStr | None) -> ServerSpec:
    """The server at this URL, with an entry's settings."""
    headers = tuple((name, value.get_secret_value()) for name, value in entry.headers.items())
    has_own = any(name.lower() == "authorization" for name, _ in headers)
    key = entry.api_key or (None if has_own else default_api_key)
    secret = key.get_secret_value() if key else None
    return ServerSpec(ServerId(url), url, secret, headers, entry.limit)
