"""Requests put as their server's version understands them. Pure.

vLLM ignores a constraint in another version's spelling, and answers with 200 and free text. Every answer is
held against its labels or its schema besides, so where the version is not known it is asked as a newer one.
"""

from typing import Any, Final

import msgspec

from dispatcher.model import Request
from dispatcher.vllm.client.constraints import STRUCTURED, STRUCTURED_FROM, Version, parse_version, spelled

FORMAT: Final = "response_format"
FORMAT_FROM: Final[Version] = (0, 7)
"""From here on a `json_schema` is understood there for certain. 0.6.1 knew `text` and `json_object` alone
(its protocol's `ResponseFormat`); all versions until 0.11 have `guided_json`."""


def worded(request: Request, version: str | None) -> Request:
    """The request for a server of this version; the same one where nothing has to be changed."""
    number = parse_version(version)
    if number is None or number >= STRUCTURED_FROM:
        return request
    body: dict[str, Any] = msgspec.json.decode(request.body)
    changed = body if number >= FORMAT_FROM else _with_guided_schema(body)
    if body.get(STRUCTURED) is not None:
        changed = dict(spelled(changed, number, "the server", checked=True))
    return request if changed is body else msgspec.structs.replace(request, body=msgspec.json.encode(changed))


def _with_guided_schema(body: dict[str, Any]) -> dict[str, Any]:
    asked = body.get(FORMAT)
    if not isinstance(asked, dict) or asked.get("type") != "json_schema":
        return body
    rest = {name: value for name, value in body.items() if name != FORMAT}
    return {**rest, "guided_json": asked["json_schema"]["schema"]}
