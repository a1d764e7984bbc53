"""Names of what the service keeps: nobody can guess them, and they are safe as file names."""

import secrets

from dispatcher.model import JobId

_BYTES = 12


def new_file_id() -> str:
    """`file-` and 24 hex digits."""
    return f"file-{secrets.token_hex(_BYTES)}"


def new_job_id() -> JobId:
    """`batch_` and 24 hex digits."""
    return JobId(f"batch_{secrets.token_hex(_BYTES)}")
