import json
import time

import pytest

from dispatcher.request_line import NESTING_MAX, ROUTES, Head, LineCode, LineFault, parse_request


def line(**changes):
    request = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m"}}
    request.update(changes)
    return json.dumps({key: value for key, value in request.items() if value is not ...}).encode()


def with_body(body):
    return b'{"custom_id":"a","method":"POST","url":"/score","body":%b}' % body


def code_of(content):
    found = parse_request(content)
    assert isinstance(found, LineFault), found
    assert found.message
    return found.code


def test_a_request_keeps_its_bodys_own_bytes():
    found = parse_request(with_body(b'{ "model" : "m",  "x":1.50 }') + b"\r")
    assert found == Head("a", "/score", "m", b'{ "model" : "m",  "x":1.50 }')


def test_the_model_may_be_absent_or_null():
    assert parse_request(with_body(b"{}")).model is None
    assert parse_request(with_body(b'{"model":null}')).model is None


@pytest.mark.parametrize("url", sorted(ROUTES))
def test_every_route_is_allowed(url):
    assert parse_request(line(url=url)).url == url


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b'{"custom_id":"\xff"}', LineCode.NOT_UTF8),
        (with_body(b'{"x":"\xed\xa0\xbd"}'), LineCode.NOT_UTF8),  # a surrogate written as UTF-8
        (with_body(b'{"x":"\xc0\x80"}'), LineCode.NOT_UTF8),  # an overlong form
        ('{"custom_id":"a"}'.encode("utf-16"), LineCode.NOT_UTF8),
        (b"{", LineCode.NOT_JSON),
        (b"custom_id,body", LineCode.NOT_JSON),
        (line() + b"{}", LineCode.NOT_JSON),
        (line() + b"\x00", LineCode.NOT_JSON),
        (with_body(b'{"x":NaN}'), LineCode.NOT_JSON),
        (with_body(b'{"x":-Infinity}'), LineCode.NOT_JSON),
        (with_body(b'{"x":"\x01"}'), LineCode.NOT_JSON),
        (with_body(b'{"x":01}'), LineCode.NOT_JSON),
        (with_body(b'{"x":"\\q"}'), LineCode.NOT_JSON),
        (with_body(b'{"x":1,}'), LineCode.NOT_JSON),
        (b"[]", LineCode.NOT_AN_OBJECT),
        (b'"text"', LineCode.NOT_AN_OBJECT),
        (b"null", LineCode.NOT_AN_OBJECT),
        (line(custom_id=...), LineCode.CUSTOM_ID_MISSING),
        (line(custom_id=None), LineCode.CUSTOM_ID_MISSING),
        (line(custom_id=5), LineCode.CUSTOM_ID_NOT_A_STRING),
        (line(custom_id=""), LineCode.CUSTOM_ID_EMPTY),
        (line(custom_id="\ud83d"), LineCode.CUSTOM_ID_LONE_SURROGATE),
        (line(method=...), LineCode.METHOD_NOT_POST),
        (line(method="GET"), LineCode.METHOD_NOT_POST),
        (line(url=...), LineCode.URL_UNKNOWN),
        (line(url=["/score"]), LineCode.URL_UNKNOWN),
        (line(url="/v1/tokenize"), LineCode.URL_UNKNOWN),
        (line(url="http://gpu1:8000/v1/completions"), LineCode.URL_UNKNOWN),
        (line(body=...), LineCode.BODY_MISSING),
        (line(body=None), LineCode.BODY_MISSING),
        (line(body=[]), LineCode.BODY_NOT_AN_OBJECT),
        (line(body='{"model":"m"}'), LineCode.BODY_NOT_AN_OBJECT),
        (line(body={"stream": True}), LineCode.STREAM_NOT_ALLOWED),
        (line(body={"stream": 1}), LineCode.STREAM_NOT_ALLOWED),
        (line(body={"stream": "false"}), LineCode.STREAM_NOT_ALLOWED),
        (line(body={"model": 5}), LineCode.MODEL_NOT_A_STRING),
        (line(body={"model": ["m"]}), LineCode.MODEL_NOT_A_STRING),
        (line(body={"model": "\udc00"}), LineCode.MODEL_LONE_SURROGATE),
    ],
)
def test_each_kind_of_fault_has_its_code(content, code):
    assert code_of(content) is code


@pytest.mark.parametrize("stream", [None, False])
def test_a_body_may_say_that_it_does_not_stream(stream):
    assert isinstance(parse_request(line(body={"stream": stream})), Head)


def test_a_lone_surrogate_in_the_body_is_passed_on_as_it_is():
    body = b'{"prompt" : "\\ud83d", "model":"m", "n": 1e999}'
    assert parse_request(with_body(body)) == Head("a", "/score", "m", body)


def test_an_escaped_null_character_is_a_character():
    assert parse_request(line(custom_id="a\0b", body={"prompt": "\0"})).custom_id == "a\0b"


def test_a_five_megabyte_line_is_a_line():
    body = b'{"prompt":"%b"}' % (b"x" * 5_000_000)
    assert parse_request(with_body(body)).body == body


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_is_limited_exactly(opening, closing):
    def nested(levels):
        return with_body(b'{"x":%b1%b}' % (opening * (levels - 2), closing * (levels - 2)))

    assert isinstance(parse_request(nested(NESTING_MAX)), Head)
    assert code_of(nested(NESTING_MAX + 1)) is LineCode.NESTED_TOO_DEEP
    assert code_of(nested(200_000)) is LineCode.NESTED_TOO_DEEP


def test_many_brackets_that_do_not_nest_are_no_fault():
    body = json.dumps({"x": [[] for _ in range(2000)], "y": '"[{\\' * 2000}).encode()
    assert parse_request(with_body(body)).body == body


def test_a_torn_line_of_many_quotes_is_examined_in_linear_time():
    content = with_body(b'{"x":[' * 600)[:-1] + b',"' + b'\\"' * 500_000
    started = time.process_time()
    assert code_of(content) is LineCode.NESTED_TOO_DEEP
    assert time.process_time() - started < 1


def test_a_fault_names_the_value_shortly_and_the_lines_id():
    found = parse_request(line(url="/" + "x" * 1000))
    assert found.custom_id == "a"
    assert found.message.startswith('url is "/xxx')
    assert len(found.message) < 350


def test_a_fault_tells_the_column_of_what_is_no_json():
    assert "at column 16;" in parse_request(b'{"custom_id":  }').message
