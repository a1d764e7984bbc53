import json

import pytest
from typer.testing import CliRunner

from dispatcher.cli.commands import app
from dispatcher.errors import ConfigError
from dispatcher.testing.simulation import fleet
from dispatcher.testing.simulation.ideal import ideal_s
from dispatcher.testing.simulation.plan import Plan, read_plan
from dispatcher.testing.simulation.policies import batch_per_slot, least_outstanding, round_robin
from dispatcher.testing.simulation.rehearsal import rehearse
from dispatcher.testing.simulation.rows import Rows

# Ten tokens a second for each of four sequences, whoever else runs; prompts take no time worth a word.
GROUP = {
    "name": "s",
    "max_sequences": 4,
    "tokens_per_s": 40,
    "tokens_per_s_alone": 10,
    "prefill_tokens_per_s": 1e12,
    "kv_tokens": 8192,
}


def plan_of(rows=40, **settings):
    job = {
        "rows": rows,
        "prompt_tokens": {"mean": 10, "spread": 0, "most": 100},
        "output_tokens": {"mean": 20, "spread": 0, "most": 100},
    }
    return Plan.model_validate({"fleet": [{**GROUP, **settings}], "job": job})


def ideal_of(plan):
    return ideal_s(fleet.members(plan, 1), Rows(plan.job_plan(), 1))


def test_the_ideal_of_equal_rows_is_their_number_over_the_slots():
    assert ideal_of(plan_of(rows=40)) == pytest.approx(20.0)
    assert ideal_of(plan_of(rows=40, count=5)) == pytest.approx(4.0)


def test_the_ideal_waits_for_servers_that_join_late():
    assert ideal_of(plan_of(rows=4, starts_after_s=100)) == pytest.approx(102.0)


def test_the_ideal_is_charged_with_a_servers_absence_and_not_with_its_work():
    plan = plan_of(rows=400, dies_every_s=60, back_after_s=60)
    assert 200 < ideal_of(plan) < 200 + 60 * 5


def test_no_policy_is_better_than_the_ideal_and_all_answer_every_row():
    plan = plan_of(rows=60, count=2)
    ideal = ideal_of(plan)
    for policy in (None, round_robin(4), least_outstanding(4), batch_per_slot(4, 1)):
        went = rehearse(plan, 1, ideal=ideal) if policy is None else rehearse(plan, 1, policy, ideal)
        assert 0.2 < went.efficiency < 1.0 + 1e-9
        assert sum(use.rows for use in went.servers) >= 60


def test_the_ideal_of_a_job_that_the_fleet_holds_at_once_is_not_beaten():
    """The longest first is not the best order there: all the long rows would share a few servers."""
    group = {"count": 12, "max_sequences": 64, "tokens_per_s": 1800}
    job = {"rows": 800, "output_tokens": {"mean": 200, "spread": 0.5}}
    assert rehearse(Plan.model_validate({"fleet": [group], "job": job}), 0).efficiency <= 1.0


def test_churn_is_counted_in_deaths_downtime_and_lost_tokens():
    went = rehearse(plan_of(rows=600, count=2, dies_every_s=60, back_after_s=30), 1)
    assert sum(use.deaths for use in went.servers) >= 2
    assert sum(use.down_s for use in went.servers) > 30
    assert sum(use.lost_tokens for use in went.servers) > 0


def test_a_rehearsal_is_the_same_each_time_and_another_with_another_seed():
    plan = plan_of(rows=200, count=2, dies_every_s=60, back_after_s=30)
    assert rehearse(plan, 1) == rehearse(plan, 1)
    assert rehearse(plan, 1).makespan_s != rehearse(plan, 2).makespan_s


