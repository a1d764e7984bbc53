"""The settings tree. Names, defaults and bounds stand here and nowhere else. Times are seconds."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

LIMIT_MAX = 65_536
"""More permits than a process has ports towards one server, so more can only be a slip."""
_HOUR, _DAY = 3600, 86_400
_FRAMING_HEADERS = frozenset({"connection", "content-length", "content-type", "transfer-encoding"})


def _number(value: object) -> object:
    """Refuse what pydantic would quietly read as 1 or 0."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")  # noqa: TRY004  # pydantic collects ValueErrors
    return value


def _limit(value: object) -> int | Literal["auto"]:
    text = str(value).strip()
    if text == "auto":
        return "auto"
    if re.fullmatch(r"[0-9]{1,9}", text) and 1 <= int(text) <= LIMIT_MAX:
        return int(text)
    raise ValueError(f"must be auto or a whole number from 1 to {LIMIT_MAX}")


def _api_key(key: SecretStr) -> SecretStr:
    text = key.get_secret_value().strip()
    if not re.fullmatch(r"[!-~]+", text):
        raise ValueError("must be printable ASCII without spaces, and not empty")
    return SecretStr(text)


def _header(value: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[\t\x20-\x7e]*", value.get_secret_value()):
        raise ValueError("must be printable ASCII on one line")
    return value


Seconds = Annotated[float, BeforeValidator(_number), Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, BeforeValidator(_number)]
Name = Annotated[str, Field(min_length=1, max_length=1024)]
ApiKey = Annotated[SecretStr, AfterValidator(_api_key)]
Header = Annotated[SecretStr, AfterValidator(_header)]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True)


class ServerEntry(_Settings):
    """One line of a server list: a URL, or a range of them, and what they have in common.

    A plain string stands for an entry with that URL alone. `dispatcher.discovery.static` expands entries.
    """

    url: Name
    api_key: ApiKey | None = None
    """None: the top level's `api_key` is used."""
    headers: dict[str, Header] = Field(default={}, max_length=100)
    limit: Annotated[Count, Field(ge=1, le=LIMIT_MAX)] | None = None
    """A fixed number of permits for each server of the entry. None: `pool.limit` decides."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {"url": value.strip()} if isinstance(value, str) else value

    @field_validator("url")
    @classmethod
    def _holds_no_secret(cls, url: str) -> str:
        """A URL names its server in logs and metrics, so it can carry no credentials."""
        if "@" in url:
            raise ValueError("must not hold a user or password: set api_key or headers instead")
        if "?" in url or "#" in url:
            raise ValueError("must not hold a query or fragment: give the base URL")
        return url

    @field_validator("headers")
    @classmethod
    def _are_plain(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        if not all(re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name, re.ASCII) for name in headers):
            raise ValueError("must be named with letters, digits and dashes")
        if len({name.lower() for name in headers}) < len(headers):
            raise ValueError("must name each header once: upper and lower case are the same")
        for name in headers:
            if name.lower() in _FRAMING_HEADERS:
                raise ValueError(f"must leave {name} to the dispatcher")
        return headers

    @model_validator(mode="after")
    def _authorize_once(self) -> "ServerEntry":
        if self.api_key and any(name.lower() == "authorization" for name in self.headers):
            raise ValueError("must have either api_key or an Authorization header, not both")
        return self


class DiscoverySettings(_Settings):
    """Where servers are found, besides `servers`."""

    file: Path | None = None
    """A list of servers, read again whenever it changes."""


class DispatchSettings(_Settings):
    """How requests are sent, and sent again."""

    max_attempts: Annotated[Count, Field(ge=1, le=100)] = 3
    """Attempts that count against the request; a server's own failures do not."""
    request_timeout_s: Annotated[Seconds, Field(le=7 * _DAY)] | None = None
    free_resends_max: Annotated[Count, Field(ge=0, le=1000)] = 10
    hedge: bool = True
    """Whether the last requests of a job may be copied, once each, to servers that stand idle."""
    drain_s: Annotated[Seconds, Field(le=_DAY)] = 300.0


