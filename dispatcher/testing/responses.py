"""The Responses API, without its streams: the same texts in another wrapping."""

from collections.abc import Mapping

import msgspec

from dispatcher.testing import refusals, tokens
from dispatcher.testing.bodies import Message, Reader, ResponsesBody
from dispatcher.testing.generation import limit_of, text_reply, texts_of
from dispatcher.testing.replies import Asked, Reply, rendered, served_as
from dispatcher.testing.texts import Text

_RESPONSES = Reader(ResponsesBody)
_UNASKED: Mapping[str, object] = {
    "instructions": None,
    "metadata": None,
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "tool_choice": "none",
    "tools": [],
    "top_p": 1.0,
    "background": False,
    "max_tool_calls": None,
    "previous_response_id": None,
    "prompt": None,
    "reasoning": None,
    "service_tier": "auto",
    "text": None,
    "top_logprobs": None,
    "truncation": "disabled",
    "user": None,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "kv_transfer_params": None,
    "ec_transfer_params": None,
    "input_messages": None,
    "output_messages": None,
}
"""What vLLM 0.32.0 says besides, of a request that does not set it."""


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
    limit = limit_of(body, prompt_tokens, asked, None)
    [text] = texts_of(body, asked.raw, limit, asked)
    complete = text.finish_reason == "stop"
    answer = {
        **_UNASKED,
        "id": f"resp_{asked.request_id}",
        "object": "response",
        "created_at": asked.created,
        "model": model,
        "status": "completed" if complete else "incomplete",
        "incomplete_details": None if complete else {"reason": "max_output_tokens"},
        "max_output_tokens": limit,
        "output": [_output_message(asked.request_id, text)],
        "usage": _usage(prompt_tokens, len(text.pieces)),
    }
    return text_reply(msgspec.json.encode(answer), prompt_tokens, [text])


def _output_message(request_id: str, text: Text) -> dict[str, object]:
    """The message counts as completed even where the response is not (seen on vLLM 0.32.0)."""
    part: Mapping[str, object] = {
        "annotations": [],
        "text": text.text,
        "type": "output_text",
        "logprobs": None,
    }
    return {
        "id": f"msg_{request_id}",
        "content": [part],
        "role": "assistant",
        "status": "completed",
        "type": "message",
        "phase": None,
    }


def _usage(prompt_tokens: int, output_tokens: int) -> dict[str, object]:
    of_input = {"cached_tokens": 0, "cache_write_tokens": 0, "input_tokens_per_turn": []}
    of_output = {"reasoning_tokens": 0, "tool_output_tokens": 0, "output_tokens_per_turn": []}
    return {
        "input_tokens": prompt_tokens,
        "input_tokens_details": {**of_input, "cached_tokens_per_turn": []},
        "output_tokens": output_tokens,
        "output_tokens_details": {**of_output, "tool_output_tokens_per_turn": []},
        "total_tokens": prompt_tokens + output_tokens,
    }
