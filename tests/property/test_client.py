"""Whatever servers do, a client's request ends, and gives back what it took."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.errors import RequestFailedError
from dispatcher.model import Answer, Break, BreakKind
from dispatcher.testing.simulation.virtual_loop import run_virtually
from dispatcher.vllm.client.constraints import GUIDED, STRUCTURED, constrains, spelled
from dispatcher.vllm.client.retry import OVERLOADS_MAX, RESENDS_MAX
from dispatcher.vllm.client.sender import Sender, UnansweredError
from dispatcher.vllm.client.servers import LeastOutstanding, parse_servers

GOOD = Answer(200, b'{"choices":[{"text":"x","finish_reason":"stop"}]}')
ENDINGS = st.one_of(
    st.just(GOOD),
    st.builds(Break, st.sampled_from(BreakKind)),
    st.builds(
        Answer,
        st.integers(200, 599),
        st.sampled_from([b"", b"{}", b'{"error":{"message":"no","type":"NotFoundError","param":"model"}}']),
        retry_after_s=st.none() | st.floats(0, 600),
    ),
)
SCRIPTS = st.lists(st.lists(ENDINGS, min_size=1, max_size=6), min_size=1, max_size=4)
ATTEMPTS_MAX = 3


class Fleet:
    """Servers that end each send as their script says, over and over."""

    def __init__(self, script, *, shy):
        urls = [f"http://s{number}:1" for number in range(len(script))]
        self.script = dict(zip(urls, script, strict=True))
        self.shy = shy
        self.sends = []
        self.servers = LeastOutstanding(parse_servers(urls, None, {}), lambda: 0.0)
        self.sender = Sender(self, self.servers, self, max_attempts=ATTEMPTS_MAX, timeout_s=None, open_max=10)

    async def roots(self, server):
        assert server.id == self.sends[-1][0]

    def forget(self, server):
        pass

    async def send(self, server, request, request_id, timeout_s):
        assert (request.body, timeout_s) == (b"{}", None)
        self.sends.append((server.id, request_id))
        endings = self.script[server.id]
        return endings[len(self.sends) % len(endings)]

    async def body(self, server):
        assert server.id in self.script
        if self.shy and len(self.sends) % 3 == 1:
            raise UnansweredError(Break(BreakKind.REFUSED))
        return b"{}"

    async def run(self):
        try:
            return await self.sender.send("/v1/completions", None, self.body)
        except RequestFailedError as error:
            return error


@settings(max_examples=150, deadline=None)
@given(SCRIPTS, st.booleans())
def test_a_request_ends_within_its_bounds_whatever_servers_do(script, shy):
    fleet = Fleet(script, shy=shy)
    result = run_virtually(fleet.run())
    assert all(standing.outstanding == 0 for standing in fleet.servers._standings.values())
    assert result.attempts >= len(fleet.sends)
    assert len(fleet.sends) <= ATTEMPTS_MAX + len(script) + OVERLOADS_MAX + RESENDS_MAX
    assert len({request_id for _, request_id in fleet.sends}) == len(fleet.sends)
    if not isinstance(result, RequestFailedError):
        assert fleet.script[result.server.id]
        assert json.loads(result.body)["choices"]


@given(
    st.dictionaries(st.sampled_from([*GUIDED, "seed", "stop"]), st.text(min_size=1)),
    st.dictionaries(st.sampled_from([*GUIDED.values()]), st.text(min_size=1)),
    st.tuples(st.just(0), st.integers(1, 40)),
)
def test_no_version_is_sent_a_spelling_that_it_ignores_and_no_constraint_is_lost(guided, structured, version):
    body = {**guided, **({STRUCTURED: structured} if structured else {})}
    found = spelled(body, version, "http://s:1", checked=False)
    assert constrains(found) == constrains(body)
    if version >= (0, 12):
        assert not found.keys() & GUIDED.keys()
    if version < (0, 11):
        assert STRUCTURED not in found

    def meant(fields):
        """The constraints by their newer names."""
        old = {GUIDED[name]: value for name, value in fields.items() if name in GUIDED}
        return old.keys() | (fields.get(STRUCTURED) or {}).keys()

    assert meant(found) == meant(body)
    assert {name: found[name] for name in ("seed", "stop") if name in found} == {
        name: body[name] for name in ("seed", "stop") if name in body
    }
