"""What a server's pages about itself say. A page that is not there, or cannot be read, is None."""

from typing import Final, TypeVar

import msgspec

from dispatcher.model import Answer, Break, BreakKind, Ending, Health, ListedModel

_Page = TypeVar("_Page")


def health_of(ending: Ending) -> tuple[Health, str]:
    """Read the end of `GET /health`, and give its reason."""
    match ending:
        case Answer(status=200):
            return Health.UP, ""
        case Answer(status=401 | 403 | 404 | 405 | 501 as status):
            return Health.ABSENT, f"/health: HTTP {status}"
        case Answer(status=status):
            return Health.DOWN, f"/health: HTTP {status}"
        case Break(kind=kind, detail=detail):
            return _health_of_break(kind), f"/health: {kind}: {detail}"


def _health_of_break(kind: BreakKind) -> Health:
    match kind:
        case BreakKind.REFUSED:
            return Health.REFUSED
        case BreakKind.TIMED_OUT:
            return Health.SLOW
        case BreakKind.LOCAL | BreakKind.OFFLINE | BreakKind.AWAY:
            return Health.UNASKED
        case _:
            return Health.UNREACHABLE


def models_of(ending: Ending) -> dict[str, str] | None:
    """Read `/v1/models`: served name -> root. vLLM gives aliases one root, and each adapter its own."""
    page = _read(ending, _MODELS)
    return None if page is None else {model.id: model.root or model.id for model in page.data}


def listed_models_of(ending: Ending) -> list[ListedModel] | None:
    """Read `/v1/models` in full, in the server's order: vLLM lists base models first, then adapters."""
    page = _read(ending, _MODELS)
    if page is None:
        return None
    return [ListedModel(each.id, each.root or each.id, each.parent, each.max_model_len) for each in page.data]


def context_tokens_of(ending: Ending) -> dict[str, int] | None:
    """Read `/v1/models`: served name -> `max_model_len`, of those that have one (vLLM's do)."""
    page = _read(ending, _MODELS)
    if page is None:
        return None
    return {model.id: model.max_model_len for model in page.data if model.max_model_len is not None}


def sleeping_of(ending: Ending) -> bool | None:
    """Read `/is_sleeping`, which vLLM has in development mode only."""
    page = _read(ending, _SLEEP)
    return None if page is None else page.is_sleeping


def version_of(ending: Ending) -> str | None:
    """Read `/version`."""
    page = _read(ending, _VERSION)
    return None if page is None else page.version


class _Model(msgspec.Struct):
    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Sleep(msgspec.Struct):
    is_sleeping: bool


class _Version(msgspec.Struct):
    version: str


_MODELS: Final = msgspec.json.Decoder(_Models)
_SLEEP: Final = msgspec.json.Decoder(_Sleep)
_VERSION: Final = msgspec.json.Decoder(_Version)


def _read(ending: Ending, decoder: "msgspec.json.Decoder[_Page]") -> _Page | None:
    match ending:
        case Answer(status=200, body=body):
            try:
                return decoder.decode(body)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return None
        case _:
            return None
