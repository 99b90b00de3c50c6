"""Plans of the papers' tables and figures; printed commands are those that ``--go`` runs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pandas as pd
import pytest
from oracles.command import run
from oracles.runs.simulated_runs import simulate_run, simulated_dataset

from otpt import OtptError
from otpt.evaluation import Evaluation
from otpt.runs import Run
from otpt_papers.exhibits import FIGURES
from otpt_papers.papers import paper_table
from otpt_papers.reproduce import Choice, make_plan


def test_a_plan_needs_no_data() -> None:
    plan = make_plan("paper", choice=Choice(tables=["2"], datasets=["dtd"]))
    (exhibit,) = plan.exhibits
    (job,) = plan.jobs
    assert (job.datasets, job.images, job.left, job.backbone) == (("dtd",), {"dtd": 1692}, 1692, "ViT-B/16")
    assert list(job.missing) == ["dtd"]
    assert job.words[:2] == ("evaluate", "dtd")
    assert "o-tpt" in job.words
    assert exhibit.jobs == (job,)
    assert plan.to_dict()["jobs"][0]["datasets"] == ["dtd"]
    assert list(plan.missing()) == ["Table 2"]


def test_the_plan_has_19_tables_and_10_figures() -> None:
    plan = make_plan("paper")
    for kind, count in (("table", 19), ("figure", 10)):
        numbers = {exhibit.number for exhibit in plan.exhibits if exhibit.kind == kind}
        assert numbers == {str(number) for number in range(1, count + 1)}
    assert set(FIGURES) == {str(number) for number in range(1, 11)}
    needs = {exhibit.number for exhibit in plan.exhibits for job in exhibit.jobs if job.needs}
    assert needs == {"6", "7", "17"}
    for job in plan.jobs:
        assert job.options[-2:] == ("--out", str(job.makes)), "each command says where it writes"
    stems = [exhibit.stem for exhibit in plan.exhibits]
    assert len(set(stems)) == len(stems)
    for number in ("12", "13", "14", "15"):
        (exhibit,) = (exhibit for exhibit in plan.exhibits if (exhibit.kind, exhibit.number) == ("table", number))
        words = exhibit.jobs[0].words
        assert words[words.index("--prompt") + 1] == paper_table(number)["prompt"].iloc[0]


def test_plans_of_peers() -> None:
    cots = make_plan("cots")
    methods = {method for job in cots.jobs for method in job.methods}
    assert "ttl" not in methods
    assert set(cots.left_out) >= {"ttl"}
    assert {job.seeds for job in cots.jobs} == {(0, 1, 2)}
    shifts = [job for job in cots.jobs if job.group == "shifts"]
    assert shifts
    assert all("--no-augmix" in job.words for job in shifts)


def test_checkpoints_are_named_in_the_commands() -> None:
    choice = Choice(
        tables=["6", "17", "18"],
        context={"coop": "ctx.pth"},
        trained={"fpt": "a.safetensors;b.safetensors"},
        models={"MedCLIP": "medclip:x"},
    )
    plan = make_plan("paper", choice=choice)
    by_group = {job.group: job for job in plan.jobs}
    assert "context=ctx.pth" in by_group["coop"].words
    assert "trained=a.safetensors;b.safetensors" in by_group["fpt"].words
    trained = [job for job in plan.jobs if job.command == ("train", "baple")]
    assert len(trained) == 4
    assert all(str(job.makes) in " ".join(by_group["baple"].words) for job in trained)
    assert not [job for job in plan.jobs if job.needs]


def test_a_plan_counts_what_is_done(tmp_path: Path) -> None:
    choice = Choice(tables=["4"], datasets=["emoji/line"], limit=20)
    (job,) = make_plan("paper", bench=True, out=tmp_path, choice=choice).jobs
    assert (job.model, job.left) == ("pocket", 20)
    simulate_run(job.makes, [simulated_dataset("emoji/line", 5, 20)], Evaluation(methods=job.methods, shard_size=8))
    (again,) = make_plan("paper", bench=True, out=tmp_path, choice=choice).jobs
    assert (again.left, again.is_done) == (0, True)
    more = Choice(tables=["4"], datasets=["emoji/line"], limit=30)
    (third,) = make_plan("paper", bench=True, out=tmp_path, choice=more).jobs
    assert third.left == 30


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"study": "papre"}, "papre"),
        ({"choice": Choice(tables=["99"])}, "99"),
        ({"choice": Choice(figures=["11"])}, "11"),
        ({"choice": Choice(datasets=["dtdd"])}, "dtdd"),
        ({"choice": Choice(methods=["xyz"])}, "xyz"),
        ({"choice": Choice(backbones=["RN51"])}, "RN51"),
        ({"choice": Choice(limit=0)}, "0"),
        ({"choice": Choice(models={"RN51": "x"})}, "RN51"),
        ({"choice": Choice(context={"cocoop": "x"})}, "cocoop"),
        ({"choice": Choice(trained={"coop": "x"})}, "coop"),
        ({"choice": Choice(tables=["4"], datasets=["dtd"])}, "No table"),
        ({"data": Path("nowhere")}, "nowhere"),
    ],
)
def test_bad_plans(options: dict[str, object], value: str) -> None:
    with pytest.raises(OtptError, match=value):
        make_plan(**options)


def rows_below(folder: Path) -> pd.DataFrame:
    """Return the rows of all runs below a folder, in a fixed order."""
    runs = sorted(path.parent for path in folder.rglob("config.json"))
    rows = pd.concat([Run(path).to_pandas().assign(run=str(path.relative_to(folder))) for path in runs])
    keys = ["run", "dataset", "seed", "prompt", "method", "index"]
    return rows.sort_values(keys)[[*keys, "prediction", "confidence", "label"]].reset_index(drop=True)


@pytest.mark.slow
def test_printed_commands_make_the_rows_of_go(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    part = ["--tables", "12", "--figures", "10", "--methods", "o-tpt", "--limit", "2", "--views", "3"]
    part += ["--datasets", "emoji/food", "--no-cache"]
    words = ["reproduce", "paper", "--bench", *part, "--out"]
    code, out, err = run(capsys, *words, tmp_path / "go", "--go")
    assert code == 0, (out, err)
    assert (tmp_path / "go/index.html").is_file()
    assert {path.name for path in (tmp_path / "go/tables").iterdir()} >= {"table-12.md", "table-12.tex", "table-12.csv"}
    assert {path.name for path in (tmp_path / "go/figures").iterdir()} == {"figure-10.png", "figure-10.pdf"}
    code, out, _ = run(capsys, *words, tmp_path / "by-hand")
    assert code == 0
    printed = [line.strip() for line in out.splitlines() if line.strip().startswith("otpt ")]
    commands = [shlex.split(line)[1:] for line in printed]
    assert {command[0] for command in commands} == {"evaluate", "sweep", "table", "plot"}
    assert any("--prompt" in command for command in commands)
    for command in commands:
        if command[0] in ("evaluate", "sweep"):
            assert run(capsys, *command)[0] == 0
    pd.testing.assert_frame_equal(rows_below(tmp_path / "go"), rows_below(tmp_path / "by-hand"))
    code, out, _ = run(capsys, *words, tmp_path / "go", "--json")
    assert (code, {job["left"] for job in json.loads(out)["jobs"]}) == (0, {0})
