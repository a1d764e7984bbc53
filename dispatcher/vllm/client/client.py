"""One object for all that vLLM servers can do, right on every version."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Literal, Self, get_args

import msgspec

from dispatcher.errors import ConfigError, ConstraintIgnoredError, DispatcherError, Fault, InputError
from dispatcher.model import ListedModel
from dispatcher.telemetry.logging import get_logger, keep_to_warnings
from dispatcher.vllm.client import facts
from dispatcher.vllm.client.batching import in_order
from dispatcher.vllm.client.constraints import bare_label, checked_labels, constrains, one_of
from dispatcher.vllm.client.facts import Load
from dispatcher.vllm.client.generation import Generation, failed, fields_of, read_generation, unreadable
from dispatcher.vllm.client.messages import Messages, conversation
from dispatcher.vllm.client.options import GenerationOptions
from dispatcher.vllm.client.servers import Servers, servers_of
from dispatcher.vllm.client.tokens import (
    DETOKENIZE,
    TOKENIZE,
    Tokenization,
    after,
    body_of,
    continued,
    read_tokenization,
    template_of,
)
from dispatcher.vllm.client.wire import Wire
from dispatcher.vllm.scoring import Classification, Method, Prompt, Score, Spellings, classify, score
from dispatcher.vllm.scoring.records import Mode, Normalisation

CHAT: Final = "/v1/chat/completions"
IN_FLIGHT_PER_SERVER: Final = 256
"""What `batch_generate` keeps at each server by default: vLLM's own default of `--max-num-seqs`."""
IN_FLIGHT_MAX: Final = 4096
"""And in all, by default: each has a connection of its own."""

OnError = Literal["raise", "warn", "ignore"]
_DEFAULTS: Final = GenerationOptions()


