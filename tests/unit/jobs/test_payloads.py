import pytest

from dispatcher.errors import StorageError
from dispatcher.jobs.payloads import JobPayloads
from dispatcher.jobs.places import Places
from dispatcher.model import Job, JobId, Lease, Shard

LINE = b'{"custom_id": "a", "method": "POST", "url": "/score", "body": {}}'


LEASE = Lease(Job(JobId("job")), Shard(0, 0, 1, 0, len(LINE)), 1)


async def test_a_jobs_requests_come_from_its_own_input(tmp_path):
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs/job").write_bytes(LINE)
    (request,) = await JobPayloads(Places(tmp_path)).read(LEASE)
    assert (request.custom_id, request.body) == ("a", b"{}")


@pytest.mark.parametrize("content", [None, b"", LINE[:-1]])
async def test_a_damaged_input_is_named(tmp_path, content):
    (tmp_path / "inputs").mkdir()
    if content is not None:
        (tmp_path / "inputs/job").write_bytes(content)
    with pytest.raises(StorageError, match="inputs/job"):
        await JobPayloads(Places(tmp_path)).read(LEASE)
