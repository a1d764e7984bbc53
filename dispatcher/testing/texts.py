"""The texts of the fake's answers: the same body gets the same text, on every server and in every run."""

import hashlib
import re
from dataclasses import dataclass
from random import Random

import msgspec

from dispatcher.testing import refusals, tokens
from dispatcher.testing.bodies import GenerationBody, ResponseFormat, StructuredOutputs
from dispatcher.testing.patterns import UnsupportedPatternError, sample_pattern
from dispatcher.testing.schemas import UnsupportedSchemaError, sample_schema
from dispatcher.testing.settings import FakeServerSettings

# 32 words of three letters: each is one token, with and without the blank before it.
_THREES = (
    "ash bay cup dew elm fig gum hay ink jam kit log map nut oak pea "
    "rye sun tea urn vat wax yam zip bud cob fen hop ivy lea oat sap"
)
WORDS = tuple(_THREES.split())
_SPACED = tuple(f" {word}" for word in WORDS)


@dataclass(frozen=True, slots=True)
class Text:
    """One generated text, in tokens."""

    pieces: list[str]
    finish_reason: str
    """`stop` or `length`."""
    stop_reason: str | None = None
    """The stop string that ended it."""
    constrained: bool = False
    choices: tuple[str, ...] = ()
    """The texts that were allowed, where there was a choice."""

    @property
    def text(self) -> str:
        """The tokens, joined."""
        return "".join(self.pieces)


def generate(body: GenerationBody, seed: bytes, limit: int, settings: FakeServerSettings) -> Text:
    """The text that this body gets, at most `limit` tokens. Raises RefusalError where none can be."""
    mean_tokens = settings.answer_tokens
    constraint = _constraint(body, settings.version)
    if constraint is None and body.stop is None:
        return _free(seed, limit, mean_tokens)
    if constraint is None:
        return _stopped(_free(seed, limit, mean_tokens), body.stop)
    pieces = tokens.pieces(_constrained(constraint, seed))
    return Text(
        pieces[:limit],
        "length" if len(pieces) > limit else "stop",
        constrained=True,
        choices=tuple(constraint.choice or ()),
    )


def free_tokens(seed: bytes, mean_tokens: int) -> int:
    """How long an unconstrained answer is, in tokens: 1 to twice the mean, evenly."""
    return 1 + int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest()) % max(1, 2 * mean_tokens - 1)


def _free(seed: bytes, limit: int, mean_tokens: int) -> Text:
    wanted = free_tokens(seed, mean_tokens)
    length = min(wanted, limit)
    picks = hashlib.shake_128(seed).digest(length)
    pieces = [_SPACED[pick & 31] for pick in picks]
    if pieces:
        pieces[0] = pieces[0][1:]
    return Text(pieces, "length" if wanted > limit else "stop")


def _stopped(text: Text, stop: str | list[str] | None) -> Text:
    """The text up to the first stop string in it."""
    whole = text.text
    stops = [stop] if isinstance(stop, str) else stop or []
    found = [(whole.index(end), end) for end in stops if end and end in whole]
    if not found:
        return text
    at, end = min(found)
    return Text(tokens.pieces(whole[:at]), "stop", end)


def _constraint(body: GenerationBody, version: str) -> StructuredOutputs | None:
    """The spellings of structured outputs as one; None where the text is free.

    A version ignores what it does not know: `structured_outputs` before 0.11, `guided_*` from 0.12 on.
    """
    release = _release(version)
    if body.guided and release < (0, 12):
        return _one_kind(_guided(body))
    if body.structured_outputs is not None and release >= (0, 11):
        return _one_kind(body.structured_outputs)
    return None if body.response_format is None else _of_format(body.response_format)


def _release(version: str) -> tuple[int, int]:
    """The first two numbers; what has none is as new as can be."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (999, 0)


def _guided(body: GenerationBody) -> StructuredOutputs:
    try:
        return msgspec.convert(body.guided, StructuredOutputs)
    except msgspec.ValidationError as exc:
        raise refusals.invalid(str(exc), "body.guided") from exc


def _one_kind(asked: StructuredOutputs) -> StructuredOutputs:
    kinds = (asked.choice, asked.json, asked.json_object, asked.regex, asked.grammar)
    if sum(kind is not None for kind in kinds) > 1:
        raise refusals.refusal(
            "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice')."
        )
    if asked.choice == []:
        raise refusals.refusal("Choice '[]' cannot be an empty list")
    return asked


def _of_format(response_format: ResponseFormat) -> StructuredOutputs | None:
    match response_format.type:
        case "json_schema":
            nested = response_format.json_schema
            return StructuredOutputs(json=response_format.schema if nested is None else nested.schema)
        case "json_object":
            return StructuredOutputs(json_object=True)
        case _:
            return None


def _constrained(constraint: StructuredOutputs, seed: bytes) -> str:
    random = Random(seed)
    try:
        if constraint.choice:
            return random.choice(constraint.choice)
        if constraint.regex is not None:
            return sample_pattern(constraint.regex, random)
        if constraint.json is not None:
            return _json(constraint.json, random)
    except (UnsupportedPatternError, UnsupportedSchemaError, msgspec.DecodeError) as exc:
        raise refusals.refusal(str(exc)) from exc
    if constraint.json_object:
        return msgspec.json.encode({random.choice(WORDS): random.choice(WORDS)}).decode()
    raise refusals.refusal(
        "You must use one kind of structured outputs that the fake server knows: not a grammar"
    )


def _json(schema: str | dict[str, object], random: Random) -> str:
    decoded = msgspec.json.decode(schema, type=dict[str, object]) if isinstance(schema, str) else schema
    return msgspec.json.encode(sample_schema(decoded, random)).decode()
