"""Every setting: its name, default and bounds, and the places it can be set in."""

from dispatcher.config.access import Hashed, KeyEntry, KeyLimits, RegistrationSettings
from dispatcher.config.annotate import AnnotateSettings
from dispatcher.config.known_answer import KnownAnswer
from dispatcher.config.kubernetes import SERVICE_LABEL, KubernetesEntry
from dispatcher.config.loading import load_config
from dispatcher.config.names import DnsName, parse_dns_name
from dispatcher.config.queue import QueueUrl
from dispatcher.config.servers import DnsEntry, ServerEntry, ServerList, ServerOptions
from dispatcher.config.settings import (
    ApiSettings,
    Config,
    DiscoverySettings,
    DispatchSettings,
    PoolSettings,
    QueueSettings,
    ResultsSettings,
    RunSettings,
    TelemetrySettings,
)
from dispatcher.config.steps import step_configs
from dispatcher.config.storage import OBJECT_SCHEMES, StorageSettings

__all__ = [
    "OBJECT_SCHEMES",
    "SERVICE_LABEL",
    "AnnotateSettings",
    "ApiSettings",
    "Config",
    "DiscoverySettings",
    "DispatchSettings",
    "DnsEntry",
    "DnsName",
    "Hashed",
    "KeyEntry",
    "KeyLimits",
    "KnownAnswer",
    "KubernetesEntry",
    "PoolSettings",
    "QueueSettings",
    "QueueUrl",
    "RegistrationSettings",
    "ResultsSettings",
    "RunSettings",
    "ServerEntry",
    "ServerList",
    "ServerOptions",
    "StorageSettings",
    "TelemetrySettings",
    "load_config",
    "parse_dns_name",
    "step_configs",
]
