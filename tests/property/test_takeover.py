"""One shard, several nodes, one store: whatever is killed, whatever disk is lost, and whoever writes late."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dispatcher.errors import LeaseLostError, MissingError, TakenError
from dispatcher.model import ErrorCode, Job, JobId, Lease, Outcome, Shard, Tokens
from dispatcher.ports import Stored
from dispatcher.results.checkpoints import Checkpoints
from dispatcher.results.copies import Copies
from dispatcher.results.journal import encode_record, parse_journal

JOB, SHARD = Job(JobId("batch_1")), Shard(0, 0, 12, 0, 0, ())
NODES = st.sampled_from(["a", "b", "c"])


class MemoryStore:
    """Puts with conditions, and an answer that may be lost."""

    def __init__(self):
        self.objects, self.puts, self.unanswered = {}, 0, False

    async def put(self, key, content, replaces=None):
        if (self.objects[key][1] if key in self.objects else None) != replaces:
            raise TakenError(key)
        self.puts += 1
        self.objects[key] = (content, str(self.puts))
        if self.unanswered:
            self.unanswered = False
            raise TimeoutError
        return str(self.puts)

    async def read(self, key):
        if key not in self.objects:
            raise MissingError(key)
        return self.objects[key][0]

    async def find(self, key):
        found = self.objects.get(key)
        return None if found is None else Stored(key, len(found[0]), 0.0, found[1])

    async def list(self, folder):
        for key in sorted(self.objects):
            if key.startswith(f"{folder}/"):
                yield Stored(key, 0, 0.0, "")

    async def delete(self, keys):
        for key in keys:
            self.objects.pop(key, None)


def done(coroutine):
    """The result of what never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


class Takeover(RuleBasedStateMachine):
    """What the recorder does, step by step, so that anything may come in between.

    Every outcome has a number of its own, which stands in its tokens.
    """

    def __init__(self):
        super().__init__()
        self.root = Path(tempfile.mkdtemp(dir="/dev/shm"))  # nothing is to be synced
        self.store = MemoryStore()
        self.checkpoints = Checkpoints(self.store)
        self.epoch, self.recorded = 0, 0
        self.held = {}
        """What each living node has: its lease, the version it put last, and the key it went on from."""
        self.current = False
        """Whether the latest lease is still the shard's own."""
        self.safe = {}
        """Outcomes that the store has taken from the holder of the latest lease: index -> (number, mark)."""
        self.failures, self.taken_back = set(), set()

    def teardown(self):
        shutil.rmtree(self.root)

    def copy(self, node, lease):
        return Copies(self.root / node).path_of(lease)

    def outcomes(self, data):
        found = parse_journal(data, SHARD)
        return {index: (record.tokens.prompt, record.mark) for index, record in found.outcomes.items()}

    @rule(node=NODES)
    def lease(self, node):
        """The queue gives the shard to a node; whoever had it may not know yet."""
        self.epoch += 1
        self.current = True
        lease = Lease(JOB, SHARD, self.epoch)
        found = done(self.checkpoints.earlier(lease))
        Copies(self.root / node).begin(lease, found)
        self.held[node] = [lease, None, None if found is None else found[0].key]
        begun = self.outcomes(self.copy(node, lease).read_bytes())
        assert self.safe.items() <= begun.items(), "what the store had taken is not gone on from"
        assert not self.taken_back & {number for number, _ in begun.values()}, "a failure came back"

    @precondition(lambda self: self.held)
    @rule(data=st.data(), index=st.integers(0, 11), failed=st.booleans())
    def record(self, data, index, failed):
        node = data.draw(st.sampled_from(sorted(self.held)))
        path = self.copy(node, self.held[node][0])
        if index in self.outcomes(path.read_bytes()):
            return
        self.recorded += 1
        if failed:
            self.failures.add(self.recorded)
        code, tokens = ErrorCode.TIMEOUT if failed else None, Tokens(self.recorded, 0)
        with path.open("ab") as file:
            file.write(encode_record(Outcome(index, f"row-{index}", code, "", 200, None, b"{}", tokens), JOB))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), unanswered=st.booleans())
    def checkpoint(self, data, unanswered):
        """Also by a node whose lease is another's by now: its clock may be wrong."""
        node = data.draw(st.sampled_from(sorted(self.held)))
        lease, version, earlier = self.held[node]
        content = self.copy(node, lease).read_bytes()
        self.store.unanswered = unanswered
        try:
            self.held[node][1] = done(self.checkpoints.put(lease, content, version))
        except TimeoutError:
            return
        except LeaseLostError:
            assert lease.epoch < self.epoch, "the holder of the lease is refused"
            return
        finally:
            self.store.unanswered = False
        if lease.epoch == self.epoch and self.current:
            self.safe = self.outcomes(content)
            done(self.checkpoints.delete([earlier] if earlier else []))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), disk=st.booleans())
    def kill(self, data, disk):
        node = data.draw(st.sampled_from(sorted(self.held)))
        del self.held[node]
        if disk:
            shutil.rmtree(self.root / node)

    @precondition(lambda self: self.epoch)
    @rule()
    def take_back(self):
        """All leases are over, though nodes may not know: the failures are to be sent again."""
        done(self.checkpoints.take_back_failures(JOB, SHARD, self.epoch))
        self.current = False
        self.taken_back |= self.failures
        self.safe = {index: outcome for index, outcome in self.safe.items() if outcome[1] == "ok"}

    @invariant()
    def what_is_safe_can_be_read(self):
        if self.safe:
            latest = done(self.checkpoints.latest(JOB.id, SHARD))
            assert self.safe.items() <= self.outcomes(latest[1]).items()


TestTakeover = Takeover.TestCase
TestTakeover.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
