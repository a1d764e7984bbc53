"""Answers that are text: chat, completions, and their streams."""

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from dispatcher.testing import logprobs, refusals, tokens
from dispatcher.testing.bodies import (
    ChatBody,
    CompletionBody,
    GenerationBody,
    Reader,
)
from dispatcher.testing.parameters import asked_limit, check_ranges
from dispatcher.testing.replies import EVENT_STREAM, Asked, Reply, fit, prompts, rendered, served_as, usage
from dispatcher.testing.texts import Text, generate

_CHAT, _COMPLETION = Reader(ChatBody), Reader(CompletionBody)
_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions, which vLLM keeps
_PIECES_A_CHUNK = 4
_FINGERPRINT = "vllm-0.32.0-fake"
_UNSET_CHOICE = {"token_ids": None, "routed_experts": None}
_UNSET_CHAT = {"prompt_token_ids": None, "prompt_text": None}
_UNSET = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
"""What vLLM 0.32.0 sends as null unless it was asked for more than the fake knows."""


def chat(asked: Asked) -> Reply:
    """POST /v1/chat/completions."""
    body = _CHAT.read(asked.raw, ChatBody)
    model = served_as(body, asked.settings)
    if not body.messages:
        raise refusals.no_messages()
    prompt = rendered(body.messages, ask=body.add_generation_prompt, unfinished=body.continue_final_message)
    pieces = tokens.pieces(prompt)
    texts = texts_of(body, asked.raw, limit_of(body, len(pieces), asked, None), asked)
    head = {"id": f"chatcmpl-{asked.request_id}", "created": asked.created, "model": model}
    total = usage(len(pieces), sum(len(text.pieces) for text in texts))
    if body.stream:
        return text_reply(
            _chat_stream(head, texts, _stream_usage(body, total)), len(pieces), texts, EVENT_STREAM
        )
    answer = {
        **head,
        "object": "chat.completion",
        "choices": [_chat_choice(index, text, body) for index, text in enumerate(texts)],
        "service_tier": None,
        "system_fingerprint": _FINGERPRINT,
        "usage": total,
        "prompt_logprobs": None if body.prompt_logprobs is None else logprobs.prompt_entries(pieces),
        **_UNSET_CHAT,
        **_UNSET,
    }
    return text_reply(msgspec.json.encode(answer), len(pieces), texts)


def completion(asked: Asked) -> Reply:
    """POST /v1/completions. With `echo` and `max_tokens` 0 it scores the prompt."""
    body = _COMPLETION.read(asked.raw, CompletionBody)
    if not body.prompt:
        raise refusals.no_prompt()
    model = served_as(body, asked.settings)
    split = prompts(body.prompt)
    limits = [limit_of(body, len(pieces), asked, _COMPLETION_TOKENS) for pieces in split]
    pairs = [
        (pieces, text)
        for index, (pieces, limit) in enumerate(zip(split, limits, strict=True))
        for text in texts_of(body, asked.raw + index.to_bytes(4) if index else asked.raw, limit, asked)
    ]
    texts = [text for _, text in pairs]
    prompt_tokens = sum(map(len, split))
    head = {
        "id": f"cmpl-{asked.request_id}",
        "object": "text_completion",
        "created": asked.created,
        "model": model,
    }
    # Scoring a prompt costs a token, too: vLLM generates one and leaves it out of the text.
    total = usage(prompt_tokens, sum(len(text.pieces) or 1 for text in texts))
    if body.stream:
        return text_reply(
            _completion_stream(head, texts, _stream_usage(body, total)), prompt_tokens, texts, EVENT_STREAM
        )
    choices = [_completion_choice(index, pieces, text, body) for index, (pieces, text) in enumerate(pairs)]
    tier = {"service_tier": None, "system_fingerprint": _FINGERPRINT}
    answer = {**head, "choices": choices, **tier, "usage": total, **_UNSET}
    return text_reply(msgspec.json.encode(answer), prompt_tokens, texts)


def text_reply(
    body: bytes, prompt_tokens: int, texts: Sequence[Text], content_type: str = refusals.JSON
) -> Reply:
    """An answer with what its texts cost the engine."""
    output_tokens = sum(len(text.pieces) for text in texts)
    return Reply(
        body, prompt_tokens, output_tokens, tuple(text.finish_reason for text in texts), content_type
    )


def limit_of(body: GenerationBody, prompt_tokens: int, asked: Asked, default: int | None) -> int:
    """How many tokens the answer may have. Raises RefusalError for parameters out of range.

    A limit that the context has no room for is cut down to what there is (seen on vLLM 0.32.0).
    """
    check_ranges(body)
    longest = asked.settings.max_model_len
    name, wanted = asked_limit(body, default)
    if wanted is not None and wanted > longest:
        raise refusals.answer_too_long(name, wanted, longest)
    fit(prompt_tokens, asked.settings)
    room = longest - prompt_tokens
    limit = room if wanted is None else min(wanted, room)
    if limit < (0 if _echoes(body) else 1):
        raise refusals.out_of_range(f"max_tokens must be at least 1, got {limit}.", "max_tokens", limit)
    return limit


