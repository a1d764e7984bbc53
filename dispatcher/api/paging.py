"""Lists, as OpenAI's clients page through them."""

from collections.abc import Sequence

import msgspec
from aiohttp import web

from dispatcher.api.auth import principal_of
from dispatcher.api.errors import ApiError
from dispatcher.api.keyring import Role

BAD_REQUEST = 400


def scope_of(request: web.Request) -> str | None:
    """Whose things this request may see: one owner's; None is everybody's, for an admin."""
    principal = principal_of(request)
    return None if principal.role is Role.ADMIN else principal.name


def limit_of(request: web.Request, *, default: int, maximum: int) -> int:
    """`limit` of the query. Raises ApiError (400) where it is no number from 1 to `maximum`."""
    text = request.query.get("limit", str(default))
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= maximum and len(text) <= 9):  # noqa: PLR2004  # digits
        raise ApiError(
            BAD_REQUEST, f"limit must be a number from 1 to {maximum}", param="limit", code="invalid_value"
        )
    return int(text)


def page(items: Sequence[dict[str, object]], *, has_more: bool) -> web.Response:
    """A page of objects that each have an `id`."""
    return answer(
        {
            "object": "list",
            "data": items,
            "first_id": items[0]["id"] if items else None,
            "last_id": items[-1]["id"] if items else None,
            "has_more": has_more,
        }
    )


def answer(value: object) -> web.Response:
    """A JSON answer."""
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
