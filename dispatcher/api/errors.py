"""What went wrong, in the shape that OpenAI's clients read."""

from collections.abc import Awaitable, Callable

import msgspec
import structlog
from aiohttp import web

from dispatcher.errors import DispatcherError, QueueUnreachableError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
}
"""By status, as the API's own answers have them (https://platform.openai.com/docs/guides/error-codes)."""


class ApiError(Exception):
    """An answer that is an error. `message` is shown to whoever asked."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = headers or {}


def error_response(error: ApiError) -> web.Response:
    """`{"error": {"message", "type", "param", "code"}}`, which every OpenAI SDK turns into its exceptions."""
    kind = TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")  # noqa: PLR2004  # HTTP
    message = str(error).encode(errors="replace").decode()  # it may quote a lone surrogate: no JSON
    body = {"message": message, "type": kind, "param": error.param, "code": error.code}
    return web.Response(
        status=error.status,
        body=msgspec.json.encode({"error": body}),
        content_type="application/json",
        headers=error.headers,
    )


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let no failure leave as anything but an error of this shape, and none that is ours unlogged."""
    try:
        return await handler(request)
    except ApiError as error:
        return error_response(error)
    except web.HTTPException as error:
        return error_response(_of_aiohttp(request, error))
    except DispatcherError as error:
        if not isinstance(error, QueueUnreachableError):  # the queue logs its outages itself, once
            log_failure(request, error)
        said = "the service cannot do this now; its log says why"  # the error may name its files
        return error_response(ApiError(503, said, code="unavailable"))
    except Exception as error:  # noqa: BLE001  # whatever a handler did not foresee
        log_failure(request, error)
        return error_response(ApiError(500, "the service failed; its log says why", code="internal_error"))


def _of_aiohttp(request: web.Request, error: web.HTTPException) -> ApiError:
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
    messages = {
        404: f"there is no {request.path}",
        405: f"{request.path} cannot be asked with {request.method}",
        413: "the request is larger than this route takes",
    }
    return ApiError(error.status, messages.get(error.status, error.reason), headers=headers)


def log_failure(request: web.Request, error: Exception) -> None:
    """Log why a request is not answered as it should be."""
    why = f"{type(error).__name__}: {error}"  # the representation of a UnicodeDecodeError holds all it read
    structlog.get_logger("dispatcher.api").error(
        "request_failed", method=request.method, route=_route(request), error=why, exc_info=error
    )


def _route(request: web.Request) -> str:
    """The route's pattern: a path may hold what does not belong in a log."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "unknown"
