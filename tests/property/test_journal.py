"""Whatever happens to a journal's bytes: no exception, no invented outcome, and what was whole stays."""

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.model import ErrorCode, Grudge, Job, JobId, Outcome, Shard, Tokens
from dispatcher.results.journal import encode_grudge, encode_record, parse_journal

JOB = Job(JobId("b"), provenance=False)
SHARD = Shard(0, 0, 8, 0, 0)
CUSTOM_IDS = {index: f"row-{index}" for index in range(8)}

bodies = st.one_of(
    st.none(),
    st.text(max_size=20).map(
        lambda text: b'{"t":"%b"}' % text.encode("utf-8", "replace").replace(b"\n", b"")
    ),
)
outcomes = st.builds(
    lambda index, code, body, tokens: Outcome(
        index, f"row-{index}", code, "" if code is None else "why", 200, None, body, Tokens(tokens, tokens)
    ),
    st.integers(0, 7),
    st.sampled_from([None, None, *ErrorCode]),
    bodies,
    st.integers(0, 2**40),
)
grudges = st.builds(Grudge, st.integers(1, 100), st.floats(0, 1e300))
deaths = st.lists(st.builds(encode_grudge, st.integers(0, 7), grudges), max_size=3)
journals = st.builds(
    lambda made, dead: [*dead, *(encode_record(outcome, JOB) for outcome in made)],
    st.lists(outcomes, max_size=8, unique_by=lambda outcome: outcome.index),
    deaths,
).flatmap(st.permutations)


def parse(data):
    return parse_journal(data, SHARD, CUSTOM_IDS)


def kept(data):
    """The kept records' bytes; on the way, that what is kept makes a clean journal of the same records."""
    contents = parse(data)
    repaired = b"".join(record.encode() for record in contents.records)
    assert len(repaired) == contents.length
    again = parse(repaired)
    assert again.clean
    assert again.dropped == 0
    assert again.records == contents.records
    assert contents.clean == (repaired == data)
    return [record.encode() for record in contents.records]


@given(journals)
def test_what_is_written_is_read(records):
    assert parse(b"".join(records)).clean
    assert kept(b"".join(records)) == records


@given(journals, st.data())
def test_a_cut_anywhere_costs_the_cut_record_only(records, data):
    whole = b"".join(records)
    cut = data.draw(st.integers(0, len(whole)))
    ends = [len(b"".join(records[:count])) for count in range(1, len(records) + 1)]
    assert kept(whole[:cut]) == [record for record, end in zip(records, ends, strict=True) if cut >= end - 1]


@given(journals, st.binary(max_size=60))
def test_garbage_behind_costs_nothing(records, garbage):
    assert kept(b"".join(records) + garbage) == records


@given(journals, st.binary(min_size=1, max_size=60), st.data())
def test_garbage_in_between_costs_the_record_it_runs_into_at_most(records, garbage, data):
    at = data.draw(st.integers(0, len(records)))
    survivors = kept(b"".join(records[:at]) + garbage + b"".join(records[at:]))
    assert survivors[:at] == records[:at]
    assert survivors[at:] in (records[at:], records[at + 1 :])


@given(journals.filter(bool), st.data())
def test_a_flipped_bit_costs_its_record_and_at_most_the_next(records, data):
    whole = bytearray(b"".join(records))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    ends = [len(b"".join(records[:count])) for count in range(1, len(records) + 1)]
    damaged = next(number for number, end in enumerate(ends) if at < end)
    survivors = kept(bytes(whole))
    assert survivors[:damaged] == records[:damaged]
    on_its_newline = at == ends[damaged] - 1
    after = damaged + 2 if on_its_newline and damaged + 1 < len(records) else damaged + 1
    rescued = records[damaged : damaged + 1] if on_its_newline and damaged + 1 == len(records) else []
    assert survivors[damaged:] in (records[after:], rescued)


@given(journals.filter(bool), st.data())
def test_zeroed_pages_invent_nothing(records, data):
    whole = b"".join(records)
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    survivors = kept(whole[:start] + bytes(stop - start) + whole[stop:])
    assert all(record in records for record in survivors)


@given(st.lists(st.one_of(journals.map(b"".join), st.binary(max_size=40)), max_size=5).map(b"".join))
def test_each_index_has_one_outcome_whatever_the_bytes(data):
    contents = parse(data)
    indexes = [record.index for record in contents.records if not record.is_death]
    assert len(indexes) == len(set(indexes))
    assert set(indexes) == set(contents.outcomes)
    assert not contents.grudges.keys() & contents.outcomes.keys()
    assert len(kept(data)) == len(contents.records)
