"""The journal's format: what of a file is worth keeping after any accident."""

import zlib

import pytest

from dispatcher.errors import StorageError
from dispatcher.model import ErrorCode, Grudge, Tally, Tokens
from dispatcher.results.journal import (
    Record,
    encode_grudge,
    encode_record,
    journal_path,
    owed,
    parse_journal,
    read_journal,
    repair_journal,
)

MULTIBYTE = '{"choices":[{"text":"naïve 猫"}]}'.encode()


@pytest.fixture
def shard(samples):
    return samples.shard()


@pytest.fixture
def records(samples):
    """The encoded records of outcomes 0, 1 and 2; 1 is a failure and 2 holds letters of several bytes."""
    outcomes = [samples.success(0), samples.failure(1), samples.success(2, MULTIBYTE)]
    return [encode_record(outcome, samples.job) for outcome in outcomes]


@pytest.fixture
def custom_ids():
    return {index: f"row-{index}" for index in range(4)}


def test_what_was_written_is_read_back(samples, shard, records, custom_ids):
    contents = parse_journal(b"".join(records), shard, custom_ids)
    assert contents.clean
    assert contents.dropped == 0
    assert contents.length == len(b"".join(records))
    assert [record.mark for record in contents.records] == ["ok", "timeout", "ok"]
    assert list(contents.outcomes) == [0, 1, 2]
    assert contents.records[2].tokens == Tokens(10, 2)
    assert MULTIBYTE in contents.records[2].line


def test_a_record_is_a_line_of_tab_separated_fields(samples):
    checksum, *fields = encode_record(samples.success(2), samples.job).rstrip(b"\n").split(b"\t")
    assert len(checksum) == 8
    assert fields[:4] == [b"2", b"ok", b"10", b"2"]
    assert fields[4].startswith(b'{"id":"batch_req_batch_7_2","custom_id":"row-2"')


def test_the_tally_counts_outcomes_tokens_and_errors(samples, shard):
    outcomes = [samples.success(3), samples.failure(0, ErrorCode.POISON), samples.failure(1)]
    contents = parse_journal(b"".join(encode_record(outcome, samples.job) for outcome in outcomes), shard)
    assert contents.tally == Tally(1, 2, 10, 3, {"poison": 1, "timeout": 1})
    assert contents.tally == Tally().plus(outcomes)


def test_a_missing_journal_is_empty_and_clean(tmp_path, shard):
    contents = repair_journal(tmp_path / "none.journal", shard)
    assert contents.clean
    assert contents.records == ()
    assert not (tmp_path / "none.journal").exists()


