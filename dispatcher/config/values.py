"""The kinds of values that settings have."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr


class Settings(BaseModel):
    """A mapping of settings: frozen, closed to misspelt ones, and silent about its values in errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True)


def _number(value: object) -> object:
    """Refuse what pydantic would quietly read as 1 or 0."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")  # noqa: TRY004  # pydantic collects ValueErrors
    return value


def _api_key(key: SecretStr) -> SecretStr:
    text = key.get_secret_value().strip()
    if not re.fullmatch(r"[!-~]+", text):
        raise ValueError("must be printable ASCII without spaces, and not empty")
    return SecretStr(text)


def _header(value: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[\t\x20-\x7e]*", value.get_secret_value()):
        raise ValueError("must be printable ASCII on one line")
    return value


def _place(value: object) -> object:
    """A file is a path; what has a scheme is kept as it is: a path would lose one of its slashes."""
    return Path(value) if isinstance(value, str) and "://" not in value else value


Seconds = Annotated[float, BeforeValidator(_number), Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, BeforeValidator(_number)]
Name = Annotated[str, Field(min_length=1, max_length=1024)]
ApiKey = Annotated[SecretStr, AfterValidator(_api_key)]
Header = Annotated[SecretStr, AfterValidator(_header)]
Place = Annotated[Path | str, BeforeValidator(_place)]
"""A file, or the URL of an object in a store."""
