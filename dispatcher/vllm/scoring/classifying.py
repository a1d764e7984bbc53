"""A distribution over labels, in one of two ways."""

from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from dispatcher.errors import ConfigError, Fault, InputError
from dispatcher.vllm.scoring.exact import classify_exactly
from dispatcher.vllm.scoring.labels import conversation_for, label_set
from dispatcher.vllm.scoring.one_call import classify_in_one_call
from dispatcher.vllm.scoring.prompts import Prompt
from dispatcher.vllm.scoring.records import Classification, Method, Mode
from dispatcher.vllm.scoring.spelling import Spellings
from dispatcher.vllm.scoring.wire import Wire


async def classify(
    wire: Wire,
    text: str | Sequence[Mapping[str, Any]],
    labels: Sequence[str] | Mapping[str, str],
    *,
    method: Method | Mode = "one_call",
    template: Mapping[str, Any] | None = None,
    spellings: Spellings | None = None,
) -> Classification:
    """A distribution over labels (or `{label: description}`) for a text, or for messages that ask for one.

    `one_call` is the distribution of what the model answers when it is constrained to the labels, from the
    log-probabilities of one generation, and of up to `max_calls` where labels begin alike. `exact` scores
    every label and its end, and takes the softmax. These are two distributions: see docs/scoring.md.

    `template`: `chat_template`, `chat_template_kwargs`. `spellings`: kept from call to call, saves requests.

    Raises ConfigError for labels that cannot be told apart and options that are none; InputError for images
    in `exact` and an empty conversation; ConstraintIgnoredError; ScoringError; and what `wire` raises.
    """
    chosen = label_set(labels)
    method = method if isinstance(method, Method) else Method(method)
    _check(method)
    messages = conversation_for(text, chosen)
    if not messages:
        raise InputError("messages must hold at least one")
    prompt = Prompt(messages, template or {})
    match method.mode:
        case "exact":
            return await classify_exactly(wire, prompt, chosen, method.normalisation)
        case "one_call":
            return await classify_in_one_call(wire, prompt, chosen, method, spellings or Spellings())
        case _:
            assert_never(method.mode)


def _check(method: Method) -> None:
    calls = method.max_calls
    rules = (
        ("mode", method.mode in {"one_call", "exact"}, "must be one_call or exact"),
        ("normalisation", method.normalisation in {"sum", "mean", "bytes"}, "must be sum, mean or bytes"),
        ("max_calls", calls is None or calls >= 1, "must be 1 or more, or None"),
        ("unresolved_max", 0 <= method.unresolved_max < 1, "must be from 0 to below 1"),
        ("listed_max", method.listed_max >= 1, "must be 1 or more"),
    )
    faults = tuple(Fault(where, why) for where, holds, why in rules if not holds)
    if faults:
        raise ConfigError(faults)
