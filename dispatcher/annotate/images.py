"""Cells that are images, as parts of a chat message."""

import base64
from pathlib import Path
from typing import Any

from dispatcher.annotate.faults import RowError

_MAGIC = (
    (b"\x89PNG", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
)


def image_part(cell: Any, column: str) -> dict[str, Any]:
    """An `image_url` part of a URL, a data URL, a file's path, its bytes, or Hugging Face's `{bytes, path}`.

    Paths start at the working directory. Raises RowError for what is none of these.
    """
    return {"type": "image_url", "image_url": {"url": _url(cell, column)}}


def check_image(cell: Any, column: str) -> None:
    """What `image_part` would raise, but for what is in files. Raises RowError."""
    cell = _unwrapped(cell)
    if isinstance(cell, bytes):
        _mime(cell, column)
    elif not isinstance(cell, str):
        raise RowError("no image: neither a URL, nor a path, nor bytes", column)
    elif not cell:
        raise RowError("no image: empty; leave such rows out with --where", column)
    elif not _is_url(cell) and not Path(cell).is_file():
        raise RowError(f"there is no file {cell[:200]}", column)


def _url(cell: Any, column: str) -> str:
    cell = _unwrapped(cell)
    check_image(cell, column)
    if isinstance(cell, str) and _is_url(cell):
        return cell
    try:
        content = cell if isinstance(cell, bytes) else Path(cell).read_bytes()
    except OSError as error:
        raise RowError(f"{cell} cannot be read: {error.strerror}", column) from error
    return f"data:{_mime(content, column)};base64,{base64.b64encode(content).decode()}"


def _unwrapped(cell: Any) -> Any:
    return cell.get("bytes") or cell.get("path") if isinstance(cell, dict) else cell


def _is_url(text: str) -> bool:
    return text.startswith(("http://", "https://", "data:image/"))


def _mime(content: bytes, column: str) -> str:
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    found = next((kind for magic, kind in _MAGIC if content.startswith(magic)), None)
    if found is None:
        raise RowError("no PNG, JPEG, GIF, BMP or WebP image", column)
    return found
