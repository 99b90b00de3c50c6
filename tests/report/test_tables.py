"""Tables: their numbers against plain numpy on the predictions that the runs were made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from oracles.runs.simulated_runs import simulate_run, simulated_dataset, simulated_output

from otpt import OtptError
from otpt.evaluation import Evaluation as Settings
from otpt.methods import Output
from otpt.metrics import bootstrap, evaluate
from otpt.report import (
    FORMATS,
    LAYOUTS,
    Results,
    build_tables,
    evaluation_table,
    metric_tables,
    open_results,
    paper_table,
    render,
)
from otpt.report.papers import guess_backbone
from otpt.report.tables import make_cells

from .conftest import METHODS, SEEDS, SETS, probabilities

RUN_OF = {"shifts": "shifts", "prompts": "prompts", "medical": "medical"} | dict.fromkeys(
    ("coop", "maple", "householder", "combination"), "special"
)


def expected(metric: str, method: str, position: int, seed: int) -> float:
    data = SETS[position]
    return 100 * getattr(evaluate(probabilities(position, method, seed), data.labels), metric)


@pytest.mark.parametrize(("layout", "metric"), [("main", "accuracy"), ("main", "ece"), ("sce", "sce")])
def test_values_deviations_and_averages(results: Results, layout: str, metric: str) -> None:
    (table,) = build_tables(results, layout)
    for method in METHODS:
        by_seed = np.array([[expected(metric, method, at, seed) for seed in SEEDS] for at in range(len(SETS))])
        for at, data in enumerate(SETS):
            cell = table.cell(method=method, metric=metric, dataset=data.name)
            assert cell["value"] == pytest.approx(by_seed[at].mean(), rel=1e-5)
            assert cell["deviation"] == pytest.approx(by_seed[at].std(ddof=1), abs=1e-4)
        average = table.cell(method=method, metric=metric, dataset="average")
        assert average["value"] == pytest.approx(by_seed.mean(), rel=1e-5)
        assert average["deviation"] == pytest.approx(by_seed.mean(axis=0).std(ddof=1), abs=1e-4)


def test_order_titles_and_best(results: Results) -> None:
    (table,) = build_tables(results, "main")
    head = table.to_text().splitlines()[1].split()
    assert head == ["Method", "Metric", "DTD", "FLW", "own", "Avg"]
    assert list(dict.fromkeys(table.cells["method"])) == ["zero-shot", "tpt", "c-tpt", "o-tpt"]
    for (dataset, metric), own in table.cells.groupby(["dataset", "metric"]):
        rounded = own["value"].round(2)
        best = rounded.max() if metric == "accuracy" else rounded.min()
        assert list(own["best"]) == list(rounded == best), (dataset, metric)


def test_seeds_layout_has_the_mean_of_deviations(results: Results) -> None:
    (table,) = build_tables(results, "seeds")
    for metric in ("accuracy", "ece"):
        own = [np.std([expected(metric, "tpt", at, seed) for seed in SEEDS], ddof=1) for at in range(len(SETS))]
        found = table.cell(method="tpt", metric=f"{metric}_deviation", dataset="average")["value"]
        assert found == pytest.approx(np.mean(own), abs=1e-4)


def test_intervals_are_those_of_the_bootstrap(results: Results, runs: dict[str, Path]) -> None:
    (table,) = build_tables(open_results([runs["main"]], seeds=[5]), "main", metrics=["ece", "nll"], level=0.9)
    for metric, scale in (("ece", 100), ("nll", 1)):
        found = table.cell(method="o-tpt", metric=metric, dataset="dtd")
        interval = bootstrap(metric, probabilities(2, "o-tpt", 5), SETS[2].labels, level=0.9)
        assert (found["low"], found["high"]) == pytest.approx((scale * interval.low, scale * interval.high), rel=1e-4)


def test_the_papers_numbers_are_joined(results: Results) -> None:
    (table,) = build_tables(results, "main", paper="ViT-B/16")
    theirs = paper_table(2).set_index(["method", "metric", "dataset"])["value"]
    cell = table.cell(method="o-tpt", metric="ece", dataset="dtd")
    assert cell["paper"] == theirs["o-tpt", "ece", "dtd"] == 7.88
    assert cell["difference"] == pytest.approx(cell["value"] - 7.88)
    assert np.isnan(table.cell(method="o-tpt", metric="ece", dataset="own")["paper"])
    assert np.isnan(table.cell(method="o-tpt", metric="ece", dataset="average")["paper"])  # "own" has no number
    printed = table.cell(method="zero-shot", metric="ece", dataset="printed")
    assert (printed["paper"], printed["wrong"]) == (4.43, True)
    (two,) = build_tables(results, "main", datasets=["dtd", "flowers102"], paper="ViT-B/16")
    mean = (theirs["o-tpt", "ece", "dtd"] + theirs["o-tpt", "ece", "flowers102"]) / 2
    assert two.cell(method="o-tpt", metric="ece", dataset="average")["paper"] == pytest.approx(mean)


@pytest.mark.parametrize("backbone", ["ViT-B/16", "RN50"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(layout: str, backbone: str, opened: dict[str, Results]) -> None:
    datasets = ["flowers102"] if layout == "groups" else None
    for table in build_tables(opened[RUN_OF.get(layout, "main")], layout, datasets=datasets, paper=backbone):
        assert table.cells["value"].notna().any()
        assert all(render([table], form) for form in FORMATS)


def test_groups_split_at_the_median(results: Results) -> None:
    table = build_tables(results, "groups", datasets=["dtd"])[0]
    data, parts = SETS[2], []
    for seed in SEEDS:
        said = [simulated_output(data, i, ("a photo of a", "tpt"), seed) for i in range(60)]
        cosines = np.array([each.extras["mean_cosine"] for each in said])
        above = cosines > np.median(cosines)
        parts.append(evaluate(probabilities(2, "o-tpt", seed)[above], np.array(data.labels)[above]))
    for metric in ("accuracy", "ece"):
        mean = 100 * np.mean([getattr(each, metric) for each in parts])
        cell = table.cell(method="o-tpt", metric=metric, dataset="dtd:group 1")
        assert cell["value"] == pytest.approx(mean, rel=1e-4)


def test_ties_are_what_chance_explains(tmp_path: Path) -> None:
    def output(data, index: int, column: tuple[str, str], seed: int) -> Output:
        right = {"zero-shot": index % 10 > 0, "tpt": index % 10 > 0, "o-tpt": index % 2 > 0}[column[1]]
        p = np.full(5, 0.05)
        p[(data.labels[index] + (not right)) % 5] = 0.8
        return Output(p, int(p.argmax()))

    settings = Settings(methods=("zero-shot", "tpt", "o-tpt"))
    folder = simulate_run(tmp_path / "run", [simulated_dataset("dtd", 5, 100)], settings, output=output)
    cells = evaluation_table(open_results([folder])).cells.set_index(["method", "metric"])
    assert set(cells["dataset"]) == {"dtd"}  # no average of a single data set
    assert cells["best"][:, "accuracy"].to_dict() == {"zero-shot": True, "tpt": True, "o-tpt": False}
    assert not cells["tie"]["o-tpt", "accuracy"]  # 40 points apart on 100 images


def test_all_metrics(results: Results, opened: dict[str, Results]) -> None:
    tables = metric_tables(results, metrics=["classwise-ece", "aurc"])
    assert [table.title for table in tables] == ["SCE %", "AURC %"]
    found = tables[1].cell(method="tpt", dataset="dtd")["value"]
    assert found == pytest.approx(np.mean([expected("aurc", "tpt", 2, seed) for seed in SEEDS]), rel=1e-4)
    by_prompt = metric_tables(opened["prompts"], metrics=["ece"])[0]
    assert by_prompt.rows == ("method", "prompt")


def test_missing_seeds_and_sets_have_no_average(tmp_path: Path) -> None:
    folder = simulate_run(tmp_path / "run", SETS[:2], Settings(methods=("zero-shot", "tpt")))
    simulate_run(folder, SETS[:1], Settings(methods=("zero-shot",), seeds=(1,)))
    results = open_results([folder])
    cells = make_cells(results, {"average": results.datasets}, ["ece"]).set_index("method")
    assert cells["value"].notna().to_dict() == {"zero-shot": False, "tpt": True}
    assert "zero-shot" in " ".join(evaluation_table(results).notes)


def test_runs_in_progress_are_marked(tmp_path: Path) -> None:
    folder = simulate_run(tmp_path / "run", SETS[2:], Settings(methods=METHODS, shard_size=16), items=2)
    results = open_results([folder])
    (table,) = build_tables(results)
    assert results.partial
    assert "…" in table.to_text()
    assert "in progress: dtd" in table.to_csv()


def test_bad_input(results: Results, runs: dict[str, Path]) -> None:
    for options, value in [
        ({"layout": "mian"}, "mian"),
        ({"methods": ["otpt"]}, "otpt"),
        ({"datasets": ["dtdd"]}, "dtdd"),
        ({"metrics": ["eec"]}, "eec"),
        ({"prompt": "a sketch"}, "a sketch"),
        ({"paper": "ViT-L/14"}, "ViT-L/14"),
        ({"level": 95}, "95"),
        ({"layout": "shifts"}, "shifts"),
        ({"layout": "coop"}, "coop"),
        ({"methods": []}, "zero-shot"),
    ]:
        with pytest.raises(OtptError, match=value):
            build_tables(results, **options)
    with pytest.raises(OtptError, match="seeds"):
        build_tables(open_results([runs["main"]], seeds=[0]), "seeds")
    assert guess_backbone(results) is None