ACCIDENTS = {
    "partial JSON": (lambda a, b, c: a + b + c[: len(c) // 2], [0, 1]),
    "cut inside a letter": (lambda a, b, c: a + b + c[: c.index("猫".encode()) + 1], [0, 1]),
    "cut inside the checksum": (lambda a, b, c: a + b + c[:3], [0, 1]),
    "whole without its newline": (lambda a, b, c: a + b + c[:-1], [0, 1, 2]),
    "torn and a blank line": (lambda a, b, c: a + b + c[:40] + b"\n\n", [0, 1]),
    "a blank line": (lambda a, b, c: a + b + c + b"\n", [0, 1, 2]),
    "zeros behind": (lambda a, b, c: a + b + c + bytes(4096), [0, 1, 2]),
    "zeros over a record": (lambda a, b, c: a + bytes(len(b)) + c, [0]),
    "zeros over a line": (lambda a, b, c: a + bytes(len(b) - 1) + b"\n" + c, [0, 2]),
    "garbage in the middle": (lambda a, b, c: a + b"\xff\xfe\n" + b + c, [0, 1, 2]),
    "a newline inside a record": (lambda a, b, c: a + b + c[:60] + b"\n" + c[60:], [0, 1]),
    "two records run together": (lambda a, b, c: a + b[:-1] + c, [0]),
    "CRLF": (lambda a, b, c: a + b + c[:-1] + b"\r\n", [0, 1]),
    "nothing but zeros": (lambda *_: bytes(5000), []),
    "nothing but newlines": (lambda *_: b"\n\n\n", []),
    "the checksum of nothing": (lambda *_: b"00000000\t\n", []),
}
"""What F13, a power cut or a meddler leave of three records, and the indexes that must survive."""


@pytest.mark.parametrize(("damage", "survivors"), ACCIDENTS.values(), ids=ACCIDENTS)
def test_after_an_accident_whole_records_are_kept_and_the_file_is_clean_again(
    tmp_path, shard, records, custom_ids, damage, survivors
):
    path = tmp_path / "a.journal"
    path.write_bytes(damage(*records))
    assert not read_journal(path, shard, custom_ids).clean
    assert path.read_bytes() == damage(*records)
    repaired = repair_journal(path, shard, custom_ids)
    assert sorted(repaired.outcomes) == survivors
    assert path.stat().st_size == repaired.length
    again = read_journal(path, shard, custom_ids)
    assert again.clean
    assert again.records == repaired.records
    assert list(tmp_path.iterdir()) == [path]


def test_a_clean_file_is_not_rewritten(tmp_path, shard, records):
    path = tmp_path / "a.journal"
    path.write_bytes(b"".join(records))
    before = path.stat().st_ino
    repair_journal(path, shard)
    assert path.stat().st_ino == before


@pytest.mark.parametrize("index", [-1, 4, 1000])
def test_an_index_outside_the_shard_is_dropped(samples, shard, records, index):
    contents = parse_journal(records[0] + encode_record(samples.success(index), samples.job), shard)
    assert list(contents.outcomes) == [0]
    assert contents.dropped == 1
    assert not contents.clean


def test_an_index_that_was_rejected_is_dropped(samples, records):
    contents = parse_journal(b"".join(records), samples.shard(rejected=(1,)))
    assert list(contents.outcomes) == [0, 2]


def test_an_outcome_of_another_request_is_dropped(shard, records, custom_ids):
    contents = parse_journal(b"".join(records), shard, custom_ids | {1: "renamed"})
    assert list(contents.outcomes) == [0, 2]
    assert not contents.clean


def test_an_outcome_of_no_request_is_dropped(shard, records):
    assert list(parse_journal(b"".join(records), shard, {0: "row-0"}).outcomes) == [0]


def test_the_first_outcome_of_an_index_wins(samples, shard, records):
    data = b"".join([*records, encode_record(samples.failure(0), samples.job), records[2]])
    contents = parse_journal(data, shard)
    assert contents.outcomes[0].ok
    assert contents.dropped == 2
    assert not contents.clean


def test_an_unfitting_first_outcome_does_not_shadow_the_right_one(samples, shard, records, custom_ids):
    wrong = Record(0, "ok", Tokens(), b'{"id":"x","custom_id":"row-9","response":null}').encode()
    assert parse_journal(wrong + records[0], shard, custom_ids).outcomes[0].encode() == records[0]


def test_a_mark_of_a_newer_version_is_kept_but_is_no_outcome(tmp_path, shard, records):
    death = Record(3, "death", Tokens(), b"{}")
    path = tmp_path / "a.journal"
    path.write_bytes(records[0] + death.encode() + death.encode() + b"torn")
    contents = repair_journal(path, shard, {0: "row-0"})
    assert list(contents.outcomes) == [0]
    assert contents.tally == Tally(1, 0, 10, 0)
    assert read_journal(path, shard).records[1:] == (death, death)


def test_a_damaged_mark_is_not_taken_for_a_newer_versions(shard, records):
    contents = parse_journal(records[0].replace(b"\tok\t", b"\toj\t"), shard)
    assert contents.records == ()


@pytest.mark.parametrize("content", [b"x\tok\t0\t0\t{}", b"1\tok\t0\t{}", b"1\t\xff\t0\t0\t{}"])
def test_a_record_of_another_format_is_dropped(shard, content):
    contents = parse_journal(b"%08x\t%b\n" % (zlib.crc32(content), content), shard)
    assert contents.records == ()
    assert not contents.clean


def test_journals_lie_in_folders_of_a_thousand(tmp_path, samples):
    def path(number):
        return journal_path(tmp_path, samples.job, samples.shard(number)).relative_to(tmp_path).as_posix()

    assert path(123) == "batch_7/000/000123.journal"
    assert path(1000) == "batch_7/001/001000.journal"
    assert path(1_234_567) == "batch_7/1234/1234567.journal"


def test_rejected_lines_are_owed_no_outcome(samples):
    assert list(owed(samples.shard(number=1, rejected=(5, 6)))) == [4, 7]


def test_a_journal_that_cannot_be_read_is_a_storage_error_with_its_path(tmp_path, shard):
    (tmp_path / "a.journal").mkdir()
    with pytest.raises(StorageError, match=r"cannot read .*a\.journal: Is a directory"):
        read_journal(tmp_path / "a.journal", shard)


def test_a_repair_that_fails_leaves_the_file_as_it_was(tmp_path, shard, records):
    path = tmp_path / "a.journal"
    path.write_bytes(records[0] + b"torn")
    (tmp_path / "a.journal.partial").mkdir()
    with pytest.raises(StorageError, match="cannot write"):
        repair_journal(path, shard)
    assert path.read_bytes() == records[0] + b"torn"


def test_what_is_held_against_a_request_is_read_back_and_is_no_outcome(shard, records, custom_ids):
    grudge = Grudge(2, 12.5)
    contents = parse_journal(records[0] + encode_grudge(3, grudge), shard, custom_ids)
    assert contents.clean
    assert contents.grudges == {3: grudge}
    assert set(contents.outcomes) == {0}
    assert contents.tally == parse_journal(records[0], shard, custom_ids).tally


def test_the_last_word_about_a_request_counts(shard):
    words = [Grudge(1, 0.1), Grudge(2, 70.0)]
    contents = parse_journal(b"".join(encode_grudge(3, each) for each in words), shard)
    assert contents.grudges == {3: words[1]}
    assert len(contents.records) == 2


@pytest.mark.parametrize("first", [True, False])
def test_nothing_is_held_against_a_request_that_has_its_outcome(shard, records, first):
    death = encode_grudge(0, Grudge(1, 0.1))
    data = death + records[0] if first else records[0] + death
    assert parse_journal(data, shard).grudges == {}


@pytest.mark.parametrize("line", [b"{}", b"[]", b'{"deaths":"two","odds":1}', b"not JSON"])
def test_a_death_that_another_version_wrote_is_kept_and_holds_nothing_against_anyone(shard, line):
    record = Record(1, "death", Tokens(), line)
    contents = parse_journal(record.encode(), shard)
    assert (contents.records, contents.grudges, contents.clean) == ((record,), {}, True)


def test_a_torn_death_is_dropped_and_the_one_before_it_counts(shard):
    earlier, later = Grudge(1, 0.1), Grudge(2, 70.0)
    whole, torn = encode_grudge(3, earlier), encode_grudge(3, later)
    for length in range(1, len(torn) - 1):
        contents = parse_journal(whole + torn[:length], shard)
        assert (contents.grudges, contents.clean) == ({3: earlier}, False)
