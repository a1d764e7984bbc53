"""What servers told of a job's tokens beside their number, read from the lines of its output."""

from typing import Annotated, Final

import msgspec

from dispatcher.jobs.details import TokenDetails


class UsageReader:
    """Sums up what the lines tell. A server that does not tell is no server that had none.

    vLLM tells cached tokens with `--enable-prompt-tokens-details`, and reasoning tokens with a
    `--reasoning-parser` (entrypoints/openai/chat_completion/serving.py). Names differ on `/v1/responses`.
    """

    def __init__(self) -> None:
        self._cached: int | None = None
        self._reasoning: int | None = None

    def read(self, line: bytes) -> None:
        """The next line. What it tells in an odd way is left out: the answer counts, not its account."""
        try:
            usage = _LINE.decode(line).response.body.usage
        except msgspec.DecodeError:
            return
        if usage is None:
            return
        for told in (usage.prompt_tokens_details, usage.input_tokens_details):
            if told is not None and told.cached_tokens is not None:
                self._cached = (self._cached or 0) + told.cached_tokens
        for made in (usage.completion_tokens_details, usage.output_tokens_details):
            if made is not None and made.reasoning_tokens is not None:
                self._reasoning = (self._reasoning or 0) + made.reasoning_tokens

    def details(self) -> TokenDetails:
        """What all lines have told."""
        return TokenDetails(self._cached, self._reasoning)


Count = Annotated[int, msgspec.Meta(ge=0)]


class _Read(msgspec.Struct, gc=False):
    cached_tokens: Count | None = None


class _Made(msgspec.Struct, gc=False):
    reasoning_tokens: Count | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens_details: _Read | None = None
    input_tokens_details: _Read | None = None
    completion_tokens_details: _Made | None = None
    output_tokens_details: _Made | None = None


class _Body(msgspec.Struct, gc=False):
    usage: _Usage | None = None


class _Response(msgspec.Struct, gc=False):
    body: _Body


class _Line(msgspec.Struct, gc=False):
    response: _Response


_LINE: Final = msgspec.json.Decoder(_Line)
