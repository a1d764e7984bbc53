from dispatcher.dispatch.progress import RATE_WINDOW_S, Progress
from dispatcher.model import ErrorCode, Provenance, Tally, Tokens


def outcomes(make, count, *, server="s", code=None):
    made = Provenance(server, "m", None, 1, 1.0)
    return [make.outcome(index, code, tokens=Tokens(1, 10), provenance=made) for index in range(count)]


def test_outcomes_are_counted_with_their_servers(make):
    progress = Progress(0.0)
    progress.recorded(outcomes(make, 3))
    progress.recorded(outcomes(make, 2, server="t"))
    progress.recorded(outcomes(make, 4, code=ErrorCode.TIMEOUT))
    assert (progress.tally.succeeded, progress.tally.failed) == (5, 4)
    assert progress.tally.completion_tokens == 90
    assert progress.by_server == {"s": 3, "t": 2}


def test_what_was_found_in_journals_is_part_of_the_total_only(make):
    progress = Progress(0.0)
    progress.replayed(Tally(succeeded=7, failed=1, errors={"timeout": 1}))
    progress.recorded(outcomes(make, 2))
    assert progress.tally.succeeded == 2
    assert (progress.total.succeeded, progress.total.failed) == (9, 1)


def test_a_lost_shard_that_comes_back_is_not_counted_twice(make):
    progress = Progress(0.0)
    progress.recorded([*outcomes(make, 3), *outcomes(make, 1, code=ErrorCode.TIMEOUT)])
    shard = progress.tally
    progress.lost(shard)
    assert (progress.total.succeeded, progress.total.failed, progress.total.completion_tokens) == (0, 0, 0)
    progress.replayed(shard)
    assert progress.total == shard
    assert progress.tally == shard


def test_rates_are_over_the_time_since_the_start_at_first(make):
    progress = Progress(100.0)
    progress.recorded(outcomes(make, 20))
    assert progress.rates(110.0) == (2.0, 20.0)


def test_rates_are_over_the_last_minute_later(make):
    progress = Progress(0.0)
    for second in range(600):
        progress.sample(float(second))
        progress.recorded(outcomes(make, 5 if second < 300 else 1))
    rows, tokens = progress.rates(600.0)
    assert 0.95 <= rows <= 1.05
    assert 9.5 <= tokens <= 10.5


def test_samples_are_bounded_by_the_window():
    progress = Progress(0.0)
    for quarter in range(10_000):
        progress.sample(quarter / 4)
    assert len(progress._samples) <= 4 * RATE_WINDOW_S + 2


def test_the_rate_at_the_very_start_is_no_division_by_zero():
    assert Progress(5.0).rates(5.0) == (0.0, 0.0)
