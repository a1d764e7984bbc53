"""Datasets as the package `datasets` itself saves and loads them."""

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tables import Annotation, texts

if os.environ.get("DISPATCHER_REQUIRE_SERVICES") != "1":
    pytest.importorskip("datasets", reason="datasets is not installed: pip install --group hub")

import datasets

pytestmark = [
    pytest.mark.services,
    pytest.mark.timeout(120),
]


@pytest.fixture
def files(tmp_path):
    files = Annotation(tmp_path)
    for split, rows in (("train", texts(20)), ("test", texts(3))):
        (tmp_path / "org" / "set" / "data").mkdir(parents=True, exist_ok=True)
        path = tmp_path / f"org/set/data/{split}-00000-of-00001.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path)
    return files


def saved(files):
    train = datasets.Dataset.from_list(texts(20))
    both = datasets.DatasetDict({"train": train, "test": datasets.Dataset.from_list(texts(3))})
    both.save_to_disk(str(files.directory / "saved"), num_shards={"train": 3, "test": 1})
    return files.directory / "saved"


@pytest.mark.parametrize(
    ("source", "rows"),
    [("saved/train", 20), ("saved/test", 3), ("hf://org/set/train", 20), ("hf://org/set/default/test", 3)],
)
async def test_a_dataset_that_was_saved_or_is_named_is_annotated(cli, files, server, source, rows):
    saved(files)
    asked = ["-o", files.directory / "out.jsonl", "--prompt", files.prompt, "--server", server.url]
    env = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(files.directory / "home")}
    # Without a network, `datasets` takes a folder of the name.
    done = await cli.run("annotate", source, *asked, env=env)
    assert done.status == 0, done.err
    out = [json.loads(line) for line in (files.directory / "out.jsonl").read_text().splitlines()]
    assert [line["text"] for line in out] == [row["text"] for row in texts(rows)]
    again = await cli.run("annotate", source, *asked, "--verify", env=env)
    assert again.status == 0, again.out


async def test_a_split_must_be_named_where_there_are_several(cli, files, server):
    asked = ["-o", files.directory / "out.jsonl", "--prompt", files.prompt, "--server", server.url]
    env = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(files.directory / "home")}
    for source in (saved(files), "hf://org/set"):
        done = await cli.run("annotate", source, *asked, env=env)
        assert done.status == 2
        assert "train" in done.err
    missing = await cli.run("annotate", "hf://org/none/train", *asked, env=env)
    assert (missing.status, "hf://org/none/train: cannot be loaded" in missing.err) == (2, True)


async def test_what_is_annotated_can_be_loaded_again(cli, files, server):
    done = await cli.run(*files.argv("org/set/data/train-00000-of-00001.parquet", "out.parquet", server))
    assert done.status == 0, done.err
    loaded = datasets.Dataset.from_parquet(
        str(files.directory / "out.parquet"), cache_dir=str(files.directory / "cache")
    )
    assert loaded["text"][:3] == [row["text"] for row in texts(3)]
    assert loaded.features["answer_attempts"].dtype == "int64"
