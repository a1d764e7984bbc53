"""The settings tree. Names, defaults and bounds stand here and nowhere else. Times are seconds."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PlainValidator, ValidationInfo, field_validator

from dispatcher.config.access import KeyList, Registration
from dispatcher.config.annotate import AnnotateSettings
from dispatcher.config.known_answer import Canary, KnownAnswer
from dispatcher.config.kubernetes import KubernetesList
from dispatcher.config.queue import QueueUrlSetting
from dispatcher.config.servers import LIMIT_MAX, DnsList, ServerList
from dispatcher.config.storage import StorageSettings
from dispatcher.config.urls import base_url
from dispatcher.config.values import ApiKey, Count, Name, Place, Seconds, Settings

_HOUR, _DAY = 3600, 86_400


def _limit(value: object) -> int | Literal["auto"]:
    text = str(value).strip()
    if text == "auto":
        return "auto"
    if re.fullmatch(r"[0-9]{1,9}", text) and 1 <= int(text) <= LIMIT_MAX:
        return int(text)
    raise ValueError(f"must be auto or a whole number from 1 to {LIMIT_MAX}")


WORKERS_MAX = 64
"""More than one machine feeds to any use; each is a process of 100 MB."""


def _workers(value: object) -> int | Literal["auto"]:
    text = str(value).strip()
    if text == "auto":
        return "auto"
    if re.fullmatch(r"[0-9]{1,4}", text) and 1 <= int(text) <= WORKERS_MAX:
        return int(text)
    raise ValueError(f"must be auto or a whole number from 1 to {WORKERS_MAX}")


class DiscoverySettings(Settings):
    """Where servers are found, besides `servers`."""

    file: Path | None = None
    """A list of servers, read again whenever it changes."""
    dns: DnsList | None = None
    """Names whose DNS records are servers, looked up again and again."""
    kubernetes: KubernetesList | None = None
    """Services of Kubernetes, whose endpoints are watched."""
    registration: Registration | None = None
    """Who may register servers with `dispatcher serve`; None: nobody."""


class DispatchSettings(Settings):
    """How requests are sent, and sent again."""

    max_attempts: Annotated[Count, Field(ge=1, le=100)] = 3
    """Attempts that count against the request; a server's own failures do not."""
    request_timeout_s: Annotated[Seconds, Field(le=7 * _DAY)] | None = None
    free_resends_max: Annotated[Count, Field(ge=0, le=1000)] = 10
    hedge: bool = True
    """Whether the last requests of a job may be copied, once each, to servers that stand idle."""
    drain_s: Annotated[Seconds, Field(le=_DAY)] = 300.0


class PoolSettings(Settings):
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
    canary: Canary = True
    """Whether a server is asked for one token before it is trusted; or a question whose answer is known."""

    @property
    def known_answer(self) -> KnownAnswer | None:
        """The question whose answer is known, where the canary is one."""
        return self.canary if isinstance(self.canary, KnownAnswer) else None

    @field_validator("readmit_backoff_max_s")
    @classmethod
    def _spans_a_range(cls, maximum: float, info: ValidationInfo) -> float:
        minimum = info.data.get("readmit_backoff_min_s", 0.0)
        if maximum < minimum:
            raise ValueError(f"must be at least readmit_backoff_min_s, which is {minimum:g}")
        return maximum


class QueueSettings(Settings):
    """The work queue."""

    url: QueueUrlSetting | None = None
    """A PostgreSQL database, for the service. None: a file in its storage directory."""
    shard_size: Annotated[Count, Field(ge=1, le=65_536)] = 256
    lease_s: Annotated[Seconds, Field(le=_DAY)] = 60.0


class ResultsSettings(Settings):
    """How outcomes are recorded."""

    sync_s: Annotated[Seconds, Field(le=_HOUR)] = 1.0
    checkpoint_s: Annotated[Seconds, Field(ge=1, le=_HOUR)] = 30.0
    """With a store that nodes share: how often a journal that grows is put there."""
    provenance: bool = True


class ApiSettings(Settings):
    """What `dispatcher serve` offers over HTTP."""

    host: Name = "127.0.0.1"
    port: Annotated[Count, Field(ge=0, le=65_535)] = 8080
    """0: a free port, for tests."""
    keys: KeyList = ()
    """Who may use it. None: whoever reaches it, as an admin; so `host` must then be a loopback address."""
    live_reserve: Annotated[float, Field(ge=0, le=0.9)] = 0.1
    """The share of each server's permits that jobs leave to live requests."""
    upload_bytes_max: Annotated[Count, Field(ge=1, le=2**50)] = 20 * 2**30
    """What one uploaded file may have."""


class TelemetrySettings(Settings):
    """What the dispatcher tells of itself."""

    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    metrics_port: Annotated[Count, Field(ge=0, le=65_535)] | None = None
    """None: no metrics are served. 0: a free port, for tests."""
    metrics_host: Name = "0.0.0.0"  # noqa: S104  # a Prometheus elsewhere must reach it; it holds no secrets
    """Metrics hold server addresses and model names, no keys and no prompts; 127.0.0.1 keeps them local."""
    log_prompts: bool = False
    """Whether logs may hold what requests and servers say. Else, server's words are left out of them."""
    otlp_endpoint: Annotated[Name, AfterValidator(base_url)] | None = None
    """Where a span of each attempt is sent: an OpenTelemetry collector, `http://collector:4318`. None: as
    OpenTelemetry's own variables say, or nowhere."""


class RunSettings(Settings):
    """What `dispatcher run` does. Relative paths start at the working directory."""

    output: Place | None = None
    errors: Path | None = None
    state_dir: Path | None = None
    model: Name | None = None
    """Stands in for a body's missing `model`."""
    model_override: Name | None = None
    """Replaces every body's `model`."""
    on_invalid: Literal["fail", "skip"] = "fail"
    workers: Annotated[int | Literal["auto"], PlainValidator(_workers)] = 1
    """Processes that send; auto is one for each processor core that this process may use."""
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


class Config(Settings):
    """Every setting, validated."""

    servers: ServerList = ()
    api_key: ApiKey | None = None
    """For servers that have no key of their own."""
    discovery: DiscoverySettings = DiscoverySettings()
    dispatch: DispatchSettings = DispatchSettings()
    pool: PoolSettings = PoolSettings()
    queue: QueueSettings = QueueSettings()
    results: ResultsSettings = ResultsSettings()
    storage: StorageSettings = StorageSettings()
    api: ApiSettings = ApiSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    run: RunSettings = RunSettings()
    annotate: AnnotateSettings = AnnotateSettings()


def sections() -> Mapping[str, tuple[str, ...]]:
    """The names of the settings in each section."""
    defaults = {name: field.default for name, field in Config.model_fields.items()}
    return {
        name: tuple(type(value).model_fields)
        for name, value in defaults.items()
        if isinstance(value, Settings)
    }


def setting_places() -> tuple[tuple[str, ...], ...]:
    """The place of every setting in the tree: `("servers",)`, `("pool", "stall_s")`."""
    by_section = sections()
    top = tuple((name,) for name in Config.model_fields if name not in by_section)
    return top + tuple((section, name) for section, names in by_section.items() for name in names)
