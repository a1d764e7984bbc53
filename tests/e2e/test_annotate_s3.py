"""Tables in an object store, read and written: S3 as moto serves it."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jobs import sends
from tables import Annotation, texts

pytestmark = [pytest.mark.services, pytest.mark.timeout(120)]


BUCKET = "tables"


@pytest.fixture(scope="module")
def env(s3):
    """What a process is told, of a server that has the bucket."""
    s3.client.create_bucket(Bucket=BUCKET)
    return s3.environment()


@pytest.fixture
def files(tmp_path):
    return Annotation(tmp_path)


def put(s3, key, content):
    s3.client.put_object(Bucket=BUCKET, Key=key, Body=content)


def get(s3, key):
    return s3.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()


def parquet(rows):
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=100)
    return sink.getvalue()


def argv(files, server, source, output, *more):
    asked = ["--prompt", files.prompt, "--server", server.url, *more]
    return ["annotate", f"s3://{BUCKET}/{source}", "-o", f"s3://{BUCKET}/{output}", *asked]


async def test_a_table_is_read_from_a_store_and_written_there(cli, files, server, s3, env):
    put(s3, "in.parquet", parquet(texts(500)))
    command = argv(files, server, "in.parquet", "done/out.parquet")
    done = await cli.run(*command, env=env)
    assert done.status == 0, done.err
    assert f"output s3://{BUCKET}/done/out.parquet" in done.err
    out = pq.read_table(io.BytesIO(get(s3, "done/out.parquet")))
    assert out["text"].to_pylist() == [row["text"] for row in texts(500)]
    assert out["answer_error"].null_count == 500
    proven = await cli.run(*command, "--verify", env=env)
    assert (proven.status, "500 answers and 0 errors" in proven.out) == (0, True)
    again = await cli.run(*command, env=env)
    assert (again.status, "finished before: 500 of 500" in again.err) == (0, True)
    put(s3, "in.parquet", parquet(texts(3)))
    other = await cli.run(*command, env=env)
    assert (other.status, "exists already" in other.err) == (2, True)
    assert len(sends(server)) == 500


async def test_a_folder_of_objects_is_one_table(cli, files, server, s3, env):
    for number, row in enumerate(texts(3)):
        put(s3, f"parts/{number}.csv", f"text,n\n{row['text']},1\n")
    put(s3, "parts/_SUCCESS", b"")
    put(s3, "parts/", b"")
    done = await cli.run(*argv(files, server, "parts/", "out.jsonl"), env=env)
    assert done.status == 0, done.err
    assert get(s3, "out.jsonl").count(b"\n") == 3
    assert sorted(sends(server)) == [row["text"][:9] for row in texts(3)]


async def test_a_run_that_has_begun_knows_the_object_again(cli, files, server, s3, env):
    put(s3, "some.jsonl", b'{"text": "row-00000"}\n')
    command = argv(files, server, "some.jsonl", "some-out.jsonl", "--keep-state")
    assert (await cli.run(*command, env=env)).status == 0
    put(s3, "some.jsonl", b'{"text": "row-00001"}\n')
    other = await cli.run(*command, env=env)
    assert (other.status, "not the table that this state directory was made for" in other.err) == (2, True)


async def test_what_a_store_refuses_is_told_without_secrets(cli, files, server, s3, env):
    missing = await cli.run(*argv(files, server, "none.parquet", "x.parquet"), env=env)
    assert (missing.status, f"s3://{BUCKET}/none.parquet: there is no such object" in missing.err) == (
        2,
        True,
    )
    put(s3, "broken.parquet", b"PAR1 not really")
    broken = await cli.run(*argv(files, server, "broken.parquet", "x.parquet"), env=env)
    assert (broken.status, "broken.parquet: not Parquet" in broken.err) == (2, True)
    put(s3, "in.jsonl", b'{"text": "row-00000"}\n')
    same = await cli.run(*argv(files, server, "in.jsonl", "in.jsonl"), env=env)
    assert (same.status, f"must not be written to s3://{BUCKET}/in.jsonl, an input" in same.err) == (2, True)
    nowhere = ["annotate", f"s3://{BUCKET}/in.jsonl", "-o", "s3://no-such-bucket/x.jsonl"]
    asked = ["--prompt", files.prompt, "--server", server.url]
    unwritable = await cli.run(*nowhere, *asked, env=env)
    assert unwritable.status == 3, unwritable.err
    assert "s3://no-such-bucket/x.jsonl: cannot be written" in unwritable.err
    told = missing.err + broken.err + unwritable.err
    assert env["AWS_SECRET_ACCESS_KEY"] not in told
    assert env["AWS_ACCESS_KEY_ID"] not in told
