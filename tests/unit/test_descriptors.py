"""How many requests may be open."""

import resource

import pytest

from dispatcher.descriptors import descriptors_for_requests


@pytest.mark.parametrize(
    ("hard", "requests", "soft"),
    [(4096, 3996, 4096), (100, 16, 100), (resource.RLIM_INFINITY, 1_048_476, 1_048_576)],
)
def test_the_soft_limit_is_raised_and_some_are_kept(monkeypatch, hard, requests, soft):
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    assert descriptors_for_requests(100) == requests
    assert asked == [(soft, hard)]