def _echoes(body: GenerationBody) -> bool:
    return isinstance(body, CompletionBody) and body.echo


def texts_of(body: GenerationBody, raw: bytes, limit: int, asked: Asked) -> list[Text]:
    """One text for each of `n`."""
    digest = hashlib.blake2b(raw, digest_size=16).digest()
    seeds = [digest, *(digest + index.to_bytes(2) for index in range(1, body.n))]
    return [generate(body, seed, limit, asked.settings) for seed in seeds]


def _chat_choice(index: int, text: Text, body: ChatBody) -> dict[str, object]:
    wanted = body.logprobs is True or (body.logprobs is not None and body.logprobs is not False)
    scored = logprobs.score(text, body.top_logprobs or 0)
    return {
        "index": index,
        "message": {
            "role": "assistant" if body.add_generation_prompt else body.messages[-1].role,
            "content": text.text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        },
        "logprobs": logprobs.chat_content(scored, _names(body)) if wanted else None,
        "finish_reason": text.finish_reason,
        "stop_reason": text.stop_reason,
        **_UNSET_CHOICE,
    }


def _completion_choice(index: int, prompt: list[str], text: Text, body: CompletionBody) -> dict[str, object]:
    echoed = prompt if body.echo else []
    return {
        "index": index,
        "text": "".join(echoed) + text.text,
        "logprobs": _completion_logprobs(echoed, text, body),
        "finish_reason": text.finish_reason,
        "stop_reason": text.stop_reason,
        "prompt_logprobs": logprobs.prompt_entries(prompt) if _scores_prompt(body) else None,
        "prompt_token_ids": None,
        **_UNSET_CHOICE,
    }


def _names(body: GenerationBody) -> logprobs.Naming:
    return logprobs.naming(by_id=body.return_tokens_as_token_ids)


def _scores_prompt(body: CompletionBody) -> bool:
    return body.prompt_logprobs is not None or (body.echo and body.logprobs is not None)


def _completion_logprobs(echoed: list[str], text: Text, body: CompletionBody) -> dict[str, object] | None:
    if body.logprobs is None or body.logprobs is False:
        return None
    scored = logprobs.score(text, int(body.logprobs))
    of_prompt = logprobs.score_prompt(echoed)
    tops = [
        None if value is None else [(piece, value)] for piece, value in zip(echoed, of_prompt, strict=True)
    ]
    return logprobs.completion_lists(
        [*echoed, *(one.token for one in scored)],
        [*of_prompt, *(one.logprob for one in scored)],
        [*tops, *(one.top for one in scored)],
        _names(body),
    )


# --- streams: server-sent events, all of them at once when the model is done ---


def _chat_stream(head: dict[str, object], texts: list[Text], last: dict[str, int | None] | None) -> bytes:
    head = {**head, "object": "chat.completion.chunk"}
    chunks: list[dict[str, object]] = [
        _chunk(index, {"delta": {"role": "assistant", "content": ""}}) for index in range(len(texts))
    ]
    for index, text in enumerate(texts):
        chunks += [_chunk(index, {"delta": {"content": part}}) for part in _parts(text)]
        chunks.append(_chunk(index, {"delta": {}}, text))
    return _events(head, chunks, last)


def _completion_stream(
    head: dict[str, object], texts: list[Text], last: dict[str, int | None] | None
) -> bytes:
    chunks: list[dict[str, object]] = []
    for index, text in enumerate(texts):
        chunks += [_chunk(index, {"text": part}) for part in _parts(text)]
        chunks.append(_chunk(index, {"text": ""}, text))
    return _events(head, chunks, last)


def _chunk(index: int, what: dict[str, object], ended: Text | None = None) -> dict[str, object]:
    finish = {
        "finish_reason": ended and ended.finish_reason,
        "stop_reason": ended and ended.stop_reason,
    }
    return {"index": index, **what, "logprobs": None, **finish}


def _parts(text: Text) -> list[str]:
    starts = range(0, len(text.pieces), _PIECES_A_CHUNK)
    return ["".join(text.pieces[start : start + _PIECES_A_CHUNK]) for start in starts]


def _events(
    head: dict[str, object], chunks: Iterable[dict[str, object]], last: dict[str, int | None] | None
) -> bytes:
    events: list[dict[str, object]] = [{**head, "choices": [chunk]} for chunk in chunks]
    if last is not None:
        events.append({**head, "choices": [], "usage": last})
    return (
        b"".join(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    )


def _stream_usage(body: GenerationBody, total: dict[str, int | None]) -> dict[str, int | None] | None:
    return total if body.stream_options is not None and body.stream_options.include_usage else None
