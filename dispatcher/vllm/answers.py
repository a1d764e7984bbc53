"""A success's body: checked, brought to one line of strict JSON, and read only where that is needed.

Decoding is typed and partial: message texts, embeddings and logprobs are skipped over, never built. Numbers
are passed on as the digits that the server wrote.
"""

from typing import Annotated, Final

import msgspec

from dispatcher.model import NO_TOKENS, Tokens
from dispatcher.vllm.strict_json import on_one_line, repaired

_BOM: Final = b"\xef\xbb\xbf"
_WHITESPACE: Final = b" \t\r\n"
_UNFINISHED: Final = frozenset({None, "", "abort", "error"})
"""`finish_reason`s of a choice that is not complete: vLLM's own for aborted and failed requests
(v1/engine/__init__.py), and what a stream that broke off leaves behind."""


class AnswerFaultError(Exception):
    """The body is not the complete answer that its route promises. The text says what is missing."""


class Reading(msgspec.Struct, frozen=True, gc=False):
    """What a complete answer holds."""

    body: bytes
    """One line of strict JSON: the server's own bytes wherever those are."""
    model: str | None
    tokens: Tokens


def read_answer(url: str, body: bytes) -> Reading:
    """Check and read a 2xx answer of the route `url`. Raises AnswerFaultError where it is not complete."""
    decoder = _DECODERS.get(url, _OTHER)
    body = body.removeprefix(_BOM).strip(_WHITESPACE)
    try:
        answer, body = _decode(decoder, body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AnswerFaultError(f"the answer cannot be read: {error}") from error
    if answer.error:
        raise AnswerFaultError("the answer holds an error")
    if gap := answer.gap():
        raise AnswerFaultError(gap)
    return Reading(body, answer.model, read_usage(answer.usage))


def _decode(decoder: "msgspec.json.Decoder[_Answer]", body: bytes) -> tuple["_Answer", bytes]:
    if not body.isascii():
        body.decode()  # the decoder does not check what it skips
    try:
        answer = decoder.decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        body = repaired(body)
        answer = decoder.decode(body)
    return answer, on_one_line(body)


class _Usage(msgspec.Struct, gc=False):
    """Token counts, by their names on the completion routes and on `/v1/responses`."""

    prompt_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    completion_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    input_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    output_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None


class _Answer(msgspec.Struct, gc=False):
    """Any JSON object, and what all routes share."""

    model: str | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")
    error: object = None

    def gap(self) -> str | None:
        """What the answer lacks to be complete; None for nothing."""
        return None


class _Anything(msgspec.Struct, gc=False):
    """A JSON object whose content does not matter here."""


class _ChatChoice(msgspec.Struct, gc=False):
    message: _Anything
    finish_reason: str | None = None


class _TextChoice(msgspec.Struct, gc=False):
    text: str
    finish_reason: str | None = None


class _Chat(_Answer, kw_only=True, gc=False):
    choices: list[_ChatChoice]

    def gap(self) -> str | None:
        return _unfinished([choice.finish_reason for choice in self.choices])


class _Completion(_Answer, kw_only=True, gc=False):
    choices: list[_TextChoice]

    def gap(self) -> str | None:
        return _unfinished([choice.finish_reason for choice in self.choices])


class _Incompleteness(msgspec.Struct, gc=False):
    reason: str | None = None


class _Response(_Answer, kw_only=True, gc=False):
    status: str
    output: list[_Anything]
    incomplete_details: _Incompleteness | None = None

    def gap(self) -> str | None:
        if self.status == "completed":
            return None
        if self.status == "incomplete" and self.incomplete_details and self.incomplete_details.reason:
            return None
        return f"the answer's status is {self.status!r}"


class _Data(_Answer, kw_only=True, gc=False):
    data: list[_Anything]

    def gap(self) -> str | None:
        return None if self.data else "the answer has no data"


class _PluginData(_Answer, kw_only=True, gc=False):
    """`/pooling`: a list, or what an IO processor plugin makes (entrypoints/pooling/pooling/protocol.py)."""

    data: msgspec.Raw

    def gap(self) -> str | None:
        return "the answer has no data" if bytes(self.data) in (b"null", b"[]") else None


class _Ranking(_Answer, kw_only=True, gc=False):
    results: list[_Anything]

    def gap(self) -> str | None:
        return None if self.results else "the answer has no results"


class _Tokenization(_Answer, kw_only=True, gc=False):
    tokens: msgspec.Raw
    count: int

    def gap(self) -> str | None:
        return None if bytes(self.tokens).startswith(b"[") else "the answer has no list of tokens"


def _decoders(answer: type[_Answer], *urls: str) -> dict[str, msgspec.json.Decoder[_Answer]]:
    return dict.fromkeys(urls, msgspec.json.Decoder(answer))


_OTHER: Final = msgspec.json.Decoder(_Answer)
_DECODERS: Final = {
    **_decoders(_Chat, "/v1/chat/completions"),
    **_decoders(_Completion, "/v1/completions"),
    **_decoders(_Response, "/v1/responses"),
    **_decoders(_Data, "/v1/embeddings", "/embeddings", "/score", "/v1/score", "/classify", "/v1/classify"),
    **_decoders(_PluginData, "/pooling", "/v1/pooling"),
    **_decoders(_Ranking, "/rerank", "/v1/rerank", "/v2/rerank"),
    **_decoders(_Tokenization, "/tokenize", "/v1/tokenize"),
}
_USAGE: Final = msgspec.json.Decoder(_Usage | None)


def _unfinished(reasons: list[str | None]) -> str | None:
    if not reasons:
        return "the answer has no choices"
    if _UNFINISHED.isdisjoint(reasons):
        return None
    unfinished = next(reason for reason in reasons if reason in _UNFINISHED)
    return f"a choice is not complete: finish_reason {unfinished or 'missing'}"


def read_usage(usage: msgspec.Raw) -> Tokens:
    """Counts are worth having and not worth losing an answer for: odd ones are left out."""
    try:
        counts = _USAGE.decode(usage)
    except msgspec.ValidationError:
        return NO_TOKENS
    if counts is None:
        return NO_TOKENS
    return Tokens(
        counts.prompt_tokens or counts.input_tokens or 0,
        counts.completion_tokens or counts.output_tokens or 0,
    )
