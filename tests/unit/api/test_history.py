from dispatcher.api.history import History, Point


def test_a_step_holds_what_was_counted_in_it_and_is_told_when_it_is_whole():
    history = History(100.0)
    for second in range(1, 10):
        history.add(1, 5, 100.0 + second)
    assert (history.points(109.0), history.latest()) == ([], None)
    history.add(1, 5, 110.0)
    assert history.points(110.0) == [Point(100.0, 9, 45)]
    assert history.latest() == Point(100.0, 9, 45)


def test_nothing_is_lost_at_the_end_of_a_step():
    history = History(0.0)
    for second in range(1, 101):
        history.add(3, 7, float(second))
    history.add(0, 0, 110.0)
    points = history.points(110.0)
    assert sum(point.rows for point in points) == 300
    assert sum(point.tokens for point in points) == 700


def test_steps_in_which_the_process_stood_still_are_missing():
    history = History(0.0)
    history.add(4, 4, 5.0)
    history.add(6, 6, 47.0)
    history.add(0, 0, 51.0)
    assert history.points(51.0) == [Point(0.0, 4, 4), Point(40.0, 6, 6)]


def test_an_hour_is_kept_and_no_more():
    history = History(0.0)
    for second in range(1, 8001):
        history.add(1, 1, float(second))
    points = history.points(8000.0)
    assert len(points) == 360
    assert (points[0].at, points[-1].at) == (4400.0, 7990.0)


def test_what_is_older_than_an_hour_is_not_told_even_where_nothing_came_after_it():
    history = History(0.0)
    history.add(1, 1, 5.0)
    history.add(1, 1, 3605.0)
    assert history.points(3605.0) == [Point(0.0, 1, 1)]
    assert history.points(3611.0) == []
