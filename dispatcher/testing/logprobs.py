"""Log probabilities for the fake's tokens: made up, but what is allowed at a position sums to 1."""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from dispatcher.testing import tokens
from dispatcher.testing.texts import WORDS, Text

FORBIDDEN = -9999.0
"""What vLLM shows for a token that the structured outputs' mask forbids (seen on 0.32.0)."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One token of an answer with its rivals, the likeliest first."""

    token: str
    logprob: float
    top: list[tuple[str, float]]


def score(text: Text, top: int) -> list[Scored]:
    """Each token's log probability and the `top` likeliest at its position."""
    return [_scored(text, position, top) for position in range(len(text.pieces))]


def score_prompt(pieces: Sequence[str]) -> list[float | None]:
    """Each prompt token's log probability, given those before it; None for the first, as vLLM has it."""
    scores: list[float | None] = []
    context = 0
    for piece in pieces:
        context = zlib.crc32(piece.encode(), context)
        scores.append(-(context % 4000) / 500 if scores else None)
    return scores


def chat_content(scored: Sequence[Scored]) -> dict[str, object]:
    """The `logprobs` of a chat choice."""
    return {
        "content": [
            {**_entry(one.token, one.logprob), "top_logprobs": [_entry(*rival) for rival in one.top]}
            for one in scored
        ]
    }


def completion_lists(
    pieces: Sequence[str], scores: Sequence[float | None], tops: Sequence[list[tuple[str, float]] | None]
) -> dict[str, object]:
    """The `logprobs` of a completion choice: parallel lists."""
    offsets = [0]
    for piece in pieces:
        offsets.append(offsets[-1] + len(piece))
    return {
        "text_offset": offsets[:-1],
        "token_logprobs": list(scores),
        "tokens": list(pieces),
        "top_logprobs": [None if top is None else dict(top) for top in tops],
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


def _scored(text: Text, position: int, top: int) -> Scored:
    chosen = text.pieces[position]
    rivals = [rival for rival in _allowed(text, position) if rival != chosen]
    share = 0.5 + zlib.crc32("".join(text.pieces[: position + 1]).encode()) % 50 / 100 if rivals else 1.0
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
    return list(dict.fromkeys(option for piece in nexts for option in (piece, piece[0])))
