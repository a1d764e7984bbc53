"""`dispatcher key`."""

import secrets
import sys
from typing import Annotated, Literal

import typer

from dispatcher.cli.exits import Exit

SECRET_BYTES = 32
"""More than can ever be guessed, so that a plain SHA-256 keeps it: `docs/decisions/0014`."""


def key(
    name: Annotated[str, typer.Argument(help="Whose it is: stands in logs, and owns jobs.")],
    role: Annotated[Literal["user", "admin"], typer.Option(help="What its holder may do.")] = "user",
    *,
    for_servers: Annotated[
        bool, typer.Option("--for-servers", help="Make a token for `dispatcher register` instead.")
    ] = False,
) -> None:
    """Make an API key: it goes to standard output, its configuration entry to standard error.

    The key is shown this once and kept nowhere; the configuration holds its hash only.
    """
    from pydantic import ValidationError  # noqa: PLC0415  # as below

    from dispatcher.api.keyring import digest_of  # noqa: PLC0415  # takes a second: `--help` need not wait
    from dispatcher.config import Hashed  # noqa: PLC0415

    secret = f"{'reg' if for_servers else 'key'}-{secrets.token_urlsafe(SECRET_BYTES)}"
    try:
        entry = Hashed(name=name, hash=f"sha256:{digest_of(secret).hex()}")
    except ValidationError as error:
        sys.stderr.write(f"dispatcher: NAME {error.errors()[0]['ctx']['error']}\n")
        raise typer.Exit(Exit.USAGE) from None
    sys.stderr.write(_advice(entry.name, entry.hash, None if for_servers else role))
    sys.stderr.flush()
    sys.stdout.write(f"{secret}\n")


def _advice(name: str, hashed: str, role: str | None) -> str:
    if role is None:
        return (
            "# for the configuration of `dispatcher serve`:\n"
            "discovery:\n  registration:\n    networks: []  # where servers may be, such as 10.0.0.0/8\n"
            f"    tokens:\n      - {{name: {name}, hash: '{hashed}'}}\n"
            "# and the token, shown this once:\n"
        )
    return (
        "# for the configuration of `dispatcher serve`:\n"
        f"api:\n  keys:\n    - {{name: {name}, role: {role}, hash: '{hashed}'}}\n"
        "# and the key, shown this once:\n"
    )
