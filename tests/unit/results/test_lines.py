"""The output line: what OpenAI's readers expect, whatever is in it."""

import json

import msgspec
import pytest

from dispatcher.model import ErrorCode, Job, JobId, Outcome, Provenance
from dispatcher.results.lines import encode_outcome, names

JOB = Job(JobId("b1"), provenance=False)
HOSTILE = ['"', "\\", "\n\r\t", "\x00\x1f\x7f", "é 猫 😀", "\u0085\u2028\u2029", "</script>", ""]


def test_a_success_is_a_batch_output_line():
    outcome = Outcome(3, "row-3", None, "", 200, "req-9", b'{"choices":[]}')
    assert encode_outcome(outcome, JOB) == (
        b'{"id":"batch_req_b1_3","custom_id":"row-3","response":{"status_code":200,"request_id":"req-9",'
        b'"body":{"choices":[]}},"error":null}'
    )


def test_a_fault_that_a_server_answered_keeps_its_answer():
    outcome = Outcome(3, "row-3", ErrorCode.CONTEXT_LENGTH, "too long", 400, None, b'{"error":{}}')
    assert encode_outcome(outcome, JOB) == (
        b'{"id":"batch_req_b1_3","custom_id":"row-3","response":{"status_code":400,"request_id":null,'
        b'"body":{"error":{}}},"error":{"code":"context_length","message":"too long"}}'
    )


def test_a_fault_whose_answer_was_not_kept_has_a_null_body():
    line = json.loads(encode_outcome(Outcome(3, "row-3", ErrorCode.SERVER_ERROR, "boom", 500), JOB))
    assert line["response"] == {"status_code": 500, "request_id": None, "body": None}


def test_a_fault_without_any_answer_has_a_null_response():
    line = json.loads(encode_outcome(Outcome(3, "row-3", ErrorCode.TIMEOUT, "late"), JOB))
    assert line["response"] is None
    assert line["error"] == {"code": "timeout", "message": "late"}


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_error_code_stands_in_the_line_as_it_is_documented(code):
    assert json.loads(encode_outcome(Outcome(0, "a", code), JOB))["error"]["code"] == code.value


@pytest.mark.parametrize(
    "body",
    [
        b'{ "a" :\t1.0e2 , "a":-0.0}',
        '{"a":"\u2028\u0085"}'.encode(),
        rb'{"a":"\ud83d"}',
        rb'{"a":"\u00e9\/"}',
    ],
)
def test_the_body_is_not_touched(body):
    assert b'"body":' + body + b'},"error"' in encode_outcome(Outcome(0, "a", None, "", 200, None, body), JOB)


def test_provenance_says_which_server_answered():
    provenance = Provenance("http://gpu1:8000", "llama", "0.32.0", 2, 1.5)
    line = encode_outcome(Outcome(0, "a", None, provenance=provenance), Job(JobId("b1")))
    assert line.endswith(
        b',"provenance":{"server":"http://gpu1:8000","model":"llama","server_version":"0.32.0",'
        b'"attempts":2,"seconds":1.5}}'
    )


def test_provenance_is_null_for_a_request_that_was_never_sent():
    line = json.loads(encode_outcome(Outcome(0, "a", ErrorCode.BATCH_CANCELLED), Job(JobId("b1"))))
    assert line["provenance"] is None


def test_provenance_is_left_out_where_the_job_says_so():
    provenance = Provenance("http://gpu1:8000", "llama", "0.32.0", 2, 1.5)
    assert b"provenance" not in encode_outcome(Outcome(0, "a", None, provenance=provenance), JOB)


@pytest.mark.parametrize("text", HOSTILE)
def test_our_strings_survive_and_stay_on_one_line(text):
    provenance = Provenance(text, text, text, 1, 0.0)
    outcome = Outcome(0, text, ErrorCode.SERVER_ERROR, text, 500, text, None, provenance=provenance)
    encoded = encode_outcome(outcome, Job(JobId("b1")))
    line = msgspec.json.decode(encoded)
    assert len(encoded.decode().splitlines()) == 1
    assert [line["custom_id"], line["error"]["message"], line["response"]["request_id"]] == [text] * 3
    assert [line["provenance"][name] for name in ("server", "model", "server_version")] == [text] * 3


@pytest.mark.parametrize(
    ("text", "written"), [("a\ud83db", "a\ufffdb"), ("\udc80", "\ufffd"), ("\ud83d\ude00", "😀")]
)
def test_what_strict_json_cannot_hold_is_replaced(text, written):
    provenance = Provenance(None, text, None, 1, 0.0)
    outcome = Outcome(0, text, ErrorCode.SERVER_ERROR, text, 500, text, None, provenance=provenance)
    line = msgspec.json.decode(encode_outcome(outcome, Job(JobId("b1"))))
    assert [line["custom_id"], line["error"]["message"], line["response"]["request_id"]] == [written] * 3
    assert line["provenance"] == {
        "server": None,
        "model": written,
        "server_version": None,
        "attempts": 1,
        "seconds": 0.0,
    }


@pytest.mark.parametrize("custom_id", [*HOSTILE, "a\ud83d", 'x","custom_id":"y'])
def test_a_line_names_its_own_request_only(custom_id):
    body = b'{"x":1,"custom_id":"other","response":2}'
    line = encode_outcome(Outcome(0, custom_id, None, "", 200, None, body), JOB)
    assert names(line, custom_id)
    assert not names(line, "other")
    assert not names(line, custom_id + "x")


def test_a_line_whose_body_a_strict_decoder_refuses_still_names_its_request():
    line = encode_outcome(Outcome(0, "a", None, "", 200, None, rb'{"a":"\ud83d"}'), JOB)
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(line)
    assert names(line, "a")
