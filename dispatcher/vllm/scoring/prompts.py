"""What stands before a completion, and how its tokens and the completion's meet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dispatcher.errors import InputError
from dispatcher.vllm.scoring.masked import Path
from dispatcher.vllm.scoring.records import Boundary, ScoringError
from dispatcher.vllm.scoring.wire import DETOKENIZE, TOKENIZE, Wire, read_text, read_tokens

Messages = Sequence[Mapping[str, Any]]

_ANCHORS: Final = ("\n", ":", "0")
"""Texts after which a tokeniser writes a completion as in a text, not as at its beginning."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A plain text, or messages under the model's chat template."""

    given: str | Messages
    template: Mapping[str, Any] = field(default_factory=dict)
    """What the chat template takes of a body, such as `chat_template` and `chat_template_kwargs`.

    Whether an answer is asked for or continued is not among it.
    """

    def asked(self) -> dict[str, Any]:
        """The body of a request for an answer, without its options."""
        if isinstance(self.given, str):
            return {"prompt": self.given}
        return {"messages": list(self.given), **self.template}

    def continued(self, completion: str) -> dict[str, Any]:
        """The same with the completion behind it, left open."""
        if isinstance(self.given, str):
            return {"prompt": self.given + completion}
        answer = {"role": "assistant", "content": completion}
        unfinished = {"add_generation_prompt": False, "continue_final_message": True}
        return {"messages": [*self.given, answer], **self.template, **unfinished}

    @property
    def is_text(self) -> bool:
        """Whether token ids say all of it: they do not of an image."""
        if isinstance(self.given, str):
            return True
        return all(_is_text(message.get("content")) for message in self.given)


@dataclass(frozen=True, slots=True)
class Completion:
    """A completion in tokens, as they stand after a prompt's."""

    ids: Path
    boundary: Boundary


async def tokenize(wire: Wire, body: Mapping[str, Any]) -> Path:
    """The tokens of a prompt."""
    return read_tokens(await wire.post(TOKENIZE, body))


async def detokenize(wire: Wire, ids: Path) -> str:
    """The text of tokens."""
    return read_text(await wire.post(DETOKENIZE, {"tokens": list(ids)})) if ids else ""


async def completion_after(wire: Wire, prompt: Prompt, before: Path, text: str) -> Completion:
    """The completion's tokens after those of the prompt, which stay what they are.

    Raises ScoringError where the tokeniser cannot write it.
    """
    whole = await tokenize(wire, prompt.continued(text))
    if whole[: len(before)] == before and await detokenize(wire, whole[len(before) :]) == text:
        return Completion(whole[len(before) :], Boundary.TOKEN)
    return await _detached(wire, before, whole, text)


def refuse_images(prompt: Prompt, what: str) -> None:
    """Raise InputError where token ids would leave a part of the prompt out."""
    if not prompt.is_text:
        raise InputError(f"{what} needs messages of text alone: token ids do not hold images")


async def _detached(wire: Wire, before: Path, whole: Path, text: str) -> Completion:
    """The completion in tokens of its own, where it has none in the whole."""
    start = await detokenize(wire, before)
    spelled = await detokenize(wire, whole) == start + text
    if spelled and whole[: len(before)] == before:
        return Completion(whole[len(before) :], Boundary.TOKEN)  # alone, it would lose its first blank
    boundary = Boundary.STRADDLED if spelled else Boundary.TEMPLATE
    for anchor in ("", *_ANCHORS):
        ids = await _tokens_after(wire, anchor, text)
        if ids is not None and await detokenize(wire, before + ids) == start + text:
            return Completion(ids, boundary)
    raise ScoringError(f"the model's tokenizer cannot write {text!r:.80}: it comes back as another text")


async def _tokens_after(wire: Wire, anchor: str, text: str) -> Path | None:
    alone = await tokenize(wire, {"prompt": anchor, "add_special_tokens": False}) if anchor else ()
    both = await tokenize(wire, {"prompt": anchor + text, "add_special_tokens": False})
    return both[len(alone) :] if both[: len(alone)] == alone else None


def _is_text(content: object) -> bool:
    if not isinstance(content, list):
        return True
    return all(isinstance(part, Mapping) and part.get("type") == "text" for part in content)
