"""Several questions in a row: `annotate.steps`."""

import pytest
import yaml
from jobs import sends
from tables import TWO_STEPS as TWO
from tables import in_steps as argv
from tables import steps_files, texts

from dispatcher.config import load_config, step_configs
from dispatcher.testing.faults import Match
from dispatcher.testing.presets import PRESETS


@pytest.fixture
def files(tmp_path):
    return steps_files(tmp_path)


async def test_each_step_can_use_the_answers_of_those_before(cli, files, server):
    files.file("in.jsonl", texts(30))
    done = await cli.run(*argv(files, server), "--shard-size", 7)
    assert done.status == 0, done.err
    out = files.lines("out.jsonl")
    assert [line["text"] for line in out] == [row["text"] for row in texts(30)]
    names = list(out[0])
    assert names.index("topic") == 2
    assert names.index("topic_attempts") < names.index("reason") < names.index("reason_attempts")
    assert {line["topic"] for line in out} == {"sport", "politics"}
    assert all(line["reason"] for line in out)
    assert len(sends(server)) == 60
    assert "step topic, finished: 30 of 30" in done.err
    assert "step reason, finished: 30 of 30" in done.err
    assert not (files.directory / "out.jsonl.state").exists()
    proven = await cli.run(*argv(files, server), "--verify")
    assert proven.status == 0, proven.out
    assert "30 rows, each with exactly one outcome, in order: 30 answers and 0 errors" in proven.out


async def test_a_row_without_the_answer_that_a_step_needs_is_not_sent_to_it(cli, files, server):
    server.inject(PRESETS["context_length_400"], Match(text="Topic of row-00002"))
    files.file("in.jsonl", texts(5))
    files.file("alone.md", "Say something about {{ text }}")
    done = await cli.run(*argv(files, server, steps=[*TWO, {"name": "alone", "prompt": "alone.md"}]))
    assert done.status == 1
    line = files.lines("out.jsonl")[2]
    assert (line["topic"], line["topic_error_code"]) == (None, "context_length")
    assert (line["reason"], line["reason_error_code"]) == (None, "not_asked")
    assert line["reason_error"] == "step topic has no answer: context_length"
    assert line["reason_server"] is None
    assert line["alone"], "it needs none of the others"
    assert sends(server).count("row-00002") == 2
    assert "step reason, finished: 4 of 5 rows succeeded, 1 failed" in done.err


@pytest.mark.parametrize(
    ("steps", "section", "told"),
    [
        ([{"prompt": "topic.md"}], {}, "annotate.steps[0].name: is missing"),
        (
            [{"name": "a", "promt": "topic.md"}],
            {},
            "annotate.steps[0].promt: is not a setting; did you mean prompt?",
        ),
        ([TWO[0], TWO[0]], {}, "annotate.steps: must not name two steps topic"),
        (TWO, {"labels": ["a"]}, "annotate.steps: must not be set together with annotate.labels"),
        ([{"name": "a"}], {}, "annotate.steps[0].prompt: must name a template"),
        ([{"name": "a", "prompt": "none.md"}], {}, "annotate.steps[0].prompt: none.md: cannot be read"),
        ([TWO[0], {**TWO[1], "prefix": "topic"}], {}, "would both have a column topic"),
        ([{"name": "../a", "prompt": "topic.md"}], {}, "annotate.steps[0].name"),
    ],
)
async def test_what_is_wrong_with_steps_is_told_with_its_place(cli, files, server, steps, section, told):
    files.file("in.jsonl", texts(1))
    done = await cli.run(*argv(files, server, steps=steps, **section))
    assert done.status == 2
    assert told in done.err


async def test_a_column_that_a_later_step_needs_and_nobody_has_is_told_before_anything_is_sent(
    cli, files, server
):
    files.file("in.jsonl", texts(2))
    files.file("reason.md", "{{ topic }} {{ tpoic }}")
    done = await cli.run(*argv(files, server))
    assert done.status == 2
    assert "in.jsonl, row 1, column tpoic: there is no such column, which step reason needs" in done.err
    assert sends(server) == []
    assert not (files.directory / "out.jsonl.state").exists()


async def test_a_prompt_that_cannot_be_made_of_an_answer_fails_its_row_alone(cli, files, server):
    files.file("in.jsonl", texts(2))
    files.file(
        "reason.md", "{{ text }} {{ topic.nothing.at_all if text.startswith('row-00001') else topic }}"
    )
    done = await cli.run(*argv(files, server))
    assert done.status == 1
    assert [line["reason_error_code"] for line in files.lines("out.jsonl")] == [None, "not_asked"]
    assert "the prompt cannot be made" in files.lines("out.jsonl")[1]["reason_error"]


def test_a_step_has_what_it_says_then_what_the_section_says_and_flags_go_before_both(files):
    path = files.file(
        "dispatcher.yaml",
        yaml.safe_dump(
            {"annotate": {"steps": [{**TWO[0], "temperature": 1}, TWO[1]], "temperature": 0.5, "seed": 1}}
        ),
    )
    said = [config.annotate for _, config in step_configs(load_config(path, {}, {}))]
    assert [(each.temperature, each.seed, each.prefix) for each in said] == [
        (1, 1, "topic"),
        (0.5, 1, "reason"),
    ]
    flags = {"annotate": {"temperature": 0}, "run": {"model": "m"}}
    configs = [
        config for _, config in step_configs(load_config(path, flags, {"DISPATCHER_ANNOTATE__SEED": "7"}))
    ]
    assert [(each.annotate.temperature, each.annotate.seed, each.run.model) for each in configs] == [
        (0, 7, "m")
    ] * 2
