"""What servers say of themselves: asked once, and put together."""

import asyncio
import json

import pytest

from dispatcher.model import Answer, Break, BreakKind, ListedModel, ServerId, ServerSpec
from dispatcher.vllm.client.facts import Facts, Load, first_model, of_each, oldest, together, union
from dispatcher.vllm.client.sender import UnansweredError

SERVER = ServerSpec(ServerId("http://a:1"), "http://a:1")


class Pages:
    """A prober that answers one page, and counts how often it was asked."""

    def __init__(self, ending):
        self.ending = ending
        self.asked = 0

    async def page(self, server, path):
        assert server == SERVER
        assert path in ("/version", "/v1/models")
        self.asked += 1
        await asyncio.sleep(0)
        return self.ending


def version_page(text):
    return Answer(200, json.dumps({"version": text}).encode())


async def test_a_version_is_asked_once_however_many_want_it():
    pages = Pages(version_page("0.32.0"))
    facts = Facts(pages, None)
    found = await asyncio.gather(*(facts.understands(SERVER) for _ in range(20)))
    assert set(found) == {(0, 32)}
    assert pages.asked == 1


async def test_a_server_that_may_have_been_restarted_is_asked_again():
    pages = Pages(version_page("0.11.0"))
    facts = Facts(pages, None)
    assert await facts.version(SERVER) == "0.11.0"
    pages.ending = version_page("0.32.0")
    assert await facts.version(SERVER) == "0.11.0"
    facts.forget(SERVER)
    assert await facts.version(SERVER) == "0.32.0"


async def test_no_answer_is_not_kept_and_no_version_is():
    pages = Pages(Break(BreakKind.REFUSED))
    facts = Facts(pages, None)
    assert await facts.version(SERVER) is None
    with pytest.raises(UnansweredError) as caught:
        await facts.understands(SERVER)
    assert caught.value.ending == pages.ending
    assert pages.asked == 2
    pages.ending = Answer(404, b"")
    assert [await facts.version(SERVER) for _ in range(3)] == [None] * 3
    assert await facts.understands(SERVER) is None
    assert pages.asked == 3


async def test_a_list_of_models_is_kept_until_the_server_may_have_been_restarted():
    pages = Pages(Answer(200, b'{"data":[{"id":"a","root":"org/a"},{"id":"b"}]}'))
    facts = Facts(pages, None)
    assert [await facts.roots(SERVER) for _ in range(2)] == [{"a": "org/a", "b": "b"}] * 2
    assert pages.asked == 1
    facts.forget(SERVER)
    pages.ending = Answer(404, b"")
    assert [await facts.roots(SERVER) for _ in range(2)] == [None, None]
    assert pages.asked == 3


async def test_the_users_word_on_the_version_wins():
    pages = Pages(version_page("0.32.0"))
    assert await Facts(pages, "0.9.0").understands(SERVER) == (0, 9)
    assert pages.asked == 0


async def test_answers_of_all_servers_come_in_the_servers_order():
    running, peak = 0, 0

    async def ask(number):
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.001 * (number % 3))
        running -= 1
        return number

    assert await of_each(range(200), ask) == list(range(200))
    assert peak == 64


def test_the_first_model_of_the_first_server_that_lists_any_is_asked_for():
    base, adapter, other = (ListedModel(name, name) for name in ("base", "adapter", "other"))
    assert first_model([None, [], [base, adapter], [other]]) == "base"
    assert first_model([None, []]) is None


def test_models_of_all_servers_are_each_listed_once_as_the_first_has_them():
    first, again = ListedModel("a", "org/a", max_model_len=10), ListedModel("a", "org/a", max_model_len=20)
    other = ListedModel("b", "b")
    assert union([[first], None, [again, other]]) == [first, other]


def test_loads_add_up_and_what_nobody_says_stays_unknown():
    assert together([Load(1, 2, 0.5), Load(3, None, 0.25), Load()]) == Load(4, 2, 0.375)
    assert together([Load()]) == Load(None, None, None)


def test_the_oldest_version_is_that_of_all_only_if_all_are_known():
    assert oldest(["0.32.0", "0.9.1", "0.10.0"]) == "0.9.1"
    assert oldest(["0.32.0", None]) is None
    assert oldest(["0.12.0rc1"]) == "0.12.0rc1"