def test_every_fault_of_a_plan_is_reported_with_its_place(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text("fleet: [{count: 0}]\njob: {rows: many, output_tokens: 5}\n")
    with pytest.raises(ConfigError) as caught:
        read_plan(path)
    assert "fleet[0].count" in str(caught.value)
    assert "job.rows" in str(caught.value)


def test_the_command_prints_the_makespan_and_every_server(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text("fleet: [{name: gpu, count: 2, max_sequences: 8, tokens_per_s: 400}]\njob: {rows: 50}\n")
    shown = CliRunner().invoke(app, ["simulate", str(path)])
    assert shown.exit_code == 0, shown.output
    assert "makespan" in shown.output
    assert "gpu-1" in shown.output
    told = json.loads(CliRunner().invoke(app, ["simulate", str(path), "--json"]).stdout)
    assert told["rows"] == 50
    assert len(told["servers"]) == 2


def test_rows_that_no_server_answers_are_told_and_counted_nowhere_else():
    went = rehearse(plan_of(rows=40, dies_every_s=0.1, back_after_s=1), 1)  # a row takes 2 s
    assert (went.rows, went.failed) == (40, 40)
    assert (went.makespan_s, went.rows_per_s, went.efficiency) == (0.0, 0.0, 0.0)
    assert sum(use.rows for use in went.servers) == 0


def test_canaries_are_no_rows():
    went = rehearse(plan_of(rows=40, count=2), 1)
    assert went.failed == 0
    assert sum(use.rows for use in went.servers) == 40


def test_the_command_fails_where_rows_do_and_says_how_many(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text('fleet: [{name: "[/gpu]"}]\njob: {rows: 3, poison_rows: 1}\n')
    shown = CliRunner().invoke(app, ["simulate", str(path)])
    assert shown.exit_code == 1, shown.output
    assert "for 2 rows" in shown.output
    assert "failed       1 " in shown.output
    assert "[/gpu]-0" in shown.output


@pytest.mark.parametrize(
    ("fleet_and_job", "fault"),
    [
        ("fleet: [{name: a}, {name: a}]\njob: {rows: 1}", "called a: give each a name of its own"),
        (
            "fleet: [{tokens_per_s: 1.0e-9, tokens_per_s_alone: 1.0e-9}]\njob: {rows: 1}",
            "fleet[0].tokens_per_s",
        ),
        ("fleet: [{prefill_tokens_per_s: 0.5}]\njob: {rows: 1}", "fleet[0].prefill_tokens_per_s: must be"),
        ("fleet: []\njob: {rows: 1}", "fleet: must not be empty"),
        ("fleet: [{}]\njob: {rows: 0}", "job.rows: must be greater than or equal to 1"),
    ],
)
def test_a_plan_that_cannot_be_rehearsed_is_refused(tmp_path, fleet_and_job, fault):
    path = tmp_path / "plan.yaml"
    path.write_text(fleet_and_job)
    with pytest.raises(ConfigError) as caught:
        read_plan(path)
    assert fault in str(caught.value)
    assert str(caught.value).count("must not be empty") == (fault == "fleet: must not be empty")


def test_the_command_replays_a_seed():
    shown = CliRunner().invoke(app, ["simulate", "--seed", "3"])
    assert shown.exit_code == 0, shown.output
    assert "seed 3: kept" in shown.output


def test_the_command_replays_a_seed_of_several_nodes():
    shown = CliRunner().invoke(app, ["simulate", "--several", "--seed", "44"])
    assert shown.exit_code == 0
    assert "seed 44: kept" in shown.stdout


def test_several_nodes_answer_every_row_once_between_them():
    plan = plan_of(rows=1200, count=4, max_sequences=32, tokens_per_s=320)
    went = rehearse(plan.model_copy(update={"nodes": 3}), 1, ideal=1.0)
    assert (went.nodes, went.failed, went.sends) == (3, 0, 1200)
    assert sum(use.rows for use in went.servers) == 1200


def test_the_command_names_what_is_wrong_with_a_plan(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text("fleet: []\njob: {rows: 1}\n")
    assert CliRunner().invoke(app, ["simulate", str(path)]).exit_code == 2
