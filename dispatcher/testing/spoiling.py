"""Good answers made bad, in ways that a client has to notice."""

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from dispatcher.testing.faults import Spoilage
from dispatcher.testing.replies import EVENT_STREAM, Reply

OTHER_MODEL = "another-model"

# Inside a JSON string every quote is escaped, so these find keys and never an answer's text.
_FINISH_REASON = re.compile(rb'"finish_reason":"\w+"')
_MODEL = re.compile(rb'"model":"(?:[^"\\]|\\.)*"')
_NUMBERS = (
    (re.compile(rb'"logprob":-?[\d.e+-]+'), b'"logprob":NaN'),
    (re.compile(rb'"token_logprobs":\[(?:null|-?[\d.e+-]+)'), b'"token_logprobs":[NaN'),
    (re.compile(rb'"embedding":\[-?[\d.e+-]+'), b'"embedding":[NaN'),
    (
        re.compile(rb'"logprobs":null'),
        b'"logprobs":{"content":[{"token":"ash","logprob":NaN}]}',
    ),
    (re.compile(rb'"score":-?[\d.e+-]+'), b'"score":NaN'),
)
_ERROR_EVENT = (
    b'data: {"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError",'
    b'"param":null,"code":500}}\n\ndata: [DONE]\n\n'
)
_PARTIAL_EVENT = (
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","choices":[{"index":0,'
    b'"delta":{"role":"assistant","content":"ash bay"},"finish_reason":null}]}\n\n'
)
_STREAMS: Mapping[Spoilage, bytes] = MappingProxyType(
    {Spoilage.STREAM_ERROR: _PARTIAL_EVENT + _ERROR_EVENT, Spoilage.STREAM_END: _PARTIAL_EVENT}
)


def spoil(how: Spoilage, reply: Reply) -> Reply:
    """The reply with its body spoiled. A cut is the connection's affair: it leaves the bytes alone."""
    stream = _STREAMS.get(how)
    if stream is not None:
        return replace(reply, body=stream, content_type=EVENT_STREAM)
    return replace(reply, body=_spoiled(how, reply.body))


def _spoiled(how: Spoilage, body: bytes) -> bytes:
    match how:
        case Spoilage.GARBAGE:
            return b'{"id": "\x00\xff not JSON'
        case Spoilage.BARE_NAN:
            return _with_nan(body)
        case Spoilage.NO_FINISH_REASON:
            return _FINISH_REASON.sub(b'"finish_reason":null', body)
        case Spoilage.WRONG_MODEL:
            return _MODEL.sub(b'"model":"%b"' % OTHER_MODEL.encode(), body)
        case Spoilage.CUT | Spoilage.STREAM_ERROR | Spoilage.STREAM_END:
            return body


def _with_nan(body: bytes) -> bytes:
    """The body with its first number of a kind that can be one turned into NaN."""
    for number, nan in _NUMBERS:
        spoiled, found = number.subn(nan, body, count=1)
        if found:
            return spoiled
    return body
