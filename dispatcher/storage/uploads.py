"""Multipart uploads of S3 that a kill has cut off: no object yet, not listed with them, and paid for."""

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

from dispatcher.errors import StorageError

_SCHEMES: Final = ("s3", "s3a")


def can_abort_uploads(url: str) -> bool:
    """Whether those of a store can be found: it is S3, and boto3 is installed, as nothing else needs it."""
    return urlsplit(url).scheme in _SCHEMES and importlib.util.find_spec("boto3") is not None


def abort_uploads(url: str, before: float, *, dry_run: bool = False) -> int:
    """Throw away the uploads below a URL that were begun before a time; return how many there were. Blocks.

    `before` is in seconds since the epoch. Credentials and endpoints come from the environment, as obstore's
    do. With `dry_run` they are only counted. Raises StorageError.
    """
    parts = urlsplit(url)
    prefix = parts.path.strip("/")
    with _refusals(url):
        client = _client()
        pages = client.get_paginator("list_multipart_uploads").paginate(
            Bucket=parts.netloc, Prefix=f"{prefix}/" if prefix else ""
        )
        old = [
            (upload["Key"], upload["UploadId"])
            for page in pages
            for upload in page.get("Uploads", ())
            if upload["Initiated"] < datetime.fromtimestamp(before, UTC)
        ]
        for key, upload in () if dry_run else old:
            client.abort_multipart_upload(Bucket=parts.netloc, Key=key, UploadId=upload)
    return len(old)


def _client() -> Any:
    import boto3  # noqa: PLC0415  # for this alone, and not needed by the rest

    return boto3.client("s3", region_name=os.environ.get("AWS_REGION"))  # boto3 has another name for it


@contextmanager
def _refusals(url: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "unknown")
        raise StorageError(f"{url}: its multipart uploads cannot be listed or aborted: {code}") from None
    except BotoCoreError as error:
        name = type(error).__name__
        raise StorageError(f"{url}: its multipart uploads cannot be listed or aborted: {name}") from None
