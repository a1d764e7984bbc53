"""What happens to a request after an attempt that was not a success: the one retry policy there is."""

from dataclasses import dataclass
from typing import assert_never

from dispatcher.config import DispatchSettings
from dispatcher.dispatch.item import Item
from dispatcher.model import ErrorCode, Judgement, ServerId, Verdict

LOCAL_PAUSE_S = 1.0
"""How long a request waits after a fault of this machine, which a resend at once would meet again."""
STALES_MAX = 10
"""Closed connections that one request may meet for nothing: more than a server's idle ones is a fault."""
CHARGED_PAUSE_S = 0.1
"""A short pause before a charged retry: with one server in the fleet it would go straight back there."""


@dataclass(frozen=True, slots=True)
class Again:
    """Send it again, not before `delay_s` from now."""

    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Fail:
    """It has no more attempts: its outcome is this error."""

    code: ErrorCode
    message: str


Decision = Again | Fail


def after_fault(item: Item, judgement: Judgement, server: ServerId, settings: DispatchSettings) -> Decision:
    """Charge the attempt to whom it belongs, and decide. `judgement` is not a success."""
    match judgement.verdict:
        case Verdict.REQUEST_FAULT:
            return _failed(judgement)
        case Verdict.DOUBTFUL:
            return _charge(item, judgement, server)
        case Verdict.SERVER_FAULT | Verdict.MISMATCH | Verdict.STALLED:
            return _resend(item, judgement, server, settings)
        case Verdict.STALE_CONNECTION:
            return _resend_fresh(item, judgement, server, settings)
        case Verdict.OVERLOAD:
            return Again()
        case Verdict.LOCAL_FAULT:
            return Again(LOCAL_PAUSE_S)
        case Verdict.SUCCESS:
            raise AssertionError("a success needs no retry")
        case _ as never:
            assert_never(never)


def _resend_fresh(item: Item, judgement: Judgement, server: ServerId, settings: DispatchSettings) -> Decision:
    item.stales += 1
    item.sends -= 1
    if item.stales > STALES_MAX:
        return _resend(item, judgement, server, settings)
    return Again()


def _failed(judgement: Judgement) -> Fail:
    return Fail(judgement.code or ErrorCode.SERVER_ERROR, judgement.message)


def _charge(item: Item, judgement: Judgement, server: ServerId) -> Decision:
    item.charged += 1
    item.tried = (*item.tried, server)
    if item.charged >= item.lease.job.max_attempts:
        return _failed(judgement)
    return Again(CHARGED_PAUSE_S)


def _resend(item: Item, judgement: Judgement, server: ServerId, settings: DispatchSettings) -> Decision:
    item.resends += 1
    if judgement.verdict is Verdict.MISMATCH:
        item.tried = (*item.tried, server)
    if item.resends <= settings.free_resends_max:
        return Again()
    if judgement.code is ErrorCode.MODEL_NOT_FOUND:
        return _failed(judgement)
    return Fail(
        ErrorCode.RESENDS_EXHAUSTED,
        f"{item.resends} servers in a row failed while they had it, the last: {judgement.message}",
    )
