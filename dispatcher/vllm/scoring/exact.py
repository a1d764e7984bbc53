"""Classifying by scoring every label."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Final

from dispatcher.errors import ConstraintIgnoredError
from dispatcher.vllm.scoring.labels import LabelSet
from dispatcher.vllm.scoring.masked import Path
from dispatcher.vllm.scoring.prompts import Prompt, completion_after, refuse_images, tokenize
from dispatcher.vllm.scoring.records import Classification, Normalisation, ScoringError
from dispatcher.vllm.scoring.wire import (
    COMPLETIONS,
    LISTED_MAX,
    Wire,
    choice_body,
    completed_text,
    echo_body,
    read_completion,
    read_echo,
)

PROMPTS_MAX: Final = 256
"""Sequences scored by one request."""


async def classify_exactly(
    wire: Wire, prompt: Prompt, labels: LabelSet, normalisation: Normalisation
) -> Classification:
    """Score each label and its end after the prompt; softmax over the labels."""
    refuse_images(prompt, 'mode="exact"')
    before = await tokenize(wire, prompt.asked())
    found = await asyncio.gather(*(completion_after(wire, prompt, before, text) for text in labels.texts))
    labelled = [completion.ids for completion in found]
    ends = await _ends(wire, before + labelled[0])
    totals, calls = await _totals(wire, before, labelled, ends)
    logprobs = dict(zip(labels.texts, totals, strict=True))
    lengths = [len(ids) + 1 for ids in labelled]
    probabilities = normalised(logprobs, dict(zip(labels.texts, lengths, strict=True)), normalisation)
    return Classification(
        label=max(probabilities, key=probabilities.__getitem__),
        probabilities=probabilities,
        bounds={text: (share, share) for text, share in probabilities.items()},
        mode="exact",
        coverage=1.0,
        approximate=False,
        calls=calls + 1,
        logprobs=logprobs,
    )


def normalised(
    logprobs: Mapping[str, float], tokens: Mapping[str, int], normalisation: Normalisation
) -> dict[str, float]:
    """Softmax of the labels' log-probabilities: as they are, per token (the end too), or per UTF-8 byte."""
    divisors = {
        "sum": dict.fromkeys(logprobs, 1),
        "mean": tokens,
        "bytes": {text: len(text.encode()) for text in logprobs},
    }[normalisation]
    return softmax({text: logprob / divisors[text] for text, logprob in logprobs.items()})


def softmax(scores: Mapping[str, float]) -> dict[str, float]:
    """Exponentials that sum to 1."""
    highest = max(scores.values())
    weights = {text: math.exp(score - highest) for text, score in scores.items()}
    total = math.fsum(weights.values())
    return {text: weight / total for text, weight in weights.items()}


def log_sum(values: Sequence[float]) -> float:
    """The logarithm of a sum of exponentials."""
    highest = max(values)
    return highest + math.log(math.fsum(math.exp(value - highest) for value in values))


async def _ends(wire: Wire, whole: Path) -> list[int]:
    """The tokens that end an answer: what a constraint allows that lets nothing follow."""
    answer = await wire.post(COMPLETIONS, {**choice_body([""], LISTED_MAX), "prompt": list(whole)})
    if completed_text(answer):
        raise ConstraintIgnoredError("the server went on where it could only end: it ignores the constraint")
    listed = read_completion(answer, LISTED_MAX)
    if not listed:
        raise ScoringError('the server does not show the end of an answer; use mode="one_call"')
    return sorted(listed[0].logprobs)


async def _totals(
    wire: Wire, before: Path, labelled: Sequence[Path], ends: Sequence[int]
) -> tuple[list[float], int]:
    """Each label's log-probability with its end, whichever of the ends that is; and the requests it took."""
    wholes = [(*before, *ids, end) for ids in labelled for end in ends]
    scored: list[float] = []
    starts = range(0, len(wholes), PROMPTS_MAX)
    for start in starts:
        part = wholes[start : start + PROMPTS_MAX]
        answer = await wire.post(COMPLETIONS, echo_body(part))
        scored += [sum(token.logprob for token in tokens) for tokens in read_echo(answer, part, len(before))]
    groups = range(0, len(scored), len(ends))
    return [log_sum(scored[group : group + len(ends)]) for group in groups], len(starts)
