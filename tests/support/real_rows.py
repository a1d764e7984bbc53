"""Rows of mixed routes for the real models, and what must become of them."""

import json
from dataclasses import dataclass
from pathlib import Path

CHAT, COMPLETIONS, EMBEDDINGS, TOKENIZE = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/tokenize",
)
MODEL, EMBEDDER = "tiny", "embedder"
LABELS = ["positive", "negative", "neutral"]
_TOO_LONG = "hello " * 2000
_SCHEMA = {
    "type": "object",
    "properties": {"label": {"enum": LABELS}, "sure": {"type": "boolean"}},
    "required": ["label", "sure"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Row:
    """One request: its route, its body, and the error code that it must end with, if any."""

    name: str
    url: str
    body: dict[str, object]
    fails_as: str | None = None

    @property
    def generates(self) -> bool:
        """Whether its success is one finished request of an engine."""
        return self.url != TOKENIZE

    def line(self) -> str:
        request = {"custom_id": self.name, "method": "POST", "url": self.url, "body": self.body}
        return json.dumps(request) + "\n"


def write_rows(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(row.line() for row in rows))
    return path


def mixed(count: int, *, tokens: int = 24) -> list[Row]:
    """Rows of every route that the two models have, with answers of up to twice `tokens`, all successes."""
    return [_MIX[number % len(_MIX)](number, 1 + (number * 7) % (2 * tokens)) for number in range(count)]


def long_texts(count: int, *, tokens: int, model: str = MODEL) -> list[Row]:
    """Completions of just so many tokens, which keep a server busy for a known time."""
    body = {"model": model, "max_tokens": tokens, "min_tokens": tokens}
    return [
        Row(f"{model}-{number:04}", COMPLETIONS, {**body, "prompt": f"{number} quick"})
        for number in range(count)
    ]


def hopeless() -> list[Row]:
    """Rows that no server can answer, in every way that a real one says so."""
    texts = {"model": MODEL, "max_tokens": 8}
    long_chat = [{"role": "user", "content": _TOO_LONG}]
    return [
        Row("long-chat", CHAT, {**texts, "messages": long_chat}, "context_length"),
        Row("long-prompt", COMPLETIONS, {**texts, "prompt": _TOO_LONG}, "context_length"),
        Row("longest-prompt", COMPLETIONS, {**texts, "prompt": _TOO_LONG * 20}, "context_length"),
        Row("long-answer", COMPLETIONS, {**texts, "prompt": "a", "max_tokens": 9999}, "context_length"),
        Row("long-input", EMBEDDINGS, {"model": EMBEDDER, "input": _TOO_LONG}, "context_length"),
        Row("cold", COMPLETIONS, {**texts, "prompt": "a", "temperature": -1}, "invalid_request"),
        Row("empty", COMPLETIONS, {**texts, "prompt": ""}, "invalid_request"),
        Row("regex", CHAT, _chat(0, 8, structured_outputs={"regex": "(("}), "invalid_request"),
        Row("wrong-route", EMBEDDINGS, {"model": MODEL, "input": "a"}, "invalid_request"),
    ]


def _chat(number: int, tokens: int, **more: object) -> dict[str, object]:
    text = f"Classify the sentiment of this text: {number}"
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": tokens, **more}


def _free_chat(number: int, tokens: int) -> Row:
    return Row(f"chat-{number:04}", CHAT, _chat(number, tokens))


def _choice(number: int, tokens: int) -> Row:
    body = _chat(number, 16, structured_outputs={"choice": LABELS}, logprobs=True, top_logprobs=2)
    return Row(f"choice-{number:04}", CHAT, body)


def _schema(number: int, tokens: int) -> Row:
    response_format = {"type": "json_schema", "json_schema": {"name": "label", "schema": _SCHEMA}}
    return Row(f"schema-{number:04}", CHAT, _chat(number, 200, response_format=response_format))


def _completion(number: int, tokens: int) -> Row:
    body = {"model": MODEL, "prompt": f"{number} quick", "max_tokens": tokens}
    return Row(f"text-{number:04}", COMPLETIONS, body)


def _scored(number: int, tokens: int) -> Row:
    body = {"model": MODEL, "prompt": f"{number} quick", "max_tokens": 0, "echo": True, "logprobs": 1}
    return Row(f"scored-{number:04}", COMPLETIONS, body)


def _embedding(number: int, tokens: int) -> Row:
    return Row(f"vector-{number:04}", EMBEDDINGS, {"model": EMBEDDER, "input": f"{number} lazy"})


def _tokenized(number: int, tokens: int) -> Row:
    return Row(f"tokens-{number:04}", TOKENIZE, {"model": MODEL, "prompt": f"{number} lazy"})


_MIX = (_free_chat, _completion, _free_chat, _choice, _embedding, _completion, _schema, _tokenized, _scored)
