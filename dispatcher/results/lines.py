"""The line that an outcome becomes in the output or error file: OpenAI's batch format, plus `provenance`.

A line is assembled around the server's answer, whose bytes are never decoded or changed.
"""

from typing import Final

import msgspec

from dispatcher.model import Job, Outcome, Provenance

_NULL: Final = b"null"
_CUSTOM_ID: Final = b',"custom_id":'
_LINE_ENDS: Final = (
    ("\u0085".encode(), rb"\u0085"),
    ("\u2028".encode(), rb"\u2028"),
    ("\u2029".encode(), rb"\u2029"),
)
"""What JSON allows raw in a string, and `str.splitlines` and its like take for a line's end."""


def encode_outcome(outcome: Outcome, job: Job) -> bytes:
    """One output line, without its newline.

    `response` is null where no server answered; its `body` is null where the answer was not kept. `error`
    is null for a success. `provenance` is left out where the job does not want it. Lone surrogates in our
    own strings become U+FFFD, since no strict JSON reader would take them.

    Source: the output and error file format of https://platform.openai.com/docs/guides/batch.
    """
    provenance = b',"provenance":' + _json(outcome.provenance) if job.provenance else b""
    return b"".join(
        (
            b'{"id":',
            _json(f"batch_req_{job.mark or job.id}_{outcome.index}"),
            _CUSTOM_ID,
            _json(outcome.custom_id),
            b',"response":',
            _response(outcome),
            b',"error":',
            _error(outcome),
            provenance,
            b"}",
        )
    )


def names(line: bytes, custom_id: str) -> bool:
    """Whether an encoded line is the outcome of the request called `custom_id`.

    Looks at the line's start alone: a body may hold what a strict decoder refuses (an escaped lone
    surrogate, say), and it is no less an answer for that.
    """
    _, _, rest = line.partition(_CUSTOM_ID)
    return rest.startswith(_json(custom_id) + b",")


def _response(outcome: Outcome) -> bytes:
    if outcome.status is None and outcome.body is None:
        return _NULL
    return b'{"status_code":%b,"request_id":%b,"body":%b}' % (
        _NULL if outcome.status is None else b"%d" % outcome.status,
        _json(outcome.request_id),
        _NULL if outcome.body is None else outcome.body,
    )


def _error(outcome: Outcome) -> bytes:
    if outcome.code is None:
        return _NULL
    return b'{"code":%b,"message":%b}' % (_json(outcome.code.value), _json(outcome.message))


def _json(value: str | Provenance | None) -> bytes:
    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(_well_formed(value))
    return encoded if encoded.isascii() else _on_one_line(encoded)


def _on_one_line(encoded: bytes) -> bytes:
    for raw, escaped in _LINE_ENDS:
        encoded = encoded.replace(raw, escaped)
    return encoded


def _well_formed(value: object) -> object:
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case Provenance():
            return {name: _well_formed(part) for name, part in msgspec.structs.asdict(value).items()}
        case _:
            return value
