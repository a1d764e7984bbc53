"""Servers behind Kubernetes Services: which Services, in which namespace, at which port."""

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, model_validator

from dispatcher.config.access import decoded
from dispatcher.config.servers import NAMES_MAX, ServerOptions
from dispatcher.config.values import Name

SERVICE_LABEL = "kubernetes.io/service-name"
"""What every EndpointSlice of a Service carries.

https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/#ownership
"""
_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?")
"""IANA's form (RFC 6335, section 5.1), which Kubernetes asks of a port's name."""

_WORD = r"[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?"
_KEY = rf"(?:[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_WORD}"
_REQUIREMENT = rf"(?:!\s*{_KEY}|{_KEY}(?:\s*(?:==?|!=)\s*(?:{_WORD})?|\s+(?:not)?in\s*\([\w.,\s-]*\))?)"
_SELECTOR = re.compile(rf"{_REQUIREMENT}(?:\s*,\s*{_REQUIREMENT})*", re.ASCII)


def _dns_label(text: str) -> str:
    if not _DNS_LABEL.fullmatch(text):
        raise ValueError("must be up to 63 small letters, digits and dashes")
    return text


def _selector(text: str) -> str:
    """https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors ."""
    if not _SELECTOR.fullmatch(text):
        raise ValueError("must be a label selector such as app=vllm,tier in (gpu, big)")
    return text


def _port(value: object) -> int | str:
    text = str(value).strip()
    if re.fullmatch(r"[0-9]{1,5}", text) and 1 <= int(text) <= 65_535:  # noqa: PLR2004  # ports' range
        return int(text)
    if _PORT_NAME.fullmatch(text):
        return text
    raise ValueError("must be a port's number or name, such as 8000 or http")


def _host_name(text: str) -> str:
    if not all(_DNS_LABEL.fullmatch(label) for label in text.split(".")):
        raise ValueError("must be a host's name")
    return text


ObjectName = Annotated[Name, AfterValidator(_dns_label)]


class KubernetesEntry(ServerOptions):
    """Services whose endpoints are servers: one by its name, or all that a label selector matches."""

    service: ObjectName | None = None
    selector: Annotated[Name, AfterValidator(_selector)] | None = None
    """Of the Services' labels, which their EndpointSlices carry as well."""
    namespace: ObjectName | None = None
    """None: the pod's own, or the kubeconfig context's."""
    port: Annotated[int | str, PlainValidator(_port)] | None = None
    """Its number, or its name in the Service. None: the only one, or the one named http or https."""
    scheme: Literal["http", "https"] = "http"
    host_name: Annotated[Name, AfterValidator(_host_name)] | None = None
    """What Host, SNI and certificate go by. None: https servers go by SERVICE.NAMESPACE.svc, others by
    their address."""
    kubeconfig: Path | None = None
    """None: in a pod by its service account, elsewhere by KUBECONFIG or ~/.kube/config."""
    context: Name | None = None
    """Of the kubeconfig. None: its current one."""

    @property
    def label_selector(self) -> str:
        """For the API server."""
        return self.selector or f"{SERVICE_LABEL}={self.service}"

    @model_validator(mode="after")
    def _names_services(self) -> Self:
        if (self.service is None) == (self.selector is None):
            raise ValueError("must have either service or selector")
        return self

    def __str__(self) -> str:
        """`kubernetes:gpu/vllm:8000`: what the source is called."""
        port = "" if self.port is None else f":{self.port}"
        places = (self.context, self.namespace, self.service or self.selector)
        return f"kubernetes:{'/'.join(place for place in places if place)}{port}"


def _alone(value: object) -> object:
    return (value,) if isinstance(value, dict) else value


def _distinct(entries: tuple[KubernetesEntry, ...]) -> tuple[KubernetesEntry, ...]:
    names = [str(entry) for entry in entries]
    if len(set(names)) < len(names):
        raise ValueError("must list the same services and port once")
    return entries


KubernetesList = Annotated[
    tuple[KubernetesEntry, ...],
    BeforeValidator(lambda value: _alone(decoded(value))),
    Field(min_length=1, max_length=NAMES_MAX),
    AfterValidator(_distinct),
]
"""One entry, or a list of them; in the environment as JSON."""
