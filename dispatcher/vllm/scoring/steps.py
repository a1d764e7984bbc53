"""A classification as questions and answers, for whoever carries the one to a server and the other back."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.vllm.scoring.records import Classification


@dataclass(frozen=True, slots=True)
class Post:
    """A body for a route of a model's server. The body does not name the model."""

    path: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """What is to be posted next: any of these, or all at once. What was not answered is asked again."""

    posts: Sequence[Post]
    so_far: Callable[[], Classification] | None
    """The distribution as far as it is known; None before the first answer's tokens are."""


Answer = tuple[Post, Mapping[str, Any]]
Steps = Generator[Ask, Sequence[Answer], Classification]
"""Yields what is to be posted, is sent answers, and returns the distribution.

It raises ScoringError and ConstraintIgnoredError for answers that tell none.
"""
