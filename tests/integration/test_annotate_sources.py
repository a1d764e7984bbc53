"""Where `annotate` reads and writes beside files: standard streams, saved datasets, names of datasets."""

import json
import sys
import types

import pyarrow as pa
import pytest
from tables import Annotation, texts

from dispatcher.annotate.finding import find_files
from dispatcher.errors import InputError
from dispatcher.testing.faults import Match
from dispatcher.testing.presets import PRESETS

TABLE = pa.Table.from_pylist(texts(10))


@pytest.fixture
def files(tmp_path):
    return Annotation(tmp_path)


def piped(files, server, *more):
    return ["annotate", "-", "-o", "-", "--prompt", files.prompt, "--server", server.url, *more]


def saved(files, folder="set", table=TABLE):
    """A dataset as `save_to_disk` writes it, with what a `map` has left beside it."""
    names = [f"data-{number:05}-of-00002.arrow" for number in range(2)]
    for number, name in enumerate([*names, "cache-0123456789abcdef.arrow"]):
        path = files.file(f"{folder}/{name}", b"")
        with pa.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table.slice(5 * (number % 2), 5), max_chunksize=2)
    files.file(f"{folder}/dataset_info.json", {"features": {}})
    files.file(
        f"{folder}/state.json", {"_data_files": [{"filename": name} for name in names], "_split": "train"}
    )
    return files.directory / folder


async def test_a_pipe_goes_in_and_a_table_comes_out(cli, files, server):
    server.inject(PRESETS["context_length_400"], Match(text="row-00002"))
    files.file("in.jsonl", texts(5))
    done = await cli.run(*piped(files, server), stdin=files.directory / "in.jsonl")
    assert done.status == 1
    out = [json.loads(line) for line in done.out.splitlines()]
    assert [line["text"] for line in out] == [row["text"] for row in texts(5)]
    assert "4 of 5 rows succeeded" in done.err
    assert "output standard output" in done.err


async def test_what_is_piped_is_of_the_format_that_is_said(cli, files, server):
    source = files.file("in.csv", "text,n\nrow-1,01\n")
    flags = ["--input-format", "csv", "--output-format", "tsv"]
    done = await cli.run(*piped(files, server, *flags), stdin=source)
    assert done.status == 0, done.err
    assert [line.split("\t")[:2] for line in done.out.splitlines()] == [["text", "n"], ["row-1", "01"]]
    shown = await cli.run(*piped(files, server, *flags, "--preview", 1), stdin=source)
    assert "--- standard input, row 1" in shown.out


async def test_nothing_piped_and_nothing_kept_is_told(cli, files, server):
    done = await cli.run(*piped(files, server))
    assert done.status == 2
    assert "standard input is empty" in done.err
    proven = await cli.run(*piped(files, server, "-o", "out.jsonl", "--verify"))
    assert (proven.status, "read only once" in proven.err) == (2, True)
    odd = await cli.run(
        "annotate", "-", "-o", "ftp://a/b.jsonl", "--prompt", files.prompt, "--server", server.url
    )
    assert (odd.status, "must be a file, or s3://" in odd.err) == (2, True)


def test_a_saved_dataset_is_what_its_description_lists(files):
    found = find_files(str(saved(files)))
    assert [file.local.name for file in found.files] == [f"data-0000{n}-of-00002.arrow" for n in range(2)]


def test_a_state_of_something_else_is_passed_over(files):
    files.file("folder/a.jsonl", texts(1))
    files.file("folder/state.json", [1])
    assert [file.local.name for file in find_files(str(files.directory / "folder")).files] == ["a.jsonl"]


def test_of_a_dataset_with_splits_one_must_be_named(files):
    saved(files, "sets/train")
    files.file("sets/dataset_dict.json", {"splits": ["train", "test"]})
    with pytest.raises(InputError, match=r"with splits; name one of them: .*sets/train, .*sets/test"):
        find_files(str(files.directory / "sets"))
    assert len(find_files(str(files.directory / "sets" / "train")).files) == 2
    files.file("sets/train/state.json", "{")
    with pytest.raises(InputError, match=r"state\.json: not as datasets\.save_to_disk writes it"):
        find_files(str(files.directory / "sets" / "train"))


class Hub(types.ModuleType):
    """`datasets`, as far as it is used: one dataset with two configurations, one with a single split."""

    def __init__(self, folder):
        super().__init__("datasets")
        self.asked = []
        paths = sorted(folder.glob("data-*.arrow"))
        self._set = types.SimpleNamespace(cache_files=[{"filename": str(path)} for path in paths])

    def load_dataset(self, name, configuration, *, split):
        self.asked.append((name, configuration, split))
        if name == "org/none":
            raise ValueError("Dataset 'org/none' doesn't exist on the Hub\nand more")
        splits = ["train"] if name == "org/single" else ["train", "test"]
        return dict.fromkeys(splits, self._set) if split is None else self._set


@pytest.fixture
def hub(files, monkeypatch):
    hub = Hub(saved(files))
    monkeypatch.setitem(sys.modules, "datasets", hub)
    return hub


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("hf://org/set/train", ("org/set", None, "train")),
        ("hf://datasets/org/set/train", ("org/set", None, "train")),
        ("hf://org/set/english/train", ("org/set", "english", "train")),
        ("hf://org/single", ("org/single", None, None)),
    ],
)
def test_a_dataset_can_be_named(hub, name, asked):
    assert len(find_files(name).files) == 2
    assert hub.asked == [asked]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("hf://set", "no name of a dataset; it is hf://ORG/NAME/SPLIT"),
        ("hf://org//train", "no name of a dataset"),
        ("hf://org/set/a/b/c", "no name of a dataset"),
        ("hf://org/set", "has the splits train, test; name one: hf://org/set/SPLIT"),
        ("hf://org/none/train", "cannot be loaded: Dataset 'org/none' doesn't exist on the Hub$"),
    ],
)
def test_what_is_no_name_of_a_dataset_is_told(hub, name, told):
    with pytest.raises(InputError, match=told):
        find_files(name)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        InputError, match=r"hf://org/set/train: needs datasets.*pip install 'dispatcher\[datasets\]'"
    ):
        find_files("hf://org/set/train")
