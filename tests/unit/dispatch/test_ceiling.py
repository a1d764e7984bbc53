from dispatcher.dispatch.ceiling import REGROWTH_S, Ceiling


def ceiling_with(most, open_):
    ceiling = Ceiling(most)
    ceiling.open = open_
    return ceiling


def test_a_fault_of_this_machine_lowers_the_ceiling_below_what_is_open():
    ceiling = ceiling_with(1000, open_=100)
    ceiling.local_fault(5.0)
    assert ceiling.value == 80


def test_many_faults_within_a_second_lower_it_once():
    ceiling = ceiling_with(1000, open_=100)
    for _ in range(50):
        ceiling.local_fault(5.0)
    ceiling.open = 70
    ceiling.local_fault(5.9)
    assert ceiling.value == 80
    ceiling.local_fault(6.0)
    assert ceiling.value == 56


def test_it_never_rises_by_a_fault_nor_sinks_below_one():
    ceiling = ceiling_with(10, open_=1000)
    ceiling.local_fault(5.0)
    assert ceiling.value == 8
    ceiling.open = 0
    for second in range(100):
        ceiling.local_fault(10.0 + second)
    assert ceiling.value == 1


def test_it_grows_back_by_a_tenth_every_ten_seconds_and_no_further_than_it_was():
    ceiling = ceiling_with(100, open_=100)
    ceiling.local_fault(0.0)
    seen = []
    for second in range(60):
        ceiling.tick(float(second))
        seen.append(ceiling.value)
    assert seen[:: int(REGROWTH_S)] == [80, 88, 96, 100, 100, 100]


def test_it_grows_back_from_one():
    ceiling = Ceiling(3)
    ceiling.local_fault(0.0)
    for second in range(21):
        ceiling.tick(float(second))
    assert ceiling.value == 3


def test_an_untouched_ceiling_stands():
    ceiling = Ceiling(7)
    ceiling.tick(1e9)
    assert ceiling.value == 7
