"""What a request's body tells of how long its answer may take."""

import msgspec

from dispatcher.model import Request


class _Body(msgspec.Struct):
    max_tokens: int | None = None
    max_completion_tokens: int | None = None


_decoder = msgspec.json.Decoder(_Body)


def tokens_max(request: Request) -> int:
    """How many tokens its answer may have at most; 0 where the body does not say, or not as a number."""
    try:
        body = _decoder.decode(request.body)
    except msgspec.DecodeError:  # the server will say what is wrong with it
        return 0
    return body.max_completion_tokens or body.max_tokens or 0
