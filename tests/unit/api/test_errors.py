import json

import pytest
from aiohttp.test_utils import make_mocked_request
from structlog.testing import capture_logs

from dispatcher.api.errors import ApiError, answer_errors, error_response
from dispatcher.errors import QueueError, QueueUnreachableError


def test_a_message_that_quotes_what_no_json_takes_is_told_all_the_same():
    answer = error_response(ApiError(503, "no server for \ud83d"))
    assert (answer.status, json.loads(answer.body)["error"]["message"]) == (503, "no server for ?")


def test_an_error_has_the_shape_that_openais_clients_read():
    answer = error_response(ApiError(404, "no", code="none", param="id", headers={"Retry-After": "2"}))
    assert json.loads(answer.body) == {
        "error": {"message": "no", "type": "not_found_error", "param": "id", "code": "none"}
    }
    assert (answer.content_type, answer.headers["Retry-After"]) == ("application/json", "2")


@pytest.mark.parametrize(("failure", "logged"), [(QueueError, 1), (QueueUnreachableError, 0)])
async def test_a_failing_queue_is_a_503_and_an_outage_that_was_logged_is_not_logged_again(failure, logged):
    async def handler(_request):
        raise failure("postgresql://me@h/queue is away")

    with capture_logs() as logs:
        answer = await answer_errors(make_mocked_request("GET", "/v1/files"), handler)
    assert (answer.status, b"postgresql" in answer.body) == (503, False)
    assert len(logs) == logged


async def test_what_could_not_be_decoded_is_not_in_the_log_of_the_failure():
    async def handler(_request):
        b"the patient has gout \xff".decode()

    with capture_logs() as logs:
        answer = await answer_errors(make_mocked_request("POST", "/v1/files"), handler)
    assert answer.status == 500
    assert logs[0]["error"].startswith("UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff")
    assert "gout" not in logs[0]["error"]
