"""Log probabilities for the fake's tokens: made up, but what is allowed at a position sums to 1."""

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dispatcher.testing import tokens
from dispatcher.testing.texts import WORDS, Text

Naming = Callable[[str], str]
"""How a token is named in an answer: by its text, or by its id."""

END = "</s>"
"""The token that ends an answer. vLLM shows it after the text of a choice (seen on 0.32.0)."""
FORBIDDEN = -9999.0
"""What vLLM shows for a token that the structured outputs' mask forbids (seen on 0.32.0)."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One token of an answer with its rivals, the likeliest first."""

    token: str
    logprob: float
    top: list[tuple[str, float]]


def score(text: Text, top: int) -> list[Scored]:
    """Each token's log probability and the `top` likeliest at its position. After a choice, the end's too."""
    pieces = [*text.pieces, END] if text.choices and text.finish_reason == "stop" else text.pieces
    return [_scored(text, pieces, position, top) for position in range(len(pieces))]


def naming(*, by_id: bool | None) -> Naming:
    """The names of tokens: `token_id:112` with vLLM's `return_tokens_as_token_ids`."""
    return (lambda piece: f"token_id:{tokens.encode([piece])[0]}") if by_id else str


def score_prompt(pieces: Sequence[str]) -> list[float | None]:
    """Each prompt token's log probability, given those before it; None for the first, as vLLM has it."""
    scores: list[float | None] = []
    context = 0
    for piece in pieces:
        context = zlib.crc32(piece.encode(), context)
        scores.append(-(context % 4000) / 500 if scores else None)
    return scores


def chat_content(scored: Sequence[Scored], name: Naming) -> dict[str, object]:
    """The `logprobs` of a chat choice."""
    return {
        "content": [
            {
                **_entry(name(one.token), one.logprob),
                "bytes": list(one.token.encode()),
                "top_logprobs": [_entry(name(token), logprob) for token, logprob in one.top],
            }
            for one in scored
        ]
    }


def completion_lists(
    pieces: Sequence[str],
    scores: Sequence[float | None],
    tops: Sequence[list[tuple[str, float]] | None],
    name: Naming,
) -> dict[str, object]:
    """The `logprobs` of a completion choice: parallel lists."""
    named, offsets = [name(piece) for piece in pieces], [0]
    for each in named:  # vLLM measures the names, though the text has other offsets
        offsets.append(offsets[-1] + len(each))
    return {
        "text_offset": offsets[:-1],
        "token_logprobs": list(scores),
        "tokens": named,
        "top_logprobs": [
            None if top is None else {name(token): logprob for token, logprob in top} for top in tops
        ],
    }


def prompt_entries(pieces: Sequence[str]) -> list[dict[str, object] | None]:
    """The `prompt_logprobs` of vLLM: by token id, null for the first."""
    ids = tokens.encode(pieces)
    return [
        None if value is None else {str(token): {"logprob": value, "rank": 1, "decoded_token": piece}}
        for token, piece, value in zip(ids, pieces, score_prompt(pieces), strict=True)
    ]


def _entry(token: str, logprob: float) -> dict[str, object]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}


def _scored(text: Text, pieces: Sequence[str], position: int, top: int) -> Scored:
    chosen = pieces[position]
    rivals = [rival for rival in _allowed(text, position) if rival != chosen]
    share = 0.5 + zlib.crc32("".join(pieces[: position + 1]).encode()) % 50 / 100 if rivals else 1.0
    rest = math.log((1 - share) / len(rivals)) if rivals else FORBIDDEN
    ranked = [(chosen, math.log(share)), *((rival, rest) for rival in rivals)]
    if text.constrained:
        ranked += [(word, FORBIDDEN) for word in WORDS if word not in {chosen, *rivals}]
    return Scored(chosen, math.log(share), ranked[:top])


def _allowed(text: Text, position: int) -> list[str]:
    """The tokens that may stand here. Of a choice, each piece's first character too.

    A real vocabulary reaches one label by several tokenisations ("p", "posi" and "positive"), and vLLM's mask
    allows them all.
    """
    if not text.constrained:
        return list(WORDS) if position == 0 else [f" {word}" for word in WORDS]
    before = text.pieces[:position]
    split = [tokens.pieces(choice) for choice in text.choices]
    nexts = [pieces[position] for pieces in split if pieces[:position] == before and len(pieces) > position]
    options = dict.fromkeys(option for piece in nexts for option in (piece, piece[0]))
    return [*options, END] if "".join(before) in text.choices else list(options)
