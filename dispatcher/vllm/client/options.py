"""How an answer is to be generated: every option checked once, and written down as vLLM takes it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from dispatcher.errors import ConfigError
from dispatcher.vllm.client.checks import faults_of
from dispatcher.vllm.client.schemas import response_format


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """Options for one answer. None leaves a field out: the server's default holds.

    Names and ranges are those of vLLM 0.32.0 (its sampling_params.py and
    entrypoints/openai/chat_completion/protocol.py). Raises ConfigError with every fault, by option.

    >>> GenerationOptions(temperature=0, seed=7, max_completion_tokens=200)
    """

    max_completion_tokens: int | None = None
    """The answer's tokens at most, reasoning included."""
    output_schema: Mapping[str, Any] | type | None = None
    """A JSON schema that the answer is to satisfy: a mapping, or a type that one can be made of (pydantic
    model, msgspec Struct, dataclass, TypedDict)."""
    temperature: float | None = None
    """0 to 2; 0 takes the likeliest token each time."""
    top_p: float | None = None
    """Above 0, to 1."""
    top_k: int | None = None
    """0 for all tokens."""
    min_p: float | None = None
    """0 to 1."""
    repetition_penalty: float | None = None
    """Above 0; 1 is none."""
    presence_penalty: float | None = None
    """-2 to 2."""
    frequency_penalty: float | None = None
    """-2 to 2."""
    stop: str | Sequence[str] | None = None
    """Texts that end the answer, and are left out of it."""
    stop_token_ids: Sequence[int] | None = None
    seed: int | None = None
    """64 bits, signed."""
    logprobs: bool | None = None
    """Whether each token comes with its log-probability."""
    top_logprobs: int | None = None
    """How many of the likeliest tokens come at each position, with `logprobs`; -1 for all. A server has its
    own maximum (`--max-logprobs`, 20)."""
    chat_template_kwargs: Mapping[str, Any] | None = None
    """The chat template's own switches, e.g. `{"enable_thinking": False}`."""
    chat_template: str | None = None
    """A Jinja template in place of the model's; needs a server with `--trust-request-chat-template`."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    """The last message is left open, for the model to go on with. No generation prompt is added then."""
    mm_processor_kwargs: Mapping[str, Any] | None = None
    priority: int | None = None
    """Lower is earlier; needs a server with `--scheduling-policy priority`."""
    extra_body: Mapping[str, Any] | None = None
    """Any other field of the body. Merged last, so it wins over the options above."""

    def __post_init__(self) -> None:
        if faults := faults_of(self._given()):
            raise ConfigError(faults)

    def replaced(self, **changes: Any) -> "GenerationOptions":
        """These options with some of them changed, checked anew."""
        return replace(self, **changes) if changes else self

    def to_payload(self) -> dict[str, Any]:
        """The flat JSON body, without model and messages."""
        typed, rest = self.split_payload()
        return {**typed, **rest}

    def split_payload(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The same in two: arguments that the `openai` SDK types, and the rest for its `extra_body`.

        >>> typed, rest = options.split_payload()
        >>> sdk.chat.completions.create(model=..., messages=..., **typed, extra_body=rest)
        """
        given = self._given()
        extra = given.pop("extra_body", {})
        if (schema := given.pop("output_schema", None)) is not None:
            given["response_format"] = response_format(schema)
        if given.get("continue_final_message"):
            given["add_generation_prompt"] = False  # vLLM's default is true, and it refuses both
        typed = {name: value for name, value in given.items() if name in TYPED}
        return typed, {name: value for name, value in given.items() if name not in TYPED} | dict(extra)

    def _given(self) -> dict[str, Any]:
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in values if value is not None}


TYPED: Final = frozenset(
    {
        "frequency_penalty",
        "logprobs",
        "max_completion_tokens",
        "presence_penalty",
        "response_format",
        "seed",
        "stop",
        "temperature",
        "top_logprobs",
        "top_p",
    }
)
"""Of the options, those that `openai.chat.completions.create` has as arguments (openai 3)."""
