"""A job's files as tests make and read them."""

import json
from pathlib import Path

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MODEL = "fake-model"


def row(number, url=CHAT, *, text="", **body):
    """A request whose body names its row, as the fake server's log does. `model=None` leaves it out."""
    question = f"row-{number:05} {text}".strip()
    asked = (
        {"messages": [{"role": "user", "content": question}]}
        if url == CHAT
        else {"input": question}
        if url in ("/v1/embeddings", "/v1/responses")
        else {"prompt": question}
    )
    asked = {"model": MODEL, **asked, **body}
    if asked["model"] is None:
        del asked["model"]
    return {"custom_id": f"row-{number:05}", "method": "POST", "url": url, "body": asked}


def rows(count, **options):
    return [row(number, **options) for number in range(count)]


def lines(requests):
    return "".join(json.dumps(request) + "\n" for request in requests)


def read(path):
    """A file of JSON lines, strictly."""
    return [json.loads(line, parse_constant=_refuse) for line in Path(path).read_text().split("\n")[:-1]]


def _refuse(name):
    raise AssertionError(f"{name} is not strict JSON")


class Job:
    """The files of one `dispatcher run` in a directory."""

    def __init__(self, directory):
        self.directory = directory
        self.input = directory / "in.jsonl"
        self.output = directory / "out.jsonl"
        self.errors = directory / "out.errors.jsonl"
        self.rejected = directory / "out.rejected.jsonl"
        self.state = directory / "out.jsonl.state"

    def write(self, requests):
        self.input.write_text(lines(requests))
        return self

    def argv(self, *servers, input=None):  # noqa: A002  # the command's own word
        """`run INPUT -o OUTPUT --server ...`."""
        urls = [argument for server in servers for argument in ("--server", getattr(server, "url", server))]
        return ["run", input or self.input, "-o", self.output, *urls]

    @property
    def ids(self):
        """The output's rows, in its order."""
        return [line["custom_id"] for line in read(self.output)]

    @property
    def failed(self):
        """The error file's rows: id -> error code."""
        return {line["custom_id"]: line["error"]["code"] for line in read(self.errors)}

    def journals(self):
        return sorted(self.state.glob("journal/*/*/*.journal"))

    def recorded(self):
        """The rows that have a whole record in the journals."""
        return recorded_in(self.journals())


def recorded_in(journals):
    """The rows that have a whole record in these files, by a reading of our own."""
    found = set()
    for path in journals:
        for line in path.read_bytes().split(b"\n")[:-1]:
            fields = line.split(b"\t", 5)
            if len(fields) == 6 and fields[2] != b"death":
                found.add(json.loads(fields[5])["custom_id"])
    return found


def sends(*servers):
    """Every row that reached these servers, as often as it did."""
    return [record.marker for server in servers for record in server.requests if record.marker]


class Ledger:
    """Holds the rows that reach servers against those that were recorded, from one kill to the next.

    `recorded` tells the rows that have a record now.
    """

    def __init__(self, servers, recorded):
        self._servers, self._recorded = servers, recorded
        self._kept = set()
        self._checked = [0] * len(servers)

    def settle(self):
        """What had a record at the kill before must not have been sent since, and must still have it."""
        sent = self._sent_since()
        assert not sent & self._kept
        before, self._kept = self._kept, self._recorded() or self._kept
        assert before <= self._kept

    def _sent_since(self):
        logs = [sends(server) for server in self._servers]
        new = {marker for log, seen in zip(logs, self._checked, strict=True) for marker in log[seen:]}
        self._checked = [len(log) for log in logs]
        return new
