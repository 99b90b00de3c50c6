"""Published numbers, comparisons with them, and plans of their tables."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from oracles.runs.simulated_runs import simulate_run, simulated_dataset

from otpt import OtptError
from otpt.data import Dataset
from otpt.data.registered import find_entry
from otpt.evaluation import Evaluation as Settings
from otpt.report import PAPERS, compare_with_paper, get_paper, open_results, paper_table, published
from otpt.report.papers import method_key
from otpt.report.reproduce import evaluate_commands, make_plan


def test_printed_numbers() -> None:
    for paper, table, backbone, key, printed in [
        ("otpt", "2", "ViT-B/16", ("o-tpt", "ece", "dtd"), "7.88"),
        ("otpt", "2", "ViT-B/16", ("zero-shot", "ece", "average"), "4.43"),
        ("otpt", "1", "ViT-B/16", ("c-tpt", "accuracy", "flowers102:group 1"), "63.66"),
        ("cots", "sets", "ViT-B/16", ("tpt+e-cots", "ece", "dtd"), "6.94"),
        ("tta-vlm", "sets", "RN50", ("zero-shot", "accuracy", "average"), "55.84"),
        ("quoted", "imagenet", "ViT-B/16", ("freetta", "accuracy", "imagenet"), "70.21"),
    ]:
        rows = paper_table(table, paper=paper, backbone=backbone).set_index(["method", "metric", "dataset"])
        assert rows.loc[key, ["printed", "value"]].tolist() == [printed, float(printed)]


def test_every_paper_has_numbers_and_a_source() -> None:
    numbers = published()
    assert set(numbers["paper"]) == set(PAPERS)
    assert not numbers.duplicated(["paper", "table", "backbone", "prompt", "dataset", "method", "metric"]).any()
    assert (numbers["value"].notna() == (numbers["printed"] != "")).all()
    for name in PAPERS:
        assert get_paper(name).source
        assert set(get_paper(name).not_implemented) <= {
            part for method in get_paper(name).numbers["method"] for part in (method, *method.split("+"))
        }


def half_unit(printed: str) -> float:
    return 0.5 * 10.0 ** -len(printed.replace("..", ".").partition(".")[2])


def test_errata_are_the_averages_beyond_rounding() -> None:
    """A printed average is off its row's mean by at most half a unit of each, or it is among the errata."""
    found = {}
    numbers = published()
    for key, own in numbers[numbers["paper"] == "otpt"].groupby(["table", "backbone", "method", "metric"]):
        average, values = own[own["dataset"] == "average"], own[own["dataset"] != "average"]
        if len(average) and len(values) and values["value"].notna().all():
            allowed = values["printed"].map(half_unit).mean() + half_unit(average["printed"].item())
            if abs(average["value"].item() - values["value"].mean()) > allowed * (1 + 1e-9):
                found[key] = (average["printed"].item(), f"{values['value'].mean():.2f}")
    keys = ("table", "backbone", "method", "metric")
    listed = {tuple(each[k] for k in keys): (each["printed"], each["other"]) for each in get_paper("otpt").errata}
    assert found == listed
    assert len(listed) == 13


def test_methods_are_matched_by_their_parts() -> None:
    assert method_key("tpt+e-cots") == method_key("weak-strong+cots+tpt")
    assert method_key("tpt+cots") != method_key("tpt+e-cots")


def registered(name: str, images: int = 40) -> Dataset:
    entry = find_entry(name)
    names = list(entry.class_list().names)
    found = simulated_dataset(name, len(names), images)
    return Dataset(name, names, ids=found.ids, labels=found.labels, images=lambda index: b"")


@pytest.mark.slow
def test_comparison_with_a_paper(tmp_path: Path) -> None:
    methods = ("zero-shot", "tpt", "o-tpt", "a-tpt")
    folder = simulate_run(
        tmp_path / "run", [registered("dtd"), registered("pets")], Settings(methods=methods), model="ViT-B-16/openai"
    )
    results = open_results([folder])
    tables = {table.name: table for table in compare_with_paper(results, "cots")}
    cell = tables["sets"].cell(dataset="dtd", method="o-tpt", metric="ece")
    theirs = paper_table("sets", paper="cots", backbone="ViT-B/16").set_index(["method", "metric", "dataset"])["value"]
    assert cell["paper"] == theirs["o-tpt", "ece", "dtd"]
    own = results.select(dataset="dtd", method="o-tpt")["ece"].item()
    assert cell["difference"] == pytest.approx(100 * own - cell["paper"])
    assert "average" not in set(tables["sets"].cells["dataset"])  # not all of the paper's data sets
    notes = " ".join(tables["sets"].notes)
    assert "40 of 1692 images of dtd" in notes
    assert "1 seed instead of 3" in notes
    assert tables["sets"].to_markdown()
    for options, value in [({"paper": "cotz"}, "cotz"), ({"paper": "cots", "methods": ["x"]}, "'x'")]:
        with pytest.raises(OtptError, match=value):
            compare_with_paper(results, **options)
    with pytest.raises(OtptError, match="zero"):
        compare_with_paper(results, "zero")


def test_other_models_and_data_are_not_compared(tmp_path: Path, runs: dict[str, Path]) -> None:
    with pytest.raises(OtptError, match="ViT-B/16 or RN50"):
        compare_with_paper(open_results([runs["main"]]), "cots")
    settings = Settings(methods=("zero-shot", "tpt"))
    folder = simulate_run(tmp_path / "run", [simulated_dataset("dtd", 5, 20)], settings, model="RN50/openai")
    with pytest.raises(OtptError, match="dtd"):
        compare_with_paper(open_results([folder]), "cots")


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
    simulate_run(run.folder, [simulated_dataset("emoji/line", 5, 20)], Settings(methods=run.methods, shard_size=8))
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
