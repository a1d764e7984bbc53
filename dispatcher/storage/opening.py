"""Object stores by their URL, and what their refusals are called here."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import from_url

from dispatcher.errors import MissingError, StorageError, TakenError, UnavailableError

if TYPE_CHECKING:
    from obstore.store import BackoffConfig, ClientConfig, ObjectStore, RetryConfig

OBJECT_SCHEMES: Final = frozenset({"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss"})
"""Of the URLs that name an object store, as obstore has them."""
REQUEST_S: Final = 60.0
"""What one request may take, its bytes included: 8 MiB, as a rule, or a journal."""
PART_S: Final = 600.0
"""What one part of a stream may take: of a file of a terabyte, parts have 120 MB."""
CONNECT_S: Final = 5.0
RETRIES: Final = 10
RETRIES_S: Final = 120.0
"""How long a part of a stream is sent again: nobody but the client below can do that."""
_BACKOFF_MIN_S, _BACKOFF_MAX_S = 0.2, 5.0
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")
_DETAIL_CHARACTERS_MAX: Final = 300


def is_remote(name: str) -> bool:
    """Whether this names something in an object store, as `s3://bucket/key` does."""
    return urlsplit(name).scheme in OBJECT_SCHEMES if "://" in name else False


def open_store(url: str, *, retries: bool) -> "ObjectStore":
    """The store below a URL. Nothing is asked of it yet.

    Credentials and endpoints come from where each provider's own tools look for them: the usual environment
    variables (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, ...), or the machine's own identity. `http://`
    endpoints are used only where the environment names one. `retries` has each request sent again for two
    minutes, with jitter; without, a failure is told at once, and sending again is the caller's business.

    Raises StorageError where the URL, or what the environment says, is of no use.
    """
    backoff: BackoffConfig = {
        "init_backoff": timedelta(seconds=_BACKOFF_MIN_S),
        "max_backoff": timedelta(seconds=_BACKOFF_MAX_S),
        "base": 2,
    }
    again: RetryConfig = {
        "max_retries": RETRIES if retries else 0,
        "retry_timeout": timedelta(seconds=RETRIES_S),
        "backoff": backoff,
    }
    client: ClientConfig = {
        "timeout": timedelta(seconds=PART_S if retries else REQUEST_S),
        "connect_timeout": timedelta(seconds=CONNECT_S),
        "allow_http": any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS),
    }
    try:
        store: ObjectStore = from_url(url, retry_config=again, client_options=client)
    except (BaseError, ValueError) as error:
        raise StorageError(f"{url}: cannot be used as an object store: {detail_of(error)}") from None
    return store


@contextmanager
def refusals(where: str, what: str) -> Iterator[None]:
    """Turn what obstore raises into a StorageError: `where`, `what`, and the reason, without what is secret.

    TakenError where a condition was not met, UnavailableError where the same may succeed later. obstore has
    one type for everything that is none of the named ones (an answer of 5xx, no connection, a time-out):
    all of that counts as unavailable. The cause is not kept: logs show it, with URLs and answers in it.
    """
    try:
        yield
    except (AlreadyExistsError, PreconditionError):
        raise TakenError(f"{where}: {what}: another has written there") from None
    except (FileNotFoundError, NotFoundError):
        raise MissingError(f"{where}: {what}: there is no such object, or no such place") from None
    except (PermissionDeniedError, UnauthenticatedError) as error:
        advice = "give this process credentials that may do it"
        raise StorageError(f"{where}: {what}: {detail_of(error)}; {advice}") from None
    except (BaseError, OSError) as error:  # its files raise the latter
        raise UnavailableError(f"{where}: {what}: {detail_of(error)}") from None


_STATUS = re.compile(r"status code: ([0-9]{3}[A-Za-z ]*)")
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,60})</Code>")
_QUERY = re.compile(r"\?[^\s\"'<>)]*")


def detail_of(error: Exception) -> str:
    """The reason in a store's own words: the status and its code, or the first line.

    Queries of URLs are left out: with Azure's shared access signatures they are the credentials. So are
    bodies of answers: a refused signature is quoted there.
    """
    text = str(error)
    status, code = _STATUS.search(text), _CODE.search(text)
    if status is not None:
        return status[1].strip() + (f" ({code[1]})" if code else "")
    first = _QUERY.sub("", text.split("\n", 1)[0])
    return (first.rsplit(" - ", 1)[-1] if " - " in first else first)[:_DETAIL_CHARACTERS_MAX]
