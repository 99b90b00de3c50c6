"""Plans of the papers' tables."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from oracles.runs.simulated_runs import simulate_run, simulated_dataset

from otpt import OtptError
from otpt.evaluation import Evaluation
from otpt_papers.reproduce import evaluate_commands, make_plan


def test_a_plan_needs_no_data() -> None:
    plan = make_plan("paper", tables=["2"], datasets=["dtd"])
    (table,) = plan.tables
    (run,) = table.runs
    assert (run.dataset, run.images, run.left, run.backbone) == ("dtd", 1692, 1692, "ViT-B/16")
    assert list(plan.missing) == ["dtd"]
    (command,) = evaluate_commands(plan, data=None)
    words = shlex.split(command)
    assert words[:3] == ["for", "set", "in"]
    assert "o-tpt" in words
    assert plan.to_dict()["tables"][0]["runs"][0]["dataset"] == "dtd"


def test_plans_of_all_tables() -> None:
    plan = make_plan("paper")
    assert len(plan.tables) == 20
    assert {table.layout for table in plan.tables if table.needs} == {"coop", "maple", "medical"}
    assert len({run.folder for run in plan.runs}) == len(plan.runs)
    cots = make_plan("cots")
    assert all("ttl" not in run.methods for run in cots.runs)
    assert set(cots.left_out) >= {"ttl"}
    assert {run.seeds for run in cots.runs} == {(0, 1, 2)}
    assert {run.augmix for run in cots.runs if run.group == "shifts"} == {False}


def test_a_plan_counts_what_is_done(tmp_path: Path) -> None:
    wanted = {"bench": True, "tables": ["4"], "datasets": ["emoji/line"], "limit": 20, "out": tmp_path}
    (run,) = make_plan("paper", **wanted).runs
    assert (run.model, run.left) == ("pocket", 20)
    simulate_run(run.folder, [simulated_dataset("emoji/line", 5, 20)], Evaluation(methods=run.methods, shard_size=8))
    (again,) = make_plan("paper", **wanted).runs
    assert again.left == 0


def test_bad_plans() -> None:
    for options, value in [
        ({"study": "papre"}, "papre"),
        ({"tables": ["99"]}, "99"),
        ({"datasets": ["dtdd"]}, "dtdd"),
        ({"methods": ["xyz"]}, "xyz"),
        ({"backbones": ["RN51"]}, "RN51"),
        ({"limit": 0}, "0"),
        ({"data": Path("nowhere")}, "nowhere"),
        ({"model": "x"}, "paper-backbone"),
    ]:
        with pytest.raises(OtptError, match=value):
            make_plan(**options)
