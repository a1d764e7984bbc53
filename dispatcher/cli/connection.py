"""The service, as commands reach it: its address and key, its answers, and what its refusals say."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import httpx2

from dispatcher.errors import DispatcherError

TIMEOUT_S = 30.0


class ServiceError(DispatcherError):
    """The service cannot be reached, or refuses. The text says why."""


class Connection:
    """The service's own routes (`/servers`, `/jobs`). Use it as a context manager.

    Every method raises ServiceError.
    """

    def __init__(self, url: str, api_key: str | None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.api_key = api_key
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            self._client = httpx2.Client(base_url=self.url, headers=headers, timeout=TIMEOUT_S)
        except (httpx2.InvalidURL, UnicodeEncodeError) as error:
            raise ServiceError("--url or --api-key cannot be used: it holds odd characters") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def get(self, path: str, **query: str) -> Any:
        """The answer's JSON."""
        return self._ask("GET", path, params=query)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer's JSON."""
        return self._ask("POST", path, json=body)

    def delete(self, path: str, **query: str) -> Any:
        """The answer's JSON; None where it is empty."""
        return self._ask("DELETE", path, params=query)

    @contextmanager
    def lines(self, path: str) -> Iterator[Iterator[bytes]]:
        """The answer's lines, as they come, without their ends."""
        with self._translated(), self._client.stream("GET", path) as answer:
            if answer.is_error:
                answer.read()
                raise ServiceError(f"{self.url} says: {refusal(answer)}")
            yield _lines(answer.iter_bytes())

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        with self._translated():
            answer = self._client.request(method, path, **options)
        if answer.is_error:
            raise ServiceError(f"{self.url} says: {refusal(answer)}")
        try:
            return answer.json() if answer.content else None
        except ValueError as error:
            raise ServiceError(f"{self.url} is not a dispatcher: {path} gives no JSON") from error

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise ServiceError(
                f"{self.url} cannot be reached: {str(error) or type(error).__name__}"
            ) from error


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Lines by their newlines alone: a text may hold other characters that end lines elsewhere."""
    pieces: list[bytes] = []
    for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        pieces.append(first)
        for piece in rest:
            yield b"".join(pieces)
            pieces = [piece]
    if any(pieces):
        yield b"".join(pieces)


def refusal(answer: httpx2.Response) -> str:
    """An error's message, or its status where it has none."""
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP status {answer.status_code}"
