"""The ranges of generation options, as vLLM has them (`SamplingParams._verify_args` in its 0.32.0). Pure."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from dispatcher.errors import Fault
from dispatcher.vllm.client.schemas import is_schema

_INT64: Final = 2**63


def faults_of(given: Mapping[str, Any]) -> tuple[Fault, ...]:
    """Everything that is wrong with these options, of which none is None."""
    faults = [
        Fault(name, f"must be {wanted}, got {value!r:.60}")
        for name, value in given.items()
        for holds, wanted in (_RULES[name],)
        if not holds(value)
    ]
    extra = given.get("extra_body")
    body = extra if isinstance(extra, Mapping) else {}
    return (*faults, *_of_pairs(given), *(Fault(f"extra_body.{name}", why) for name, why in refused(body)))


def refused(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Fields that a body may not set, and why: one request has one whole answer here."""
    for name in ("n", "best_of"):
        if body.get(name) not in (None, 1):
            yield name, "must be 1 or left out: one request has one answer; send it again for another"
    if body.get("stream"):
        yield "stream", "must be left out: answers are read whole"
    for name in ("messages", "model"):
        if name in body:
            yield name, "must be given to the call or the client, not here"


def _of_pairs(given: Mapping[str, Any]) -> Iterator[Fault]:
    if given.get("top_logprobs") and not given.get("logprobs"):
        yield Fault("top_logprobs", "needs logprobs=True")
    if given.get("continue_final_message") and given.get("add_generation_prompt"):
        yield Fault("add_generation_prompt", "must not be set together with continue_final_message")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _between(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: _is_number(value) and low <= value <= high


def _above_zero(high: float = math.inf) -> Callable[[Any], bool]:
    return lambda value: _is_number(value) and 0 < value <= high


def _int_between(low: int, high: float = math.inf) -> Callable[[Any], bool]:
    return lambda value: _is_int(value) and low <= value <= high


def _is_stop(value: object) -> bool:
    texts = [value] if isinstance(value, str) else value
    return isinstance(texts, Sequence) and all(isinstance(text, str) and text for text in texts)


def _is_ids(value: object) -> bool:
    listed = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return listed and all(_is_int(each) and each >= 0 for each in value)  # type: ignore[attr-defined]  # a Sequence


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


_MAPPING: Final = (_is_mapping, "a mapping with text keys")
_FLAG: Final = (_is_bool, "True or False")
_PENALTY: Final = (_between(-2, 2), "a number from -2 to 2")
_INT: Final = (_int_between(-_INT64, _INT64 - 1), "a whole number of 64 bits")
_RULES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "max_completion_tokens": (_int_between(1), "a whole number, 1 or more"),
    "output_schema": (is_schema, "a JSON schema (a mapping), or a type that one can be made of"),
    "temperature": (_between(0, 2), "a number from 0 to 2"),
    "top_p": (_above_zero(1), "a number above 0, at most 1"),
    "top_k": (_int_between(-1), "a whole number, 0 (off) or more"),
    "min_p": (_between(0, 1), "a number from 0 to 1"),
    "repetition_penalty": (_above_zero(), "a number above 0"),
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "stop": (_is_stop, "a text or a list of texts, none of them empty"),
    "stop_token_ids": (_is_ids, "a list of token ids"),
    "seed": _INT,
    "logprobs": _FLAG,
    "top_logprobs": (_int_between(-1), "a whole number, 0 or more, or -1 for all"),
    "chat_template_kwargs": _MAPPING,
    "chat_template": (lambda value: isinstance(value, str) and bool(value), "a Jinja template"),
    "add_generation_prompt": _FLAG,
    "continue_final_message": _FLAG,
    "mm_processor_kwargs": _MAPPING,
    "priority": _INT,
    "extra_body": _MAPPING,
}