class PoolSettings(_Settings):
    """How servers are watched, limited, evicted and readmitted."""

    limit: Annotated[int | Literal["auto"], PlainValidator(_limit)] = "auto"
    probe_interval_s: Annotated[Seconds, Field(le=_HOUR)] = 5.0
    probe_timeout_s: Annotated[Seconds, Field(le=_HOUR)] = 10.0
    connect_timeout_s: Annotated[Seconds, Field(le=_HOUR)] = 3.0
    scrape_interval_s: Annotated[Seconds, Field(le=_HOUR)] = 5.0
    stall_s: Annotated[Seconds, Field(le=_DAY)] = 120.0
    readmit_backoff_min_s: Annotated[Seconds, Field(le=_DAY)] = 2.0
    readmit_backoff_max_s: Annotated[Seconds, Field(le=_DAY)] = 60.0
    deaths_max: Annotated[Count, Field(ge=2, le=100)] = 5
    """Deaths of servers while it ran that convict a request at the latest, whatever the odds."""
    wait_for_servers_s: Annotated[Seconds, Field(le=30 * _DAY)] | None = None
    """None: wait for as long as it takes."""
    canary: bool = True

    @field_validator("readmit_backoff_max_s")
    @classmethod
    def _spans_a_range(cls, maximum: float, info: ValidationInfo) -> float:
        minimum = info.data.get("readmit_backoff_min_s", 0.0)
        if maximum < minimum:
            raise ValueError(f"must be at least readmit_backoff_min_s, which is {minimum:g}")
        return maximum


class QueueSettings(_Settings):
    """The work queue."""

    shard_size: Annotated[Count, Field(ge=1, le=65_536)] = 256
    lease_s: Annotated[Seconds, Field(le=_DAY)] = 60.0


class ResultsSettings(_Settings):
    """How outcomes are recorded."""

    sync_s: Annotated[Seconds, Field(le=_HOUR)] = 1.0
    provenance: bool = True


class TelemetrySettings(_Settings):
    """What the dispatcher tells of itself."""

    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    metrics_port: Annotated[Count, Field(ge=0, le=65_535)] | None = None
    """None: no metrics are served. 0: a free port, for tests."""
    metrics_host: Name = "0.0.0.0"  # noqa: S104  # a Prometheus elsewhere must reach it; it holds no secrets
    """Metrics hold server addresses and model names, no keys and no prompts; 127.0.0.1 keeps them local."""


class RunSettings(_Settings):
    """What `dispatcher run` does. Relative paths start at the working directory."""

    output: Path | None = None
    errors: Path | None = None
    state_dir: Path | None = None
    model: Name | None = None
    """Stands in for a body's missing `model`."""
    model_override: Name | None = None
    """Replaces every body's `model`."""
    on_invalid: Literal["fail", "skip"] = "fail"
    restart: bool = False
    retry_failed: bool = False
    keep_state: bool = False
    quiet: bool = False

    @field_validator("model_override")
    @classmethod
    def _excludes_model(cls, override: str | None, info: ValidationInfo) -> str | None:
        if override is not None and info.data.get("model") is not None:
            raise ValueError("must not be set together with run.model")
        return override


def _listed(value: object) -> object:
    """Servers in one text: a JSON list, or URLs parted by commas or spaces outside of brackets."""
    if not isinstance(value, str):
        return value
    if not re.match(r'\[\s*["{\]]', value):
        return re.findall(r"(?:\[[^\]]*\]|[^\s,])+", value)
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError("must be a list of URLs, or valid JSON") from None  # the text may hold keys


class Config(_Settings):
    """Every setting, validated."""

    servers: Annotated[tuple[ServerEntry, ...], BeforeValidator(_listed), Field(max_length=10_000)] = ()
    api_key: ApiKey | None = None
    """For servers that have no key of their own."""
    discovery: DiscoverySettings = DiscoverySettings()
    dispatch: DispatchSettings = DispatchSettings()
    pool: PoolSettings = PoolSettings()
    queue: QueueSettings = QueueSettings()
    results: ResultsSettings = ResultsSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    run: RunSettings = RunSettings()


def sections() -> Mapping[str, tuple[str, ...]]:
    """The names of the settings in each section."""
    defaults = {name: field.default for name, field in Config.model_fields.items()}
    return {
        name: tuple(type(value).model_fields)
        for name, value in defaults.items()
        if isinstance(value, _Settings)
    }


def setting_places() -> tuple[tuple[str, ...], ...]:
    """The place of every setting in the tree: `("servers",)`, `("pool", "stall_s")`."""
    by_section = sections()
    top = tuple((name,) for name in Config.model_fields if name not in by_section)
    return top + tuple((section, name) for section, names in by_section.items() for name in names)
