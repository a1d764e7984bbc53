"""The request bodies that the fake reads: what it does not use is ignored, as vLLM ignores unknown fields."""

import json
import re
from typing import Any, TypeVar

import msgspec

from dispatcher.testing import refusals

_AT = re.compile(r" - at `\$([^`]*)`$")
_MISSING = re.compile(r"missing required field `(\w+)`")
_INDEX = re.compile(r"\[(\d+|\.\.\.)\]")


class Part(msgspec.Struct):
    """One part of a message's content: text, or an image and the like."""

    type: str = "text"
    text: str | None = None


class Message(msgspec.Struct):
    """One turn of a chat."""

    role: str
    content: str | list[Part] | None = None


class StreamOptions(msgspec.Struct):
    """What a stream tells besides the text."""

    include_usage: bool = False


class StructuredOutputs(msgspec.Struct):
    """vLLM's constraints on the text, since 0.11; until 0.11 there are the fields `guided_*`."""

    choice: list[str] | None = None
    json: str | dict[str, Any] | None = None
    json_object: bool | None = None
    regex: str | None = None
    grammar: str | None = None


class JsonSchema(msgspec.Struct):
    """The `json_schema` of a response format."""

    schema: dict[str, Any] = {}


class ResponseFormat(msgspec.Struct):
    """OpenAI's constraint on the text: `text`, `json_object` or `json_schema`."""

    type: str = "text"
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None
    """Where the Responses API puts the schema."""


class Body(msgspec.Struct):
    """What every body may say."""

    model: str | None = None


class GenerationBody(Body):
    """What every request for text may say."""

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    n: int = 1
    stop: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    logprobs: bool | int | None = None
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    return_tokens_as_token_ids: bool | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    structured_outputs: StructuredOutputs | None = None
    response_format: ResponseFormat | None = None
    guided_choice: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_grammar: Any = None

    @property
    def guided(self) -> dict[str, Any]:
        """The older spelling of structured outputs, under the newer names; not looked at until it is used."""
        old = {
            "choice": self.guided_choice,
            "json": self.guided_json,
            "regex": self.guided_regex,
            "grammar": self.guided_grammar,
        }
        return {name: value for name, value in old.items() if value is not None}


class ChatBody(GenerationBody, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    continue_final_message: bool = False
    add_generation_prompt: bool = True


class CompletionBody(GenerationBody, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[Any] = ""
    echo: bool = False


class TextFormat(msgspec.Struct):
    """The Responses API's `text`."""

    format: ResponseFormat | None = None


class ResponsesBody(GenerationBody, kw_only=True):
    """POST /v1/responses."""

    input: str | list[Message]
    instructions: str | None = None
    text: TextFormat | None = None


class EmbeddingBody(Body, kw_only=True):
    """POST /v1/embeddings, /pooling and /classify."""

    input: str | list[Any]
    dimensions: int | None = None
    encoding_format: str = "float"


class ScoreBody(Body, kw_only=True):
    """POST /score: every pair, or one text against many."""

    text_1: str | list[str]
    text_2: str | list[str]


class RerankBody(Body, kw_only=True):
    """POST /rerank."""

    query: str
    documents: list[str]
    top_n: int = 0


class TokenizeBody(Body, kw_only=True):
    """POST /tokenize: a prompt, or messages."""

    prompt: str | None = None
    messages: list[Message] | None = None
    continue_final_message: bool = False
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False


class DetokenizeBody(Body, kw_only=True):
    """POST /detokenize."""

    tokens: list[int]


B = TypeVar("B", bound=Body)


class Reader:
    """Reads bodies of one kind. Made once, because building a decoder costs more than using it."""

    def __init__(self, kind: type[Body]) -> None:
        self._decoder = msgspec.json.Decoder(kind)

    def read(self, raw: bytes, kind: type[B]) -> B:
        """The body; raises RefusalError with vLLM's own words."""
        try:
            body = self._decoder.decode(raw)
        except msgspec.ValidationError as exc:
            raise _invalid(str(exc)) from exc
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise _undecodable(raw) from exc
        assert isinstance(body, kind)
        return body


def _invalid(message: str) -> refusals.RefusalError:
    at, missing = _AT.search(message), _MISSING.search(message)
    path = _INDEX.sub(lambda index: f".{index[1].replace('...', '0')}", at[1] if at else "")
    return refusals.invalid(message, f"body{path}" + (f".{missing[1]}" if missing else ""))


def _undecodable(raw: bytes) -> refusals.RefusalError:
    """Python's reader, which vLLM uses, takes lone surrogates and bare NaN where a strict one does not."""
    try:
        json.dumps(json.loads(raw), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return refusals.lone_surrogate()
    except json.JSONDecodeError as exc:
        return refusals.malformed_json(exc.msg, exc.pos)
    except ValueError as exc:
        return refusals.malformed_json(str(exc), 0)
    return refusals.malformed_json("Out of range float values are not JSON compliant", 0)
