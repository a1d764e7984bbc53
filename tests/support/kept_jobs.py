"""Jobs as the keeper has them, for tests of what is decided about them."""

from dispatcher.jobs.details import Details
from dispatcher.jobs.kept import Kept
from dispatcher.model import Job, JobId


def kept_job(name, *, requests=0, **details):
    """A job of so many requests, made at 1000 s, with a window of an hour.

    `details` are fields of Details: `owner` and `stage` at least.
    """
    usual = {
        "input_file_id": "file-1",
        "endpoint": "/v1/completions",
        "completion_window": "1h",
        "window_s": 3600,
        "expires_at": 5000.0,
    }
    return Kept(Job(JobId(name)), Details(**usual, **details), 1000.0, requests=requests)
