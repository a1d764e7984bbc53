"""What the end of an attempt means, and whose fault it was: pure, and from type, status and typed fields.

What is unknown is treated as unknown: doubtful. The reasons stand at each rule; the few message texts that
are needed stand in `texts.py`.
"""

from typing import Final, assert_never

from dispatcher.model import Answer, Break, BreakKind, Ending, ErrorCode, Judgement, Request, Verdict
from dispatcher.vllm.answers import AnswerFaultError, read_answer
from dispatcher.vllm.complaints import TEXT_BYTES_MAX, clip, read_complaint
from dispatcher.vllm.refusals import CREDENTIALS_REFUSED, ENGINE_DEAD, Ruling, rule
from dispatcher.vllm.strict_json import checked


def judge(
    ending: Ending, request: Request, models: dict[str, str] | None, *, healthy: bool | None = None
) -> Judgement:
    """Map an attempt's ending to a judgement (`ports.Judge`). Pure; no ending makes it raise.

    `models` is the server's own list, served name -> root, or None where it has none. `healthy` is what its
    `/health` says (None: unknown); it decides what a 503 means that does not tell so itself.
    """
    match ending:
        case Answer():
            if ending.status // 100 == 2:  # noqa: PLR2004 - 2xx
                return _judge_success(ending, request, models)
            return _judge_refusal(ending, healthy=healthy)
        case Break():
            return _judge_break(ending)
        case _:
            assert_never(ending)


_UNREADABLE: Final = Ruling(Verdict.DOUBTFUL, ErrorCode.INVALID_RESPONSE)
_OTHER_MODEL: Final = Ruling(Verdict.MISMATCH, ErrorCode.MODEL_NOT_FOUND)


def _judge_success(answer: Answer, request: Request, models: dict[str, str] | None) -> Judgement:
    try:
        reading = read_answer(request.url, answer.body)
    except AnswerFaultError as error:
        said = read_complaint(answer.body)
        # Only an error's own words are kept: half an answer must not look like a result.
        message = f"{error}: {said.message}" if said.structured else str(error)
        return _fault(_UNREADABLE, answer, message)
    if not _is_model_asked_for(request.model, reading.model, models):
        message = f"asked for the model {request.model!r}, answered by {reading.model!r}"
        return _fault(_OTHER_MODEL, answer, message)
    return Judgement(
        Verdict.SUCCESS,
        body=reading.body,
        status=answer.status,
        request_id=answer.request_id,
        tokens=reading.tokens,
    )


def _is_model_asked_for(asked: str | None, answered: str | None, models: dict[str, str] | None) -> bool:
    """Compare by root: vLLM answers with its first served name, whatever alias was asked for.

    Its source: entrypoints/openai/models/serving.py, `model_name`.
    """
    if asked is None or answered is None or asked == answered or models is None:
        return True
    return models.get(asked, asked) == models.get(answered, answered)


def _judge_refusal(answer: Answer, *, healthy: bool | None) -> Judgement:
    said = read_complaint(answer.body)
    ruling = rule(answer, said, healthy=healthy)
    if ruling is CREDENTIALS_REFUSED:
        # Gateways repeat the key, or a part of it, in these messages: nothing of them is kept.
        return _fault(ruling, answer, f"the server refused our credentials (HTTP {answer.status})")
    body = checked(answer.body) if len(answer.body) <= TEXT_BYTES_MAX else None
    return _fault(ruling, answer, said.message or f"HTTP {answer.status} without a message", body)


def _fault(ruling: Ruling, answer: Answer, message: str, body: bytes | None = None) -> Judgement:
    return Judgement(
        ruling.verdict,
        ruling.code,
        clip(message),
        body,
        status=answer.status,
        request_id=answer.request_id,
        retry_after_s=answer.retry_after_s,
        hard=ruling.hard,
        broken=ruling is ENGINE_DEAD,
    )


def _judge_break(ending: Break) -> Judgement:
    ruling, words = _rule_break(ending.kind), _BREAK_WORDS[ending.kind]
    message = f"{words}: {ending.detail}" if ending.detail else words
    broken = ending.kind is BreakKind.RESET
    offline = ending.kind is BreakKind.OFFLINE
    return Judgement(
        ruling.verdict, ruling.code, clip(message), hard=ruling.hard, broken=broken, offline=offline
    )


def _rule_break(kind: BreakKind) -> Ruling:
    match kind:
        case BreakKind.REFUSED:
            return Ruling(Verdict.SERVER_FAULT, ErrorCode.SERVER_ERROR, hard=True)
        case (
            BreakKind.RESET
            | BreakKind.UNRESOLVED
            | BreakKind.TLS
            | BreakKind.CONNECT_TIMED_OUT
            | BreakKind.GIVEN_UP
        ):
            return Ruling(Verdict.SERVER_FAULT, ErrorCode.SERVER_ERROR)
        case BreakKind.TIMED_OUT | BreakKind.SILENT:
            # Charged, or a row that never ends would be sent for ever.
            return Ruling(Verdict.DOUBTFUL, ErrorCode.TIMEOUT)
        case BreakKind.TRUNCATED | BreakKind.PROTOCOL:
            return Ruling(Verdict.DOUBTFUL, ErrorCode.INVALID_RESPONSE)
        case BreakKind.STALE:
            return Ruling(Verdict.STALE_CONNECTION, ErrorCode.SERVER_ERROR)
        case BreakKind.LOCAL | BreakKind.OFFLINE | BreakKind.AWAY:
            return Ruling(Verdict.LOCAL_FAULT, ErrorCode.SERVER_ERROR)
        case _:
            assert_never(kind)


_BREAK_WORDS: Final = {
    BreakKind.REFUSED: "nobody accepts connections at the server's address",
    BreakKind.RESET: "the connection broke before the answer",
    BreakKind.STALE: "the server had closed the idle connection",
    BreakKind.TRUNCATED: "the answer is shorter than announced",
    BreakKind.TIMED_OUT: "no answer within the request's timeout",
    BreakKind.CONNECT_TIMED_OUT: "no connection within the connect timeout",
    BreakKind.UNRESOLVED: "the server's name cannot be resolved",
    BreakKind.TLS: "no trusted TLS connection",
    BreakKind.PROTOCOL: "what came back is not a usable HTTP answer",
    BreakKind.GIVEN_UP: "given up: the server was evicted or has stalled",
    BreakKind.SILENT: "no answer, while the server works and makes nothing for it",
    BreakKind.LOCAL: "this machine lacks a resource",
    BreakKind.OFFLINE: "no way out of this machine: its network or its resolver is down",
    BreakKind.AWAY: "the time ran out while the dispatcher itself stood still",
}
