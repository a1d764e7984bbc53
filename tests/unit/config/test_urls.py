"""One spelling for each server."""

import pytest

from dispatcher.config.urls import base_url


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://gpu1:8000", "http://gpu1:8000"),
        ("http://gpu1:8000/", "http://gpu1:8000"),
        ("http://gpu1:8000/v1", "http://gpu1:8000"),
        ("http://gpu1:8000/v1/", "http://gpu1:8000"),
        ("http://gpu1:8000//v1//", "http://gpu1:8000"),
        ("gpu1:8000", "http://gpu1:8000"),
        ("gpu1:8000/v1", "http://gpu1:8000"),
        ("10.0.0.7:8000", "http://10.0.0.7:8000"),
        ("HTTP://GPU1.Cluster:8000", "http://gpu1.cluster:8000"),
        ("http://gpu1:80", "http://gpu1"),
        ("http://gpu1", "http://gpu1"),
        ("https://gpu1:443/v1", "https://gpu1"),
        ("https://gpu1:80", "https://gpu1:80"),
        ("https://h/prefix/v1", "https://h/prefix"),
        ("https://h/prefix/", "https://h/prefix"),
        ("https://h/Team-A/qwen/v1/", "https://h/Team-A/qwen"),
        ("https://h/v10", "https://h/v10"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("http://[2001:DB8:0:0:0:0:0:1]", "http://[2001:db8::1]"),
        ("http://gpu_1.rack-2.:8000", "http://gpu_1.rack-2.:8000"),
    ],
)
def test_a_server_has_one_spelling(text, expected):
    assert base_url(text) == expected
    assert base_url(expected) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu1", "needs a port or a scheme"),
        ("gpu1/v1", "needs a port or a scheme"),
        ("ftp://gpu1", "must be http or https"),
        ("unix:///run/vllm.sock", "must be http or https"),
        ("http:/gpu1:8000", "is not a URL"),
        ("http://gpu1:port", "is not a URL"),
        ("http://gpu1:65536", "is not a URL"),
        ("http://gpu1:0", "is not a URL"),
        ("http://gpu1:", "is not a URL"),
        ("http://gpu[1:8000", "is not a URL"),
        ("http://[12:34]:8000", "is not a URL"),
        ("http://[1:2::3::4]", "is not a URL"),
        ("http://", "has no host"),
        ("http://:8000", "has no host"),
        ("http://gpu..1", "has no host"),
        ("http://gpu%31", "has no host"),
        ("http://gpu1, http://gpu2", "must not hold spaces"),
        ("http://gpu1\n", "must not hold spaces or control"),
        ("http://gpu1:8000/v1/chat/completions", "must end with /v1"),
        ("http://gpu1:8000/v1/v1", "must end with /v1"),
    ],
)
def test_what_is_no_server_is_refused_with_a_reason_that_does_not_repeat_it(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        base_url(text.replace("gpu1", "hunter2"))
    assert "hunter2" not in str(caught.value)
