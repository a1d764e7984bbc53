import random

import pytest

from dispatcher.testing.engine import Engine, EngineLoad, EngineSettings

# Powers of two, so that every time below is exact.
SETTINGS = EngineSettings(
    max_sequences=4,
    prefill_tokens_per_s=64.0,
    decode_step_s=0.25,
    decode_step_growth_s=0.125,
    kv_tokens=1024,
    kv_reserve=0.0,
)


def run_out(engine, limit=10_000):
    """Every finished request with its time."""
    finished = []
    for _ in range(limit):
        at = engine.next_event_at()
        if at is None:
            return finished
        finished += [(key, at) for key in engine.advance(at)]
    raise AssertionError("the engine does not come to an end")


def test_one_sequence_is_prefilled_then_decoded():
    engine = Engine(SETTINGS)
    engine.submit("a", prompt_tokens=32, output_tokens=4, now=1.0)
    assert engine.next_event_at() == 1.5
    assert engine.advance(2.49) == []
    assert run_out(engine) == [("a", 2.5)]
    assert engine.load() == EngineLoad(prompt_tokens=32, generation_tokens=4, steps=4)


def test_a_request_without_output_ends_with_its_prefill():
    engine = Engine(SETTINGS)
    engine.submit("a", 64, 0, 0.0)
    assert run_out(engine) == [("a", 1.0)]
    assert engine.load().kv_usage == 0.0


def test_prefills_go_one_after_the_other():
    engine = Engine(SETTINGS)
    for key in "abc":
        engine.submit(key, 64, 0, 0.0)
    assert run_out(engine) == [("a", 1.0), ("b", 2.0), ("c", 3.0)]


def test_a_step_takes_longer_the_more_sequences_share_it():
    engine = Engine(SETTINGS)
    for key in "abc":
        engine.submit(key, 0, 8, 0.0)
    assert run_out(engine) == [("a", 4.0), ("b", 4.0), ("c", 4.0)]


def test_the_rate_changes_when_the_batch_does():
    engine = Engine(SETTINGS)
    engine.submit("short", 0, 2, 0.0)
    engine.submit("long", 0, 4, 0.0)
    # two steps together at 0.375 s, two alone at 0.25 s
    assert run_out(engine) == [("short", 0.75), ("long", 1.25)]


def test_a_sequence_without_a_slot_waits_in_order():
    engine = Engine(SETTINGS)
    for key in range(6):
        engine.submit(key, 0, 1 + key, 0.0)
    engine.advance(0.0)
    assert (engine.load().running, engine.load().waiting) == (4, 2)
    assert [key for key, _ in run_out(engine)] == [0, 1, 2, 3, 4, 5]


def test_a_sequence_without_cache_waits_and_holds_up_those_behind_it():
    engine = Engine(SETTINGS)
    engine.submit("a", 600, 1, 0.0)
    engine.submit("b", 600, 1, 0.0)
    engine.submit("c", 1, 1, 0.0)
    assert (engine.load().running, engine.load().waiting) == (1, 2)
    assert [key for key, _ in run_out(engine)] == ["a", "b", "c"]


def test_a_full_cache_preempts_the_youngest_and_everyone_still_finishes():
    engine = Engine(EngineSettings(4, 64.0, 0.25, 0.0, kv_tokens=16, kv_reserve=0.1))
    engine.submit("old", 4, 10, 0.0)
    engine.submit("young", 4, 10, 0.0)
    finished = run_out(engine)
    assert [key for key, _ in finished] == ["old", "young"]
    load = engine.load()
    assert load.preemptions == 1
    assert load.generation_tokens == 20
    assert load.prompt_tokens == 8
    assert load.kv_usage == pytest.approx(0.0)


def test_a_preempted_sequence_does_not_return_into_the_place_it_left():
    engine = Engine(EngineSettings(4, 64.0, 0.25, 0.0, kv_tokens=16, kv_reserve=0.0))
    for key in "abcd":
        engine.submit(key, 2, 14, 0.0)
    assert sorted(key for key, _ in run_out(engine)) == ["a", "b", "c", "d"]


def test_cache_use_grows_with_every_token():
    engine = Engine(SETTINGS)
    engine.submit("a", 64, 100, 0.0)
    engine.advance(1.0)
    assert engine.load().kv_usage == 64 / 1024
    engine.advance(3.0)
    assert engine.load().kv_usage == 72 / 1024
    assert engine.load().generation_tokens == 8


@pytest.mark.parametrize("at", [0.0, 0.5, 1.25, 3.0])
def test_an_aborted_sequence_gives_its_slot_and_cache_back(at):
    engine = Engine(SETTINGS)
    engine.submit("a", 64, 100, 0.0)
    engine.abort("a", at)
    assert engine.next_event_at() is None
    assert (engine.load().running, engine.load().kv_usage) == (0, 0.0)


def test_an_abort_lets_the_next_one_in():
    engine = Engine(SETTINGS)
    for key in range(5):
        engine.submit(key, 64, 64, 0.0)
    engine.abort(0, 0.5)
    assert (engine.load().running, engine.load().waiting) == (4, 0)
    engine.advance(1.5)
    assert engine.load().prompt_tokens == 64


def test_a_completion_is_reported_even_if_a_submit_passed_it():
    engine = Engine(SETTINGS)
    engine.submit("a", 0, 4, 0.0)
    engine.submit("b", 0, 4, 1.5)
    assert engine.next_event_at() == 1.5
    assert engine.advance(1.5) == ["a"]


def test_a_frozen_engine_makes_no_progress_and_goes_on_after_the_thaw():
    engine = Engine(SETTINGS)
    engine.submit("a", 64, 4, 0.0)
    engine.freeze(0.5)
    assert engine.next_event_at() is None
    assert engine.advance(100.0) == []
    engine.thaw(100.5)
    assert run_out(engine) == [("a", 102.0)]


def test_what_can_never_fit_is_refused():
    with pytest.raises(ValueError, match="never fit"):
        Engine(SETTINGS).submit("a", 1000, 25, 0.0)


def test_a_key_can_be_in_the_engine_once():
    engine = Engine(SETTINGS)
    engine.submit("a", 1, 1, 0.0)
    with pytest.raises(ValueError, match="already"):
        engine.submit("a", 1, 1, 0.0)


@pytest.mark.parametrize("seed", range(8))
def test_any_mix_ends_with_every_request_finished_and_all_tokens_counted(seed):
    random_source = random.Random(seed)
    engine = Engine(EngineSettings(8, 1000.0, 0.01, 0.001, kv_tokens=300))
    sizes = {key: (random_source.randint(0, 100), random_source.randint(0, 100)) for key in range(200)}
    now, finished, aborted = 0.0, [], set()
    for key, (prompt, output) in sizes.items():
        now += random_source.expovariate(5)
        engine.submit(key, prompt, output, now)
        if random_source.random() < 0.1:
            engine.abort(key, now)
            aborted.add(key)
        finished += engine.advance(now)
        assert engine.load().running <= 8
        assert -1e-9 <= engine.load().kv_usage <= 1 + 1e-9
    finished += [key for key, _ in run_out(engine)]
    assert sorted(finished) == sorted(sizes.keys() - aborted)
    load = engine.load()
    assert (load.running, load.waiting) == (0, 0)
    assert load.kv_usage == pytest.approx(0.0, abs=1e-9)
    assert load.generation_tokens >= sum(sizes[key][1] for key in finished)
    assert load.preemptions > 0
