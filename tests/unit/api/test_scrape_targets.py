import msgspec
import pytest

from dispatcher.api.scrape_targets import target_of
from dispatcher.model import ServerId, ServerSpec


@pytest.mark.parametrize(
    ("url", "address", "scheme", "path"),
    [
        ("http://gpu1:8000", "gpu1:8000", "http", "/metrics"),
        ("https://h/team-a", "h:443", "https", "/team-a/metrics"),
        ("http://h", "h:80", "http", "/metrics"),
        ("http://[::1]:8000", "[::1]:8000", "http", "/metrics"),
        ("https://[::1]", "[::1]:443", "https", "/metrics"),
    ],
)
def test_a_server_is_a_target_with_its_url_as_its_label(url, address, scheme, path):
    target = target_of(ServerSpec(ServerId(url), url, api_key="hunter2"))
    assert msgspec.to_builtins(target, str_keys=True) == {
        "targets": (address,),
        "labels": {"server": url, "__scheme__": scheme, "__metrics_path__": path},
    }
