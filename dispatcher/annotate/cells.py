"""Values as cells of CSV have them, and back."""

from typing import Any

import msgspec
import pyarrow as pa


def cell_text(value: Any) -> str:
    """A value as a cell of CSV has it: a text as it is, null as nothing, all else as JSON."""
    match value:
        case None:
            return ""
        case str():
            return value
        case _:
            return msgspec.json.encode(value, enc_hook=str).decode().strip('"')


def cell_value(text: str, kind: pa.DataType) -> Any:
    """What a cell of a column of this type says; the text itself where it is no such value."""
    if not text:
        return None
    if pa.types.is_string(kind):
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
