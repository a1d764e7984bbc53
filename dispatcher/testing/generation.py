"""Answers that are text: chat, completions, responses, and the streams of the first two."""

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from dispatcher.testing import logprobs, refusals, tokens
from dispatcher.testing.bodies import (
    ChatBody,
    CompletionBody,
    GenerationBody,
    Message,
    Reader,
    ResponsesBody,
)
from dispatcher.testing.replies import EVENT_STREAM, Asked, Reply, prompts, rendered, served_as, usage
from dispatcher.testing.texts import Text, generate

_CHAT, _COMPLETION, _RESPONSES = Reader(ChatBody), Reader(CompletionBody), Reader(ResponsesBody)
_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions, which vLLM keeps
_CHOICES_MAX = 128
_PIECES_A_CHUNK = 4


def chat(asked: Asked) -> Reply:
    """POST /v1/chat/completions."""
    body = _CHAT.read(asked.raw, ChatBody)
    model = served_as(body, asked.settings)
    prompt = rendered(body.messages, ask=body.add_generation_prompt, unfinished=body.continue_final_message)
    pieces = tokens.pieces(prompt)
    limit = _limit(body, len(pieces), asked, None)
    texts = _texts(body, asked.raw, limit, asked)
    head = {"id": f"chatcmpl-{asked.request_id}", "created": asked.created, "model": model}
    total = usage(len(pieces), sum(len(text.pieces) for text in texts))
    if body.stream:
        return _reply(_chat_stream(head, texts, _stream_usage(body, total)), len(pieces), texts, EVENT_STREAM)
    answer = {
        **head,
        "object": "chat.completion",
        "choices": [_chat_choice(index, text, body) for index, text in enumerate(texts)],
        "usage": total,
        "prompt_logprobs": None if body.prompt_logprobs is None else logprobs.prompt_entries(pieces),
    }
    return _reply(msgspec.json.encode(answer), len(pieces), texts)


def completion(asked: Asked) -> Reply:
    """POST /v1/completions. With `echo` and `max_tokens` 0 it scores the prompt."""
    body = _COMPLETION.read(asked.raw, CompletionBody)
    model = served_as(body, asked.settings)
    split = prompts(body.prompt)
    limits = [_limit(body, len(pieces), asked, _COMPLETION_TOKENS) for pieces in split]
    pairs = [
        (pieces, text)
        for index, (pieces, limit) in enumerate(zip(split, limits, strict=True))
        for text in _texts(body, asked.raw + index.to_bytes(4) if index else asked.raw, limit, asked)
    ]
    texts = [text for _, text in pairs]
    prompt_tokens = sum(map(len, split))
    head = {
        "id": f"cmpl-{asked.request_id}",
        "object": "text_completion",
        "created": asked.created,
        "model": model,
    }
    total = usage(prompt_tokens, sum(len(text.pieces) for text in texts))
    if body.stream:
        return _reply(
            _completion_stream(head, texts, _stream_usage(body, total)), prompt_tokens, texts, EVENT_STREAM
        )
    choices = [_completion_choice(index, pieces, text, body) for index, (pieces, text) in enumerate(pairs)]
    return _reply(msgspec.json.encode({**head, "choices": choices, "usage": total}), prompt_tokens, texts)


def responses(asked: Asked) -> Reply:
    """POST /v1/responses, without streaming."""
    body = _RESPONSES.read(asked.raw, ResponsesBody)
    model = served_as(body, asked.settings)
    if body.stream:
        raise refusals.refusal("The fake server does not stream responses.", param="stream")
    if body.text is not None and body.text.format is not None:
        body.response_format = body.text.format
    messages = [Message("user", body.input)] if isinstance(body.input, str) else body.input
    system = [Message("system", body.instructions)] if body.instructions else []
    prompt_tokens = tokens.count(rendered(system + messages))
    body.n = 1
    [text] = _texts(body, asked.raw, _limit(body, prompt_tokens, asked, None), asked)
    complete = text.finish_reason == "stop"
    status = "completed" if complete else "incomplete"
    answer = {
        "id": f"resp_{asked.request_id}",
        "object": "response",
        "created_at": asked.created,
        "model": model,
        "status": status,
        "incomplete_details": None if complete else {"reason": "max_output_tokens"},
        "output": [_output_message(asked.request_id, text, status)],
        "usage": {
            "input_tokens": prompt_tokens,
            "output_tokens": len(text.pieces),
            "total_tokens": prompt_tokens + len(text.pieces),
        },
    }
    return _reply(msgspec.json.encode(answer), prompt_tokens, [text])


def _reply(
    body: bytes, prompt_tokens: int, texts: Sequence[Text], content_type: str = refusals.JSON
) -> Reply:
    output_tokens = sum(len(text.pieces) for text in texts)
    return Reply(
        body, prompt_tokens, output_tokens, tuple(text.finish_reason for text in texts), content_type
    )