class AsyncVLLMClient:
    """A client of one vLLM server, or of several that serve one model.

    >>> async with AsyncVLLMClient("http://gpu1:8000") as client:
    ...     answer = await client.generate("What is a shard?", GenerationOptions(temperature=0))
    ...     print(answer.text)

    A request goes to the server with the fewest requests outstanding. Where a server cannot be reached, is
    overloaded or gives half an answer, it is sent again, elsewhere if there is another; nothing else in here
    resends. Thousands of requests can be open at once: their number is the caller's, or `max_in_flight`.

    Args:
        base_url: A URL with or without `/v1`, several of them, or ranges (`http://gpu[02-16]:8000`); or an
            object that gives a server for each send (the protocol `Servers`).
        model: The model's served name. None: the first that the servers list, asked once.
        api_key: Sent as a bearer token.
        headers: Sent with every request.
        version: The servers' vLLM version, where `/version` does not tell it or must not be believed.
        timeout_s: For each send; None waits as long as the connection lives. Connecting has 3 s.
        max_attempts: Sends, as far as they are charged: see docs/client.md.

    Raises ConfigError with every fault.
    """

    def __init__(
        self,
        base_url: str | Sequence[str] | Servers,
        *,
        model: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        version: str | None = None,
        timeout_s: float | None = None,
        max_attempts: int = 3,
    ) -> None:
        self._servers = servers_of(base_url, api_key, headers or {})
        self._spellings = Spellings()
        self._wire = Wire(
            self._servers, model=model, version=version, timeout_s=timeout_s, max_attempts=max_attempts
        )
        self._log = get_logger("client")

    async def __aenter__(self) -> Self:
        keep_to_warnings()
        await self._wire.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._wire.__aexit__(kind, error, trace)

    # --- answers ---

    async def generate(
        self, messages: Messages, options: GenerationOptions | None = None, *, on_error: OnError = "raise"
    ) -> Generation:
        """Have the conversation answered.

        A request that fails raises RequestFailedError, or what else went wrong; with `on_error` "warn" the
        result holds that as its `error` and it is logged, with "ignore" it is not logged.
        """
        _check_on_error(on_error)
        try:
            return await self._generate(messages, options or _DEFAULTS, ())
        except DispatcherError as error:
            if on_error == "raise":
                raise
            if on_error == "warn":
                self._log.warning("request_failed", **fields_of(error))
            return failed(error)

    async def batch_generate(
        self,
        conversations: Iterable[Messages],
        options: GenerationOptions | None = None,
        *,
        max_in_flight: int | None = None,
        on_error: OnError = "raise",
    ) -> list[Generation]:
        """Have many conversations answered, `max_in_flight` at a time; results in input order.

        `max_in_flight` None is 256 for each server, at most 4096. With `on_error` "raise", the first failure
        ends all.
        """
        _check_on_error(on_error)
        if isinstance(conversations, str):
            raise InputError("conversations must be a list, of texts or of messages")
        if max_in_flight is not None and max_in_flight < 1:
            raise ConfigError((Fault("max_in_flight", f"must be 1 or more, got {max_in_flight}"),))
        usual = min(IN_FLIGHT_PER_SERVER * max(1, len(self.servers)), IN_FLIGHT_MAX)

        async def answer(messages: Messages) -> Generation:
            return await self.generate(messages, options, on_error=on_error)

        return await in_order(conversations, answer, max_in_flight or usual)

    async def chat(
        self,
        messages: Messages,
        labels: Sequence[str] | None = None,
        *,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        options: GenerationOptions | None = None,
    ) -> Generation:
        """Have the conversation answered with exactly one of the labels; its `text` is the bare label.

        The labels constrain the model in the spelling that the server's version understands. Raises
        ConstraintIgnoredError where the server ignores it: other text is never returned. `logprobs` and
        `top_logprobs` are the options of that name, and win over `options`. Without labels the text is free.
        """
        own = {"logprobs": logprobs, "top_logprobs": top_logprobs}
        chosen = (options or _DEFAULTS).replaced(**{k: v for k, v in own.items() if v is not None})
        return await self._generate(messages, chosen, () if labels is None else checked_labels(labels))

    async def score(
        self, messages: Messages, completion: str, *, options: GenerationOptions | None = None
    ) -> Score:
        """The log-probability of a completion, token by token: docs/scoring.md.

        After messages it is that of the assistant's answer, in the model's chat template; after a text, that
        of the text's continuation. Of the options those count that the chat template takes.
        """
        template = template_of((options or _DEFAULTS).to_payload())
        return await score(self, Prompt(messages, template), completion)

    async def classify(
        self,
        text: Messages,
        labels: Sequence[str] | Mapping[str, str],
        mode: Mode = "one_call",
        *,
        normalisation: Normalisation = "sum",
        max_calls: int | None = 8,
        options: GenerationOptions | None = None,
    ) -> Classification:
        """A distribution over labels, or `{label: description}`: docs/scoring.md.

        For a text, the model is asked which label fits; messages are to ask so themselves. `one_call` is
        what the model answers when it is held to the labels, from one generation and up to `max_calls` where
        labels begin alike; `exact` scores every label, and divides by its length as `normalisation` says.
        """
        method = Method(mode, normalisation, max_calls)
        template = template_of((options or _DEFAULTS).to_payload())
        return await classify(self, text, labels, method=method, template=template, spellings=self._spellings)

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Post a body to a route of some server, and give the decoded answer.

        The client's model is put in where the body names none. Raises RequestFailedError.
        """
        return (await self._wire.post(path, body))[1]

    # --- tokens ---

    async def tokenize(
        self,
        text: Messages,
        *,
        context: Messages | None = None,
        options: GenerationOptions | None = None,
    ) -> Tokenization:
        """The tokens of a text, or of messages in the model's chat template.

        With a context, the tokens that the text has after it: how a text is cut depends on what is before
        it. After messages, the text is the assistant's answer. Of the options those count that the chat
        template takes.
        """
        template = (options or _DEFAULTS).to_payload()
        if context is None:
            return await self._tokenize(body_of(text, template))
        whole, before = await asyncio.gather(
            self._tokenize(continued(context, text, template)), self._tokenize(body_of(context, template))
        )
        return after(before, whole)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of tokens."""
        reply, answer = await self._wire.post(DETOKENIZE, {"tokens": list(ids)})
        if not isinstance(answer.get("prompt"), str):
            raise unreadable(reply, "the answer has no text")
        return str(answer["prompt"])

    # --- what servers say of themselves ---

    @property
    def servers(self) -> list[str]:
        """The servers' base URLs."""
        return [server.id for server in self._servers.listed()]

    async def is_healthy(self, server: str | None = None) -> bool:
        """Whether `/health` of the server answers 200; of any server, where none is named."""
        return any(await facts.of_each(self._wire.named(server), self._wire.facts.healthy))

    async def version(self, server: str | None = None) -> str | None:
        """The server's vLLM version, asked once; the oldest of all where none is named.

        None where one does not tell.
        """
        return facts.oldest(await facts.of_each(self._wire.named(server), self._wire.facts.version))

    async def models(self, server: str | None = None) -> list[ListedModel]:
        """The models that the server lists, adapters included; those of all servers if none is named."""
        return facts.union(await facts.of_each(self._wire.named(server), self._wire.facts.models))

    async def load(self, server: str | None = None) -> Load:
        """How busy the server is; all servers together where none is named."""
        return facts.together(await facts.of_each(self._wire.named(server), self._wire.facts.load))

    # --- below ---

    async def _generate(
        self, messages: Messages, options: GenerationOptions, labels: tuple[str, ...]
    ) -> Generation:
        fields = {"messages": conversation(messages), **options.to_payload()}
        if not labels:
            return read_generation(await self._wire.send(CHAT, fields))
        if constrains(fields) or fields.get("response_format"):
            raise ConfigError((Fault("labels", "must be the only constraint on the answer"),))
        reply = await self._wire.send(CHAT, {**fields, **one_of(labels)}, checked=True)
        generation = read_generation(reply)
        try:
            label = bare_label(generation.text, labels, generation.finish_reason, reply.server.id)
        except ConstraintIgnoredError:
            self._wire.facts.forget(reply.server)
            raise
        return replace(generation, text=label)

    async def _tokenize(self, body: Mapping[str, Any]) -> Tokenization:
        reply, answer = await self._wire.post(TOKENIZE, body)
        try:
            return read_tokenization(answer)
        except msgspec.ValidationError as error:
            raise unreadable(reply, f"the answer cannot be read: {error}") from error


def _check_on_error(on_error: str) -> None:
    if on_error not in (known := get_args(OnError)):
        raise ConfigError((Fault("on_error", f"must be one of {', '.join(known)}, got {on_error!r}"),))
