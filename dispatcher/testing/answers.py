"""The fake's answers, by route: pure functions from a request's body to an answer or a RefusalError."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from dispatcher.testing import generation, pooling, responses
from dispatcher.testing.replies import Asked, Reply

ANSWERS: Mapping[str, Callable[[Asked], Reply]] = MappingProxyType(
    {
        "/v1/chat/completions": generation.chat,
        "/v1/completions": generation.completion,
        "/v1/responses": responses.responses,
        "/v1/embeddings": pooling.embeddings,
        "/v1/score": pooling.score,
        "/score": pooling.score,
        "/v1/rerank": pooling.rerank,
        "/v2/rerank": pooling.rerank,
        "/rerank": pooling.rerank,
        "/pooling": pooling.pooling,
        "/classify": pooling.classify,
        "/tokenize": pooling.tokenize,
        "/detokenize": pooling.detokenize,
    }
)
"""Every route that is posted to. Their requests are logged, counted as in flight and open to faults."""
