import json

from dispatcher.api.errors import ApiError, error_response


def test_a_message_that_quotes_what_no_json_takes_is_told_all_the_same():
    answer = error_response(ApiError(503, "no server for \ud83d"))
    assert (answer.status, json.loads(answer.body)["error"]["message"]) == (503, "no server for ?")


def test_an_error_has_the_shape_that_openais_clients_read():
    answer = error_response(ApiError(404, "no", code="none", param="id", headers={"Retry-After": "2"}))
    assert json.loads(answer.body) == {
        "error": {"message": "no", "type": "not_found_error", "param": "id", "code": "none"}
    }
    assert (answer.content_type, answer.headers["Retry-After"]) == ("application/json", "2")
