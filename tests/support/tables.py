"""A table's files as tests make and read them."""

import json

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import yaml


class Annotation:
    """The files of one `dispatcher annotate` in a directory."""

    def __init__(self, directory):
        self.directory = directory
        self.prompt = self.file("prompt.md", "Is this positive? {{ text }}\n")

    def file(self, name, content):
        """A file of this text, these bytes, this JSON or this table."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        match content:
            case str():
                path.write_text(content)
            case bytes():
                path.write_bytes(content)
            case pa.Table():
                pq.write_table(content, path, row_group_size=100)
            case list():
                path.write_text("".join(json.dumps(row) + "\n" for row in content))
            case _:
                path.write_text(json.dumps(content))
        return path

    def argv(self, source, output, *servers, prompt=True):
        """`annotate SOURCE -o OUTPUT --prompt ... --server ...`."""
        urls = [argument for server in servers for argument in ("--server", getattr(server, "url", server))]
        asked = ["--prompt", self.prompt] if prompt else []
        return ["annotate", self.directory / source, "-o", self.directory / output, *asked, *urls]

    def table(self, name):
        """A Parquet or Arrow file."""
        path = self.directory / name
        return pq.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(path).read_all()

    def lines(self, name):
        """A file of JSON lines."""
        return [json.loads(line) for line in (self.directory / name).read_text().splitlines()]


def texts(count):
    """Rows whose text names them, as the fake server's log does."""
    return [{"text": f"row-{number:05} a review", "stars": number % 5} for number in range(count)]


TWO_STEPS = [
    {"name": "topic", "prompt": "topic.md", "labels": ["sport", "politics"]},
    {"name": "reason", "prompt": "reason.md", "max_tokens": 400},
]


def steps_files(directory):
    """A directory with the prompts of two steps."""
    files = Annotation(directory)
    files.file("topic.md", "Topic of {{ text }}?")
    files.file("reason.md", "Why is {{ text }} about {{ topic }}?")
    return files


def in_steps(files, server, output="out.jsonl", steps=TWO_STEPS, source="in.jsonl", **section):
    """`annotate SOURCE -o OUTPUT --config ...`, with these steps in the file."""
    files.file("dispatcher.yaml", yaml.safe_dump({"annotate": {"steps": steps, **section}}))
    asked = files.argv(source, output, server, prompt=False)
    return [*asked, "--config", files.directory / "dispatcher.yaml"]
