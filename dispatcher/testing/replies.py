"""What an answer is made of, and what it is made from: shared by all routes."""

from dataclasses import dataclass

import msgspec

from dispatcher.testing import refusals, tokens
from dispatcher.testing.bodies import Body, Message
from dispatcher.testing.settings import FakeServerSettings

EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request's circumstances."""

    settings: FakeServerSettings
    raw: bytes
    request_id: str
    created: int
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A good answer with what it costs the engine."""

    body: bytes
    prompt_tokens: int = 0
    output_tokens: int = 0
    finish_reasons: tuple[str, ...] = ()
    content_type: str = refusals.JSON


def served_as(body: Body, settings: FakeServerSettings, *, pools: bool = False) -> str:
    """The name that the answer carries. Raises RefusalError for a model that is not served.

    `pools`: the route is one of those that pool, whose refusal reads differently.
    """
    if body.model is None or body.model in settings.models:
        return settings.models[0]
    if body.model in settings.adapters:
        return body.model
    raise refusals.unknown_model(body.model, () if pools else settings.models)


def rendered(messages: list[Message], *, ask: bool = True, unfinished: bool = False) -> str:
    """The fake's chat template. `ask` opens the assistant's turn; `unfinished` leaves the last one open."""
    turns = "\n".join(f"<|{message.role}|>\n{content(message)}" for message in messages)
    if unfinished:
        return turns
    return f"{turns}\n<|assistant|>\n" if ask else f"{turns}\n"


def content(message: Message) -> str:
    """A message's text; other parts count as a mark of one kind."""
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    return "\n".join(f"<|{part.type}|>" if part.text is None else part.text for part in message.content)


def fit(prompt_tokens: int, settings: FakeServerSettings) -> None:
    """Raise RefusalError for a prompt that is longer than the model's context."""
    if prompt_tokens > settings.max_model_len:
        raise refusals.context_length(prompt_tokens, settings.max_model_len)


def usage(prompt_tokens: int, output_tokens: int = 0) -> dict[str, int | None]:
    """An answer's `usage`."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "completion_tokens": output_tokens,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


def prompts(value: str | list[object]) -> list[list[str]]:
    """A prompt, or several, in pieces: each may be text or token ids."""
    if isinstance(value, str):
        return [tokens.pieces(value)]
    if value and all(isinstance(item, int) for item in value):
        return [_pieces_of_ids(value)]
    return [tokens.pieces(item) if isinstance(item, str) else _pieces_of_ids(item) for item in value]


def _pieces_of_ids(value: object) -> list[str]:
    try:
        return tokens.decode(msgspec.convert(value, list[int]))
    except (msgspec.ValidationError, OverflowError) as exc:
        raise refusals.refusal("a prompt is text or a list of token ids", param="prompt") from exc
