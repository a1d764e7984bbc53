"""The end of a job: two files in input order, or an error and nothing changed."""

import json
import os

import pytest

from dispatcher.errors import StateError, StorageError
from dispatcher.model import ErrorCode, Grudge, Tally, Tokens
from dispatcher.results.finalise import check_outputs_writable, drop_failed, finalise
from dispatcher.results.journal import Record, encode_grudge, encode_record, journal_path, read_journal


@pytest.fixture
def journals(tmp_path):
    return tmp_path / "journals"


@pytest.fixture
def write(journals, samples):
    """Writes a shard's journal."""

    def written(shard, *outcomes, tail=b""):
        path = journal_path(journals, samples.job, shard)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(encode_record(outcome, samples.job) for outcome in outcomes) + tail)
        return path

    return written


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out" / "output.jsonl"


@pytest.fixture
def errors(tmp_path):
    return tmp_path / "errors.jsonl"


@pytest.fixture
def run(samples, journals, output, errors):
    output.parent.mkdir()

    def finalised(*shards, **settings):
        return finalise(samples.job, shards, journals, output, errors, **settings)

    return finalised


def ids(path):
    return [json.loads(line)["custom_id"] for line in path.read_bytes().splitlines()]


def left_aside(tmp_path):
    return list(tmp_path.rglob("*.partial"))


def test_outcomes_come_out_in_input_order_and_are_counted(tmp_path, samples, write, run, output, errors):
    shards = [samples.shard(number) for number in range(2)]
    write(shards[0], samples.success(2), samples.success(0), samples.failure(3), samples.success(1))
    failed = samples.failure(5, ErrorCode.POISON)
    write(shards[1], samples.success(7), failed, samples.success(4), samples.failure(6))
    tally = run(*shards)
    assert ids(output) == ["row-0", "row-1", "row-2", "row-4", "row-7"]
    assert ids(errors) == ["row-3", "row-5", "row-6"]
    assert tally == Tally(5, 3, 50, 14, {"poison": 1, "timeout": 2})
    assert output.read_bytes().endswith(b"\n")
    assert left_aside(tmp_path) == []


def test_without_failures_there_is_no_error_file_not_even_an_old_one(samples, write, run, output, errors):
    errors.write_bytes(b"of an earlier run\n")
    write(samples.shard(), *map(samples.success, range(4)))
    run(samples.shard())
    assert len(ids(output)) == 4
    assert not errors.exists()


def test_without_successes_the_output_file_is_empty(samples, write, run, output, errors):
    write(samples.shard(), *map(samples.failure, range(4)))
    run(samples.shard())
    assert output.read_bytes() == b""
    assert len(ids(errors)) == 4


def test_a_job_without_requests_has_an_empty_output(run, output, errors):
    assert run() == Tally()
    assert output.read_bytes() == b""
    assert not errors.exists()


def test_rejected_lines_have_no_outcome(samples, write, run, output):
    shard = samples.shard(rejected=(1, 2))
    write(shard, samples.success(3), samples.success(0))
    run(shard, samples.shard(1, rejected=(4, 5, 6, 7)))
    assert ids(output) == ["row-0", "row-3"]


def test_finalising_again_gives_the_same_files(samples, write, run, output, errors):
    write(samples.shard(), *map(samples.success, (2, 0, 1)), samples.failure(3))
    contents = []
    for _ in range(2):
        run(samples.shard())
        contents.append((output.read_bytes(), errors.read_bytes()))
    assert contents[0] == contents[1]


def test_what_a_crash_left_aside_is_started_afresh(tmp_path, samples, write, run, output, errors):
    write(samples.shard(), *map(samples.success, (2, 0, 1)), samples.failure(3))
    for path in (output, errors):
        path.with_name(path.name + ".partial").write_bytes(b"x" * 100_000)
    run(samples.shard())
    assert ids(output) == ["row-0", "row-1", "row-2"]
    assert ids(errors) == ["row-3"]
    assert left_aside(tmp_path) == []


@pytest.mark.parametrize("tail", [b"", b"torn", bytes(4096)])
def test_a_missing_outcome_is_named_and_changes_nothing(tmp_path, samples, write, run, output, errors, tail):
    output.write_bytes(b"old\n")
    errors.write_bytes(b"old\n")
    write(samples.shard(), *map(samples.success, range(4)))
    write(samples.shard(1), samples.success(4), samples.success(7), tail=tail)
    with pytest.raises(StateError, match=r"shard 1 is not finished: .* lacks 2 of 4 .* request 5;"):
        run(samples.shard(), samples.shard(1))
    assert output.read_bytes() == errors.read_bytes() == b"old\n"
    assert left_aside(tmp_path) == []


