"""The bodies that scoring sends, and what it reads from their answers. Pure.

Seen on vLLM 0.32.0; `docs/scoring.md` has the facts. Log-probabilities are those after the constraint's mask
and before temperature, penalties and bias (vLLM's default `--logprobs-mode raw_logprobs`).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from dispatcher.vllm.scoring.masked import Path
from dispatcher.vllm.scoring.questions import Listed, Question
from dispatcher.vllm.scoring.records import ScoredToken, ScoringError

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
TOKENIZE: Final = "/tokenize"
DETOKENIZE: Final = "/detokenize"

FORBIDDEN: Final = -9999.0
"""What vLLM writes for minus infinity: a token that the mask forbids."""
LISTED_MAX: Final = 20
"""Tokens to be listed at each place: vLLM's default of `--max-logprobs`."""
ABOVE_MAX: Final = 0.01
"""What rounding may leave of a log-probability above 0."""
BIAS_MAX: Final = 100.0
_TOKEN_ID: Final = "token_id:"  # noqa: S105 - not a password
Body = dict[str, Any]


class Wire(Protocol):
    """The connection to a model."""

    async def post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Post a body and return the answer's. The model's name is added where the body has none.

        Raises `DispatcherError` where there is no good answer, and for a constraint that the server ignores.
        """


def choice_body(choice: Sequence[str], listed_max: int) -> Body:
    """The fields of a constrained generation whose tokens are listed by id, the likeliest way."""
    longest = max(len(text.encode()) for text in choice)
    return {
        "structured_outputs": {"choice": list(choice)},
        "return_tokens_as_token_ids": True,
        "temperature": 0,
        "max_tokens": longest + 1,  # a token has a byte at least; the end is one more
        "logprobs": listed_max,
    }


def first_body(choice: Sequence[str], listed_max: int) -> Body:
    """The fields of the chat that asks for a label."""
    body = choice_body(choice, listed_max)
    return {**body, "logprobs": True, "top_logprobs": listed_max}


def question_body(prompt: Sequence[int], question: Question, listed_max: int) -> Body:
    """A later question, after tokens that stand already."""
    body = choice_body(question.choice, listed_max)
    body["prompt"] = [*prompt, *question.at]
    if question.anchor is not None:
        body["max_tokens"] = 1
    if question.forced:
        # The earliest is drawn to most: a token's bias holds at every place. Logprobs do not show the bias.
        body["logit_bias"] = {
            str(token): BIAS_MAX / 2**place for place, token in reversed([*enumerate(question.forced)])
        }
    return body


def echo_body(prompts: Sequence[Path]) -> Body:
    """Score prompts without an answer."""
    return {
        "prompt": [list(prompt) for prompt in prompts],
        "echo": True,
        "max_tokens": 0,
        "prompt_logprobs": 0,
        "temperature": 0,
    }


def read_chat(answer: Mapping[str, Any], listed_max: int) -> tuple[str, str | None, list[Listed]]:
    """A chat's text, the thoughts before it, and its tokens."""
    choice = _only(_convert(answer, _Chat).choices)
    places = choice.logprobs.content if choice.logprobs is not None else []
    listed = [
        _listed(
            place.token, place.logprob, {each.token: each.logprob for each in place.top_logprobs}, listed_max
        )
        for place in places or []
    ]
    thoughts = choice.message.reasoning or choice.message.reasoning_content
    return choice.message.content or "", thoughts, listed


def read_completion(answer: Mapping[str, Any], listed_max: int) -> list[Listed]:
    """A completion's tokens."""
    logprobs = _only(_convert(answer, _Completions).choices).logprobs
    tops = logprobs.top_logprobs or [None] * len(logprobs.tokens)
    if not len(logprobs.tokens) == len(logprobs.token_logprobs) == len(tops):
        raise ScoringError("the server lists more tokens than log-probabilities, or fewer")
    return [
        _listed(token, logprob, top or {}, listed_max)
        for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, tops, strict=True)
        if logprob is not None
    ]


def completed_text(answer: Mapping[str, Any]) -> str:
    """A completion's text."""
    text: str = _only(_convert(answer, _Completions).choices).text
    return text


