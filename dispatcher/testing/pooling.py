"""Answers that are numbers: embeddings, scores, rankings, classes, and the tokeniser's own routes."""

import base64
import hashlib
import math
import struct
from collections.abc import Mapping, Sequence

import msgspec

from dispatcher.testing import refusals, tokens
from dispatcher.testing.bodies import (
    DetokenizeBody,
    EmbeddingBody,
    Reader,
    RerankBody,
    ScoreBody,
    TokenizeBody,
)
from dispatcher.testing.replies import Asked, Reply, fit, prompts, rendered, served_as, usage

_EMBEDDING, _SCORE, _RERANK = Reader(EmbeddingBody), Reader(ScoreBody), Reader(RerankBody)
_TOKENIZE, _DETOKENIZE = Reader(TokenizeBody), Reader(DetokenizeBody)
_DIMENSIONS_MAX = 16_384
_LABELS = ("LABEL_0", "LABEL_1")


def embeddings(asked: Asked) -> Reply:
    """POST /v1/embeddings: unit vectors, as numbers or as base64 of little-endian float32."""
    return _vectors(asked, "embd", "embedding", "embedding")


def pooling(asked: Asked) -> Reply:
    """POST /pooling."""
    return _vectors(asked, "pooling", "pooling", "data")


def classify(asked: Asked) -> Reply:
    """POST /classify, with two labels."""
    body = _EMBEDDING.read(asked.raw, EmbeddingBody)
    model = served_as(body, asked.settings, pools=True)
    split = prompts(body.input)
    data = [{"index": index, **_class("".join(pieces))} for index, pieces in enumerate(split)]
    return _list_reply(asked, "classify", model, data, sum(map(len, split)))


def score(asked: Asked) -> Reply:
    """POST /score: one text against each of the others, or pair by pair."""
    body = _SCORE.read(asked.raw, ScoreBody)
    model = served_as(body, asked.settings, pools=True)
    first, second = _listed(body.text_1), _listed(body.text_2)
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second):
        raise refusals.refusal("Input lengths must be either 1:1, 1:N or N:N")
    data = [
        {"index": index, "object": "score", "score": _similarity(one, other)}
        for index, (one, other) in enumerate(zip(first, second, strict=True))
    ]
    return _list_reply(asked, "score", model, data, sum(map(tokens.count, first + second)))


def rerank(asked: Asked) -> Reply:
    """POST /rerank: the documents by falling relevance, at most `top_n` where it is above 0."""
    body = _RERANK.read(asked.raw, RerankBody)
    model = served_as(body, asked.settings, pools=True)
    scores = [(_similarity(body.query, text), index) for index, text in enumerate(body.documents)]
    ranked = sorted(scores, key=lambda pair: (-pair[0], pair[1]))[: body.top_n or None]
    total = sum(tokens.count(body.query) + tokens.count(text) for text in body.documents)
    results = [
        {
            "index": index,
            "document": {"text": body.documents[index], "multi_modal": None},
            "relevance_score": relevance,
        }
        for relevance, index in ranked
    ]
    answer = {
        "id": f"score-{asked.request_id}",
        "model": model,
        "usage": {"prompt_tokens": total, "total_tokens": total},
        "results": results,
    }
    return _reply(answer, total)


def tokenize(asked: Asked) -> Reply:
    """POST /tokenize, of a prompt or of messages in the chat template."""
    body = _TOKENIZE.read(asked.raw, TokenizeBody)
    served_as(body, asked.settings)
    pieces = tokens.pieces(_tokenized_text(body))
    answer = {
        "count": len(pieces),
        "max_model_len": asked.settings.max_model_len,
        "tokens": tokens.encode(pieces),
        "token_strs": pieces if body.return_token_strs else None,
    }
    return Reply(msgspec.json.encode(answer))


def detokenize(asked: Asked) -> Reply:
    """POST /detokenize."""
    body = _DETOKENIZE.read(asked.raw, DetokenizeBody)
    served_as(body, asked.settings)
    try:
        return Reply(msgspec.json.encode({"prompt": "".join(tokens.decode(body.tokens))}))
    except OverflowError as exc:
        raise refusals.invalid("Input should be greater than or equal to 0", "body.tokens.0") from exc


def _tokenized_text(body: TokenizeBody) -> str:
    if body.messages is not None:
        return rendered(body.messages, ask=body.add_generation_prompt, unfinished=body.continue_final_message)
    if body.prompt is None:
        raise refusals.invalid("Object missing both `prompt` and `messages`", "body.prompt")
    return body.prompt


def _vectors(asked: Asked, prefix: str, kind: str, key: str) -> Reply:
    body = _EMBEDDING.read(asked.raw, EmbeddingBody)
    model = served_as(body, asked.settings, pools=True)
    split = prompts(body.input)
    size = body.dimensions or asked.settings.embedding_dimensions
    if not 1 <= size <= _DIMENSIONS_MAX:
        raise refusals.refusal(f"dimensions must be between 1 and {_DIMENSIONS_MAX}", param="dimensions")
    for pieces in split:
        fit(len(pieces), asked.settings)
    vectors = [_written(_unit_vector("".join(pieces), size), body.encoding_format) for pieces in split]
    data = [{"index": index, "object": kind, key: vector} for index, vector in enumerate(vectors)]
    return _list_reply(asked, prefix, model, data, sum(map(len, split)))


def _list_reply(
    asked: Asked, prefix: str, model: str, data: Sequence[Mapping[str, object]], prompt_tokens: int
) -> Reply:
    answer = {
        "id": f"{prefix}-{asked.request_id}",
        "object": "list",
        "created": asked.created,
        "model": model,
        "data": data,
        "usage": usage(prompt_tokens),
    }
    return _reply(answer, prompt_tokens)


def _reply(answer: Mapping[str, object], prompt_tokens: int) -> Reply:
    return Reply(msgspec.json.encode(answer), prompt_tokens, 0, ("stop",))


def _unit_vector(text: str, size: int) -> list[float]:
    digest = hashlib.shake_128(text.encode()).digest(2 * size)
    raw = [number / 32_768 + 1e-5 for (number,) in struct.iter_unpack("<h", digest)]
    length = math.sqrt(sum(number * number for number in raw))
    return [number / length for number in raw]


def _written(vector: list[float], encoding: str) -> list[float] | str:
    if encoding != "base64":
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _class(text: str) -> dict[str, object]:
    first = _similarity(text, "")
    probabilities = [first, 1 - first]
    label = _LABELS[probabilities.index(max(probabilities))]
    return {"label": label, "probs": probabilities, "num_classes": len(_LABELS)}


def _similarity(one: str, other: str) -> float:
    digest = hashlib.blake2b(f"{one}\0{other}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) / 2**32


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
