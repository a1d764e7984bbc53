"""What is told of a store's refusals, and what is not."""

import traceback

import pytest
from obstore.exceptions import (
    AlreadyExistsError,
    GenericError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
)

from dispatcher.errors import MissingError, StorageError, TakenError, UnavailableError
from dispatcher.storage.opening import is_remote, open_store, refusals

S3_REFUSES = (
    "Generic S3 error: Error performing PUT http://host/b/k?X-Amz-Signature=SECRET in 2ms - Server returned"
    " non-2xx status code: 403 Forbidden: <Error><Code>SignatureDoesNotMatch</Code>"
    "<AWSAccessKeyId>SECRET</AWSAccessKeyId>"
)
"""As object_store 0.13 words it, with an S3 server's own account of the request."""
UNREACHED = (
    "Generic MicrosoftAzure error: Error performing GET https://a.blob/c/k?sv=1&sig=SECRET in 5s, after 0"
    " retries - HTTP error: error sending request\n\nDebug source:\nGeneric { uri: https://a?sig=SECRET }"
)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (AlreadyExistsError("x"), TakenError),
        (PreconditionError("x"), TakenError),
        (NotFoundError("x"), MissingError),
        (FileNotFoundError("x"), MissingError),
        (PermissionDeniedError(S3_REFUSES), StorageError),
        (GenericError(S3_REFUSES), UnavailableError),
        (GenericError(UNREACHED), UnavailableError),
        (OSError("Generic GCS error: no token"), UnavailableError),
    ],
)
def test_each_refusal_has_its_kind_and_names_the_object_and_no_secret(raised, expected):
    with (
        pytest.raises(expected, match="s3://b/k: cannot be written") as told,
        refusals("s3://b/k", "cannot be written"),
    ):
        raise raised
    assert "SECRET" not in "".join(traceback.format_exception(told.value))


def told(error):
    with pytest.raises(StorageError) as raised, refusals("s3://b/k", "cannot be read"):
        raise error
    return str(raised.value)


def test_the_status_and_its_code_are_told():
    refused = told(PermissionDeniedError(S3_REFUSES))
    assert refused.startswith("s3://b/k: cannot be read: 403 Forbidden (SignatureDoesNotMatch); give this")
    assert told(GenericError(UNREACHED)) == "s3://b/k: cannot be read: HTTP error: error sending request"


def test_what_the_environment_lacks_is_told_when_a_store_is_opened(monkeypatch):
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StorageError, match=r"az://container/x: .*Account must be specified"):
        open_store("az://container/x", retries=False)


def test_an_object_is_told_from_a_path():
    assert is_remote("s3://b/k")
    assert is_remote("gs://b/k")
    assert not any(map(is_remote, ("a/b.jsonl", "/s3/x", "-", "file:///x", "http://h/x", "s3:x")))
