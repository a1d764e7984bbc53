"""How an attempt's end becomes a request's outcome."""

from collections.abc import Iterator, Sequence

from dispatcher.dispatch.attempt import Attempt
from dispatcher.dispatch.item import Item
from dispatcher.model import ErrorCode, Judgement, Outcome, Provenance, Request
from dispatcher.pool.server import Server
from dispatcher.ports import Replay


def outcome_of(
    attempt: Attempt, judgement: Judgement, code: ErrorCode | None, message: str, now: float
) -> Outcome:
    """The outcome that this attempt brought: a success, where `code` is None."""
    request, server = attempt.item.request, attempt.server
    return Outcome(
        index=request.index,
        custom_id=request.custom_id,
        code=code,
        message=message,
        status=judgement.status,
        request_id=judgement.request_id,
        body=judgement.body,
        tokens=judgement.tokens + attempt.item.spent,
        provenance=Provenance(
            server=server.spec.id,
            model=request.model,
            server_version=server.version,
            attempts=attempt.item.sends,
            seconds=now - attempt.sent_at,
        ),
    )


def poisoned(item: Item, server: Server) -> Outcome:
    """The outcome of a convicted request, whose last server this was."""
    assert item.suspicion is not None, "nothing speaks against it"
    request, deaths = item.request, item.suspicion.deaths
    return Outcome(
        index=request.index,
        custom_id=request.custom_id,
        code=ErrorCode.POISON,
        message=f"{deaths} servers died while they had it, the last {server.spec.id}; it is sent no more",
        tokens=item.spent,
        provenance=Provenance(server.spec.id, request.model, server.version, item.sends, 0.0),
    )


def outcomes_of_withheld(requests: Sequence[Request], replay: Replay) -> Iterator[Outcome]:
    """The outcomes of a shard's requests that are not to be sent, less those that are recorded."""
    for request in requests:
        if request.withheld is not None and request.index not in replay.finished:
            yield Outcome(request.index, request.custom_id, ErrorCode.NOT_ASKED, request.withheld)
