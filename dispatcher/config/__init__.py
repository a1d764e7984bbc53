"""Every setting: its name, default and bounds, and the places it can be set in."""

from dispatcher.config.loading import load_config
from dispatcher.config.settings import (
    Config,
    DiscoverySettings,
    DispatchSettings,
    PoolSettings,
    QueueSettings,
    ResultsSettings,
    RunSettings,
    ServerEntry,
    TelemetrySettings,
)

__all__ = [
    "Config",
    "DiscoverySettings",
    "DispatchSettings",
    "PoolSettings",
    "QueueSettings",
    "ResultsSettings",
    "RunSettings",
    "ServerEntry",
    "TelemetrySettings",
    "load_config",
]