def read_echo(
    answer: Mapping[str, Any], prompts: Sequence[Path], start: int
) -> list[tuple[ScoredToken, ...]]:
    """Each prompt's tokens from `start` on. Raises ScoringError where a server did not score just these."""
    choices = sorted(_convert(answer, _Echoes).choices, key=lambda choice: choice.index)
    if len(choices) != len(prompts):
        raise ScoringError(f"the server scored {len(choices)} of {len(prompts)} prompts")
    found = []
    for choice, prompt in zip(choices, prompts, strict=True):
        tokens = _prompt_tokens(choice.prompt_logprobs)[start : len(prompt)]
        scored = tuple(token for token in tokens if token is not None)
        if tuple(token.id for token in scored) != prompt[start:]:
            raise ScoringError("the server scored other tokens than it was sent")
        found.append(scored)
    return found


def read_prompt_logprobs(
    answer: Mapping[str, Any], before: Path
) -> tuple[Path, tuple[ScoredToken | None, ...]]:
    """A chat's prompt: its tokens' ids, and each with its log-probability, None for the first.

    The first has its id in `prompt_token_ids` alone; where a server does not tell these, it is taken to be
    that of `before`.
    """
    read = _convert(answer, _Scored)
    tokens = _prompt_tokens(read.prompt_logprobs)
    if read.prompt_token_ids is not None:
        return tuple(read.prompt_token_ids), tokens
    return (*before[:1], *(token.id for token in tokens[1:] if token is not None)), tokens


def read_tokens(answer: Mapping[str, Any]) -> Path:
    """The ids that `/tokenize` found."""
    return tuple(_convert(answer, _Tokens).tokens)


def read_text(answer: Mapping[str, Any]) -> str:
    """The text that `/detokenize` found."""
    text: str = _convert(answer, _Text).prompt
    return text


def _only(choices: Sequence[Any]) -> Any:
    if not choices:
        raise ScoringError("the server gives no answer")
    return choices[0]


def _listed(chosen: str, logprob: float | None, top: Mapping[str, float | None], listed_max: int) -> Listed:
    every = {_id(token): _number(value) for token, value in top.items()} | {_id(chosen): _number(logprob)}
    allowed = {token: value for token, value in every.items() if value > FORBIDDEN}
    # A forbidden token in the list says that no allowed one is left.
    return Listed(_id(chosen), allowed, len(allowed) < len(every) or len(every) < listed_max)


def _id(token: str) -> int:
    digits = token.removeprefix(_TOKEN_ID)
    if digits == token or not digits.isdecimal():
        raise ScoringError(
            f"the server names tokens by text ({token!r:.40}): it ignores return_tokens_as_token_ids"
        )
    return int(digits)


def _number(value: float | None) -> float:
    if value is None or not math.isfinite(value):
        raise ScoringError("the server has no log-probability for a token after the prompt's first")
    if value > ABOVE_MAX:
        raise ScoringError(f"the server gives {value:g} for the logarithm of a probability")
    return value


def _prompt_tokens(entries: "Sequence[dict[str, _Entry] | None] | None") -> tuple[ScoredToken | None, ...]:
    if entries is None:
        raise ScoringError("the server ignores prompt_logprobs: it cannot score prompts")
    return tuple(_prompt_token(entry) for entry in entries)


def _prompt_token(entry: "dict[str, _Entry] | None") -> ScoredToken | None:
    """The first of an entry is the prompt's own token; with `prompt_logprobs` 0 it is the only one."""
    if not entry:
        return None
    token, score = next(iter(entry.items()))
    return ScoredToken(int(token), score.decoded_token or "", _number(score.logprob))


class _Entry(msgspec.Struct):
    logprob: float
    decoded_token: str | None = None


class _Scored(msgspec.Struct):
    prompt_logprobs: list[dict[str, _Entry] | None] | None = None
    prompt_token_ids: list[int] | None = None


class _Place(msgspec.Struct):
    token: str
    logprob: float | None
    top_logprobs: "list[_Place]" = []


class _Content(msgspec.Struct):
    content: list[_Place] | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _ChatChoice(msgspec.Struct):
    message: _Message
    logprobs: _Content | None = None


class _Chat(msgspec.Struct):
    choices: list[_ChatChoice]


class _Lists(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None = None


class _CompletionChoice(msgspec.Struct):
    logprobs: _Lists
    text: str = ""


class _Completions(msgspec.Struct):
    choices: list[_CompletionChoice]


class _Echo(msgspec.Struct):
    index: int = 0
    prompt_logprobs: list[dict[str, _Entry] | None] | None = None


class _Echoes(msgspec.Struct):
    choices: list[_Echo]


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Text(msgspec.Struct):
    prompt: str


def _convert(answer: Mapping[str, Any], kind: type[Any]) -> Any:
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise ScoringError(f"the server's answer cannot be read: {error}") from error