def _limit(body: GenerationBody, prompt_tokens: int, asked: Asked, default: int | None) -> int:
    """How many tokens the answer may have. Raises RefusalError for parameters out of range."""
    if body.temperature is not None and body.temperature < 0:
        raise refusals.negative_temperature(body.temperature)
    if not 1 <= body.n <= _CHOICES_MAX:
        raise refusals.refusal(f"n must be between 1 and {_CHOICES_MAX}, got {body.n}.", param="n")
    room = asked.settings.max_model_len - prompt_tokens
    wanted = next(
        (
            tokens
            for tokens in (body.max_completion_tokens, body.max_tokens, body.max_output_tokens)
            if tokens is not None
        ),
        default,
    )
    if wanted is not None and wanted < 0:
        raise refusals.refusal(f"max_tokens must be at least 0, got {wanted}.", param="max_tokens")
    if room < 0 or (wanted or 0) > room:
        raise refusals.context_length(prompt_tokens, wanted or 0, asked.settings.max_model_len)
    return room if wanted is None else wanted


def _texts(body: GenerationBody, raw: bytes, limit: int, asked: Asked) -> list[Text]:
    """One text for each of `n`."""
    digest = hashlib.blake2b(raw, digest_size=16).digest()
    seeds = [digest, *(digest + index.to_bytes(2) for index in range(1, body.n))]
    return [generate(body, seed, limit, asked.settings.answer_tokens) for seed in seeds]


def _chat_choice(index: int, text: Text, body: ChatBody) -> dict[str, object]:
    wanted = body.logprobs is True or (body.logprobs is not None and body.logprobs is not False)
    scored = logprobs.chat_content(logprobs.score(text, body.top_logprobs or 0)) if wanted else None
    return {
        "index": index,
        "message": {
            "role": "assistant",
            "content": text.text,
            "refusal": None,
            "tool_calls": [],
            "reasoning": None,
        },
        "logprobs": scored,
        "finish_reason": text.finish_reason,
        "stop_reason": text.stop_reason,
    }


def _completion_choice(index: int, prompt: list[str], text: Text, body: CompletionBody) -> dict[str, object]:
    echoed = prompt if body.echo else []
    return {
        "index": index,
        "text": "".join(echoed) + text.text,
        "logprobs": _completion_logprobs(echoed, text, body),
        "finish_reason": text.finish_reason,
        "stop_reason": text.stop_reason,
        "prompt_logprobs": None if body.prompt_logprobs is None else logprobs.prompt_entries(prompt),
    }


def _completion_logprobs(echoed: list[str], text: Text, body: CompletionBody) -> dict[str, object] | None:
    if body.logprobs is None or body.logprobs is False:
        return None
    scored = logprobs.score(text, int(body.logprobs))
    of_prompt = logprobs.score_prompt(echoed)
    tops = [
        None if value is None else [(piece, value)] for piece, value in zip(echoed, of_prompt, strict=True)
    ]
    return logprobs.completion_lists(
        [*echoed, *text.pieces],
        [*of_prompt, *(one.logprob for one in scored)],
        [*tops, *(one.top for one in scored)],
    )


def _output_message(request_id: str, text: Text, status: str) -> dict[str, object]:
    part = {"type": "output_text", "text": text.text, "annotations": []}
    return {
        "type": "message",
        "id": f"msg_{request_id}",
        "role": "assistant",
        "status": status,
        "content": [part],
    }


# --- streams: server-sent events, all of them at once when the model is done ---


def _chat_stream(head: dict[str, object], texts: list[Text], last: dict[str, int] | None) -> bytes:
    head = {**head, "object": "chat.completion.chunk"}
    chunks: list[dict[str, object]] = [
        _chunk(index, {"delta": {"role": "assistant", "content": ""}}) for index in range(len(texts))
    ]
    for index, text in enumerate(texts):
        chunks += [_chunk(index, {"delta": {"content": part}}) for part in _parts(text)]
        chunks.append(_chunk(index, {"delta": {}}, text))
    return _events(head, chunks, last)


def _completion_stream(head: dict[str, object], texts: list[Text], last: dict[str, int] | None) -> bytes:
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
    head: dict[str, object], chunks: Iterable[dict[str, object]], last: dict[str, int] | None
) -> bytes:
    events: list[dict[str, object]] = [{**head, "choices": [chunk]} for chunk in chunks]
    if last is not None:
        events.append({**head, "choices": [], "usage": last})
    return (
        b"".join(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    )


def _stream_usage(body: GenerationBody, total: dict[str, int]) -> dict[str, int] | None:
    return total if body.stream_options is not None and body.stream_options.include_usage else None