def test_a_lost_journal_is_a_missing_outcome(samples, run):
    with pytest.raises(StateError, match="lacks 4 of 4"):
        run(samples.shard())


def test_a_link_stays_a_link(tmp_path, samples, write, run, output):
    target = tmp_path / "elsewhere.jsonl"
    output.symlink_to(target)
    write(samples.shard(), *map(samples.success, range(4)))
    run(samples.shard())
    assert output.is_symlink()
    assert len(ids(target)) == 4


def test_a_folder_that_is_missing_is_found_before_the_job_runs(tmp_path, errors):
    with pytest.raises(StorageError, match=r"there is no directory .*/none; create it first"):
        check_outputs_writable(tmp_path / "none" / "output.jsonl", errors)


@pytest.mark.parametrize("name", ["output.jsonl", "link", "output.jsonl.partial"])
def test_the_two_files_cannot_overwrite_each_other(tmp_path, name):
    output = tmp_path / "output.jsonl"
    (tmp_path / "link").symlink_to(output)
    for first, second in ((output, tmp_path / name), (tmp_path / name, output)):
        with pytest.raises(StorageError, match="would overwrite each other"):
            check_outputs_writable(first, second)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_regular_file_is_not_replaced(output, errors, make):
    output.parent.mkdir()
    make(output)
    with pytest.raises(StorageError, match="it exists, and is not a regular file"):
        check_outputs_writable(output, errors)


def test_a_device_is_not_replaced(tmp_path):
    with pytest.raises(StorageError, match="/dev/null: it exists, and is not a regular file"):
        check_outputs_writable(tmp_path / "output.jsonl", type(tmp_path)("/dev/null"))


def test_good_places_are_left_untouched_by_the_check(tmp_path, errors):
    errors.write_bytes(b"old\n")
    check_outputs_writable(tmp_path / "output.jsonl", errors)
    assert [path.name for path in tmp_path.iterdir()] == ["errors.jsonl"]
    assert errors.read_bytes() == b"old\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_closed_to_us_is_found_before_the_job_runs(output, errors):
    output.parent.mkdir(mode=0o500)
    with pytest.raises(StorageError, match="no permission"):
        check_outputs_writable(output, errors)


def test_a_full_disk_is_named_with_advice_and_nothing_is_left_aside(
    tmp_path, tiny_filesystem, samples, write, journals, errors
):
    output = tiny_filesystem / "output.jsonl"
    output.write_bytes(b"old\n")
    write(samples.shard(), *(samples.success(index, b'"%b"' % (b"x" * 30_000)) for index in range(4)))
    with pytest.raises(StorageError, match=r"output\.jsonl: No space left on device; free some space"):
        finalise(samples.job, [samples.shard()], journals, output, errors)
    assert output.read_bytes() == b"old\n"
    assert list(tiny_filesystem.iterdir()) == [output]
    assert left_aside(tmp_path) == []


def test_failed_outcomes_are_dropped_for_another_try(samples, write, journals):
    shard = samples.shard()
    path = write(shard, samples.success(2), samples.failure(0), samples.success(1), samples.failure(3))
    assert drop_failed(samples.job, shard, journals) == 2
    contents = read_journal(path, shard)
    assert contents.clean
    assert list(contents.outcomes) == [2, 1]
    assert drop_failed(samples.job, shard, journals) == 0


def test_dropping_failures_keeps_what_is_no_outcome_of_theirs(samples, write, journals):
    shard = samples.shard()
    kept = [Record(3, "death", Tokens(), b"{}"), Record(0, "of a newer version", Tokens(), b"{}")]
    path = write(shard, samples.failure(0), tail=b"".join(record.encode() for record in kept))
    assert drop_failed(samples.job, shard, journals) == 1
    assert read_journal(path, shard).records == tuple(kept)


def test_a_failed_request_that_is_tried_again_has_a_fresh_start(samples, write, journals):
    shard, grudge = samples.shard(), Grudge(2, 40.0)
    deaths = b"".join(encode_grudge(index, grudge) for index in (0, 3))
    path = write(shard, samples.failure(0, ErrorCode.POISON), tail=deaths)
    drop_failed(samples.job, shard, journals)
    assert read_journal(path, shard).grudges == {3: grudge}


def test_a_journal_without_failures_is_not_rewritten(samples, write, journals):
    path = write(samples.shard(), samples.success(0))
    before = path.stat().st_ino
    assert drop_failed(samples.job, samples.shard(), journals) == 0
    assert path.stat().st_ino == before


def test_a_shard_without_a_journal_has_no_failures_to_drop(samples, journals):
    assert drop_failed(samples.job, samples.shard(), journals) == 0
