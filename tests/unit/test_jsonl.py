import tracemalloc

import pytest

from dispatcher.jsonl import loads_strictly, raw_members, split_lines


def contents(*chunks, **limits):
    return [line.content for line in split_lines(chunks, **limits)]


def test_a_line_ends_at_a_newline_and_nowhere_else():
    text = "a\u2028b\u2029c\u0085d\x0be\x0cf\rg\nh\n".encode()
    assert contents(text) == ["a\u2028b\u2029c\u0085d\x0be\x0cf\rg".encode(), b"h"]


def test_a_last_line_without_its_newline_counts():
    assert contents(b"a\nb") == [b"a", b"b"]


def test_an_empty_stream_has_no_lines():
    assert contents() == contents(b"") == contents(b"\xef\xbb\xbf") == []


def test_lines_know_their_number_offset_and_length():
    lines = list(split_lines([b"ab\n\nc", b"d\ne"]))
    assert [(line.number, line.offset, line.length) for line in lines] == [
        (1, 0, 3),
        (2, 3, 1),
        (3, 4, 3),
        (4, 7, 1),
    ]


def test_a_byte_order_mark_is_left_out_at_the_start_even_where_chunks_cut_it():
    lines = list(split_lines([b"\xef", b"\xbb", b"\xbfa\n\xef\xbb\xbfb\n"]))
    assert [(line.offset, line.content) for line in lines] == [(3, b"a"), (5, b"\xef\xbb\xbfb")]


def test_blank_lines_are_those_of_white_space():
    assert [line.blank for line in split_lines([b"\n \t\r\nx\n\r"])] == [True, True, False, True]


@pytest.mark.parametrize("chunk_bytes", [1, 3, 1000])
def test_a_line_over_the_limit_comes_without_its_content_and_the_next_is_whole(chunk_bytes):
    text = b"ab\n" + b"x" * 100 + b"\ncd\n" + b"y" * 50
    chunks = [text[at : at + chunk_bytes] for at in range(0, len(text), chunk_bytes)]
    lines = list(split_lines(chunks, 10))
    assert [line.content for line in lines] == [b"ab", None, b"cd", None]
    assert [(line.offset, line.length) for line in lines] == [(0, 3), (3, 101), (104, 3), (107, 50)]


def test_a_line_of_exactly_the_limit_is_kept():
    assert contents(b"123456789", line_bytes_max=10) == contents(b"123456789\n", line_bytes_max=10)


def test_a_line_over_the_limit_is_not_held_in_memory():
    tracemalloc.start()
    lines = contents(*[b"x" * 100_000] * 100, line_bytes_max=200_000)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert lines == [None]
    assert peak_bytes < 1_000_000


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a":-Infinity}', "{", "[1,]", "01", "'a'", ""])
def test_what_is_not_json_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        loads_strictly(text)


def test_numbers_of_any_size_are_json():
    assert loads_strictly("9" * 5000) == loads_strictly("1e999") == float("inf")


def test_members_are_as_the_text_has_them_and_the_last_of_a_key_counts():
    text = ' { "a" : 1.50 , "b":[1, {"a":2}],"\\u0061": "\\ud83d" , "":null} '
    assert raw_members(text) == {"a": '"\\ud83d"', "b": '[1, {"a":2}]', "": "null"}


def test_an_empty_object_has_no_members():
    assert raw_members(" { } ") == {}
