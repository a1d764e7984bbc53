"""EndpointSlices as the API server writes them."""

import msgspec

from dispatcher.discovery.slices import EndpointSlice

HTTP = ({"name": "http", "port": 8000, "protocol": "TCP"},)


def written_slice(name, *endpoints, ports=HTTP, kind="IPv4", service="vllm", version="1"):
    """The JSON object of a slice."""
    labels = {"kubernetes.io/service-name": service} if service else None
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "gpu", "resourceVersion": version, "labels": labels},
        "addressType": kind,
        "endpoints": list(endpoints) or None,
        "ports": list(ports) or None,
    }


def slice_of(name, *endpoints, **settings):
    """The same, read."""
    written = written_slice(name, *endpoints, **settings)
    return msgspec.json.decode(msgspec.json.encode(written), type=EndpointSlice)


def endpoint(address, uid=None, **conditions):
    """An endpoint; without a uid nobody knows its pod."""
    written = {"addresses": [address], "nodeName": "gpu1", "conditions": conditions}
    return written if uid is None else written | {"targetRef": {"kind": "Pod", "name": uid, "uid": uid}}
