"""Texts in tokens, and tokens after a context. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from dispatcher.errors import InputError
from dispatcher.vllm.client.messages import Messages, conversation

TOKENIZE: Final = "/tokenize"
DETOKENIZE: Final = "/detokenize"
"""Not under /v1 in vLLM (seen on 0.32.0)."""

_TEMPLATE: Final = ("chat_template", "chat_template_kwargs", "mm_processor_kwargs")
_ENDING: Final = ("add_generation_prompt", "continue_final_message")


@dataclass(frozen=True, slots=True)
class Tokenization:
    """A text in a model's tokens."""

    ids: tuple[int, ...]
    strings: tuple[str, ...]
    """The tokens as the vocabulary spells them: in many, a leading blank is `Ġ` or `▁`. Empty where the
    server does not tell."""
    max_model_len: int | None = None
    """Tokens that prompt and answer may have together."""
    straddles: bool = False
    """After a context: one token holds the end of the context and the beginning of the text, and is the
    first of these; or the chat template writes the context differently where an answer follows."""

    @property
    def count(self) -> int:
        """How many tokens."""
        return len(self.ids)


def body_of(text: Messages, template: Mapping[str, Any]) -> dict[str, Any]:
    """The body for `/tokenize`. `template`: a payload of which the chat template's fields are taken."""
    if isinstance(text, str):
        return {"prompt": text, "return_token_strs": True}
    ending = {name: template[name] for name in _ENDING if name in template}
    return {"messages": conversation(text), "return_token_strs": True, **template_of(template), **ending}


def template_of(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Of a payload, what decides how the chat template writes messages."""
    return {name: payload[name] for name in _TEMPLATE if name in payload}


def continued(context: Messages, text: Messages, template: Mapping[str, Any]) -> dict[str, Any]:
    """The body that has the text after the context: after messages, as the assistant's answer begun."""
    if not isinstance(text, str):
        raise InputError("with a context, what is tokenized must be a text")
    if isinstance(context, str):
        return body_of(context + text, template)
    answer = {"role": "assistant", "content": text}
    unfinished = {"add_generation_prompt": False, "continue_final_message": True}
    return body_of([*context, answer], {**template, **unfinished})


def read_tokenization(answer: Mapping[str, Any]) -> Tokenization:
    """Read an answer of `/tokenize`. Raises `msgspec.ValidationError` where it is none."""
    read = msgspec.convert(answer, _Answer)
    return Tokenization(tuple(read.tokens), tuple(read.token_strs or ()), read.max_model_len)


def after(context: Tokenization, whole: Tokenization) -> Tokenization:
    """What of the whole comes after the context: all from the first token that is not the context's own."""
    pairs = zip(context.ids, whole.ids, strict=False)
    shared = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
    if shared is None:
        shared = min(context.count, whole.count)
    return Tokenization(
        whole.ids[shared:], whole.strings[shared:], whole.max_model_len, straddles=shared < context.count
    )


class _Answer(msgspec.Struct):
    tokens: list[int]
    token_strs: list[str] | None = None
    max_model_len: int | None = None
