from dispatcher.dispatch.pace import Pace


def ended(pace, count):
    for _ in range(count):
        pace.ended()


def test_nothing_is_known_of_the_pace_before_a_whole_second_has_passed():
    pace = Pace(100.0)
    ended(pace, 50)
    pace.look(100.9)
    assert pace.ahead == 0


def test_the_work_to_keep_ahead_is_what_two_seconds_take():
    pace = Pace(100.0)
    ended(pace, 500)
    pace.look(101.25)
    assert pace.ahead == 800


def test_each_look_speaks_of_the_time_since_the_last():
    pace = Pace(100.0)
    ended(pace, 1000)
    pace.look(101.0)
    ended(pace, 10)
    pace.look(101.5)
    assert pace.ahead == 2000
    pace.look(102.0)
    assert pace.ahead == 20
    pace.look(103.0)
    assert pace.ahead == 0
