"""The client: everything that a vLLM server can do, for people who write Python."""

from dispatcher.vllm.client.blocking import VLLMClient
from dispatcher.vllm.client.client import AsyncVLLMClient, OnError
from dispatcher.vllm.client.facts import Load
from dispatcher.vllm.client.generation import Generation, TokenLogprob, ToolCall
from dispatcher.vllm.client.messages import Messages
from dispatcher.vllm.client.options import GenerationOptions
from dispatcher.vllm.client.servers import Servers
from dispatcher.vllm.client.tokens import Tokenization

__all__ = [
    "AsyncVLLMClient",
    "Generation",
    "GenerationOptions",
    "Load",
    "Messages",
    "OnError",
    "Servers",
    "TokenLogprob",
    "Tokenization",
    "ToolCall",
    "VLLMClient",
]
