from dispatcher.dispatch.quotas import Quotas
from dispatcher.model import Job, JobId

LIMITED = Job(JobId("limited"), limit=3)
FREE = Job(JobId("free"))


def test_a_job_is_full_at_its_limit_and_not_below():
    quotas = Quotas()
    quotas.admitted(LIMITED, 10)
    for _ in range(3):
        assert LIMITED.id not in quotas.full
        quotas.took(LIMITED.id)
    assert LIMITED.id in quotas.full
    quotas.gave_back(LIMITED.id)
    assert LIMITED.id not in quotas.full


def test_of_a_limited_job_twice_its_limit_is_plenty_and_more_is_surplus():
    quotas = Quotas()
    quotas.admitted(LIMITED, 5)
    assert (quotas.in_plenty, quotas.surplus) == (frozenset(), 0)
    quotas.admitted(LIMITED, 5)
    assert (quotas.in_plenty, quotas.surplus) == ({LIMITED.id}, 4)
    quotas.ended(LIMITED.id, 5)
    assert (quotas.in_plenty, quotas.surplus) == (frozenset(), 0)


def test_a_job_without_a_limit_is_never_full_nor_in_plenty():
    quotas = Quotas()
    quotas.admitted(FREE, 10_000)
    for _ in range(10_000):
        quotas.took(FREE.id)
    assert (quotas.full, quotas.in_plenty, quotas.surplus) == (set(), frozenset(), 0)


def test_a_job_that_is_done_with_is_forgotten():
    quotas = Quotas()
    quotas.admitted(LIMITED, 3)
    for _ in range(3):
        quotas.took(LIMITED.id)
    for _ in range(3):
        quotas.gave_back(LIMITED.id)
        quotas.ended(LIMITED.id)
    assert (quotas.full, quotas.in_plenty) == (set(), frozenset())
    quotas.admitted(Job(LIMITED.id, limit=1), 1)
    quotas.took(LIMITED.id)
    assert LIMITED.id in quotas.full


def test_a_limit_that_is_taken_away_holds_no_more():
    quotas = Quotas()
    quotas.admitted(Job(JobId("a"), limit=1), 5)
    quotas.took(JobId("a"))
    assert quotas.full == {"a"}
    quotas.change(JobId("a"), None, held=5, in_flight=1)
    assert (quotas.full, quotas.in_plenty, quotas.surplus) == (set(), frozenset(), 0)


def test_a_limit_that_is_new_holds_for_what_is_in_hand_already():
    quotas = Quotas()
    quotas.change(JobId("a"), 2, held=5, in_flight=3)
    assert (quotas.full, quotas.in_plenty, quotas.surplus) == ({"a"}, {"a"}, 1)
    quotas.admitted(Job(JobId("a")), 4)  # a lease that was taken before
    assert quotas.surplus == 5
    for _ in range(2):
        quotas.gave_back(JobId("a"))
    assert quotas.full == set()
