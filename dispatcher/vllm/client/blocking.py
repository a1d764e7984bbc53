"""The client for code without an event loop."""

from typing import Any

from dispatcher.portal import BlockingFace, arguments_of, blocking
from dispatcher.vllm.client.client import AsyncVLLMClient


class VLLMClient(BlockingFace[AsyncVLLMClient]):
    """The same as AsyncVLLMClient for code without an event loop: every method of it, blocking.

    >>> with VLLMClient("http://gpu1:8000") as client:
    ...     print(client.generate("What is a shard?").text)

    It works in a notebook, and from several threads at once.
    """

    @arguments_of(AsyncVLLMClient)
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(AsyncVLLMClient(*args, **options))

    @property
    def servers(self) -> list[str]:
        """The servers' base URLs."""
        return self.behind.servers

    generate = blocking(AsyncVLLMClient.generate)
    batch_generate = blocking(AsyncVLLMClient.batch_generate)
    chat = blocking(AsyncVLLMClient.chat)
    score = blocking(AsyncVLLMClient.score)
    classify = blocking(AsyncVLLMClient.classify)
    post = blocking(AsyncVLLMClient.post)
    tokenize = blocking(AsyncVLLMClient.tokenize)
    detokenize = blocking(AsyncVLLMClient.detokenize)
    is_healthy = blocking(AsyncVLLMClient.is_healthy)
    version = blocking(AsyncVLLMClient.version)
    models = blocking(AsyncVLLMClient.models)
    load = blocking(AsyncVLLMClient.load)
