"""What servers and proxies say where no typed field tells it: the one table of message texts, with sources.

A text stands here only where status, type, param and code do not settle the matter. It is looked for anywhere
in the message, or at its beginning, as each table says. The vLLM files are those of its 0.32.0 release.
"""

from typing import Final

CONTEXT_LENGTH: Final = (
    # vLLM, every version: "This model's maximum context length is 1024 tokens. However, ...", also after
    # "'max_tokens' or 'max_completion_tokens' is too large: ...", and "Input length (9) exceeds model's
    # maximum context length (8)" (renderers/params.py, entrypoints/serve/utils/api_utils.py; issue 20409).
    # SGLang as well: "Requested token count exceeds the model's maximum context length of ...".
    "maximum context length",
    # vLLM: "The decoder prompt (length 9) is longer than the maximum model length of 8", and the same of
    # prompt plus output (v1/engine/input_processor.py; type BadRequestError, param null; Glyph issue 9).
    "longer than the maximum model length",
    # vLLM 0.32: "max_tokens=300000 cannot be greater than max_model_len=1024" (param max_tokens; seen).
    "cannot be greater than max_model_len",
    # In SGLang's words, "The input (61709 tokens) is longer than the model's context length (40960 tokens)."
    # (Qwen3 issue 1321).
    "longer than the model's context length",
    # llama.cpp: "the request exceeds the available context size, try increasing it" (its issue 17284; later
    # versions have a type for it).
    "exceeds the available context size",
)
"""Anywhere in the message of a 400: prompt and answer do not fit into the model's context."""

ENGINE_DEAD: Final = (
    # vLLM's V1 engine, EngineDeadError (v1/engine/exceptions.py), type InternalServerError.
    "EngineCore encountered an issue",
    # vLLM 0.6 to 0.8, MQEngineDeadError (engine/multiprocessing/__init__.py).
    "Engine loop is not running",
    # vLLM before that, AsyncEngineDeadError (engine/async_llm_engine.py; issues 5060, 5901, 7356).
    "Background loop has errored already",
    "Background loop is stopped",
)
"""At the beginning of the message of a 500 or 400: the engine behind this port is gone for good."""

MESH_OVERFLOW: Final = "reset reason: overflow"
"""Anywhere in a 503: Envoy's circuit breaker is full, its words for overload (envoy issue 15168)."""

MESH_FAILURE: Final = (
    # Envoy could not reach, or lost, the server behind it (envoy issues 2853, 4567; aibrix issue 1103).
    "upstream connect error",
    # Envoy knows no live server behind it (envoy issue 9050).
    "no healthy upstream",
)
"""Anywhere in a 503: the server behind this proxy does not answer."""
