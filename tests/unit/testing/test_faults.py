import msgspec
import pytest

from dispatcher.testing.faults import ANY, Arrival, Die, Drop, Fault, FaultScript, Hang, Match, Reset, Slow


def arrival(*, route="/v1/completions", body=b"{}", reused=False, in_flight=0):
    return Arrival(route, body, reused, in_flight)


def strikes(script, count, **kind):
    return [script.decide(arrival(**kind))[1] is not None for _ in range(count)]


def test_without_faults_nothing_happens():
    assert FaultScript().decide(arrival()) == (0.0, None)


def test_delays_add_up_and_the_first_of_the_others_wins():
    script = FaultScript()
    script.inject(Slow(1))
    script.inject(Hang())
    later = script.inject(Reset(), times=1)
    script.inject(Slow(2))
    assert script.decide(arrival()) == (3.0, Hang())
    assert later.fired == 0


def test_a_fault_fires_as_often_as_it_is_told():
    script = FaultScript()
    injection = script.inject(Reset(), times=2)
    assert strikes(script, 4) == [True, True, False, False]
    assert (injection.seen, injection.fired) == (4, 2)


def test_a_fault_can_let_requests_through_first_and_stop_after_some():
    script = FaultScript()
    script.inject(Reset(), Match(after=2, first=3))
    assert strikes(script, 7) == [False, False, True, True, True, False, False]


def test_only_matching_requests_count():
    script = FaultScript()
    script.inject(Reset(), Match(text="row-7", after=1))
    assert strikes(script, 3, body=b"row-8") == [False] * 3
    assert strikes(script, 2, body=b"a row-7 b") == [False, True]


@pytest.mark.parametrize(
    ("match", "kind"),
    [
        (Match(route="/health"), {"route": "/health"}),
        (Match(reused=True), {"reused": True}),
        (Match(in_flight_min=8), {"in_flight": 8}),
        (Match(text="é"), {"body": '"é"'.encode()}),
    ],
)
def test_each_condition_decides_alone(match, kind):
    script = FaultScript()
    script.inject(Reset(), match)
    assert strikes(script, 1) == [False]
    assert strikes(script, 1, **kind) == [True]


def test_by_default_only_posted_routes_meet_faults():
    script = FaultScript()
    script.inject(Reset(), ANY)
    assert strikes(script, 1, route="/metrics") == [False]
    assert strikes(script, 1, route="/tokenize") == [True]


def test_a_probability_is_kept_and_repeats_from_its_seed():
    def pattern(seed):
        script = FaultScript()
        script.inject(Drop(), Match(probability=0.3, seed=seed))
        return strikes(script, 1000)

    assert 250 < sum(pattern(1)) < 350
    assert pattern(1) == pattern(1) != pattern(2)


def test_withdrawn_and_cleared_faults_are_over():
    script = FaultScript()
    first = script.inject(Reset())
    assert script.withdraw(first.id)
    assert not script.withdraw(first.id)
    script.inject(Hang())
    script.clear()
    assert script.decide(arrival()) == (0.0, None)


def test_faults_travel_as_json():
    assert msgspec.json.decode(b'{"kind": "die", "seconds": null}', type=Fault) == Die(seconds=None)
    assert msgspec.json.decode(msgspec.json.encode(Slow(2.5)), type=Fault) == Slow(2.5)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"kind": "slow", "second": 2}', type=Fault)
