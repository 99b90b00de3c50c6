"""Tables: their numbers against plain numpy on the predictions that the runs were made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from oracles.runs.report_bench import METHODS, SEEDS, SETS, probabilities
from oracles.runs.simulated_runs import simulate_run, simulated_dataset

from otpt import OtptError
from otpt.evaluation import Evaluation as Settings
from otpt.methods import Output
from otpt.metrics import bootstrap, evaluate
from otpt.report import (
    Layout,
    Reference,
    Results,
    Selection,
    Table,
    build_tables,
    evaluation_table,
    get_layout,
    get_reference,
    metric_tables,
    open_results,
    register_layout,
    register_reference,
)
from otpt.report.tables import make_cells


def expected(metric: str, method: str, position: int, seed: int) -> float:
    data = SETS[position]
    return 100 * getattr(evaluate(probabilities(position, method, seed), data.labels), metric)


@pytest.mark.parametrize("metric", ["accuracy", "ece", "sce"])
def test_values_deviations_and_averages(results: Results, metric: str) -> None:
    (table,) = build_tables(results, "plain", metrics=[metric])
    for method in METHODS:
        by_seed = np.array([[expected(metric, method, at, seed) for seed in SEEDS] for at in range(len(SETS))])
        for at, data in enumerate(SETS):
            cell = table.cell(method=method, metric=metric, dataset=data.name)
            assert cell["value"] == pytest.approx(by_seed[at].mean(), rel=1e-5)
            assert cell["deviation"] == pytest.approx(by_seed[at].std(ddof=1), abs=1e-4)
        average = table.cell(method=method, metric=metric, dataset="average")
        assert average["value"] == pytest.approx(by_seed.mean(), rel=1e-5)
        assert average["deviation"] == pytest.approx(by_seed.mean(axis=0).std(ddof=1), abs=1e-4)


def test_names_order_and_best(results: Results) -> None:
    (table,) = build_tables(results, "plain", methods=["tpt", "o-tpt", "zero-shot"], datasets=["dtd", "own"])
    head = table.to_text().splitlines()[1].split()
    assert head == ["Method", "Metric", "dtd", "own", "average"]
    assert list(dict.fromkeys(table.cells["method"])) == ["tpt", "o-tpt", "zero-shot"]
    for (dataset, metric), column in table.cells.groupby(["dataset", "metric"]):
        rounded = column["value"].round(2)
        best = rounded.max() if metric == "accuracy" else rounded.min()
        assert list(column["best"]) == list(rounded == best), (dataset, metric)


def test_intervals_are_those_of_the_bootstrap(results: Results, runs: dict[str, Path]) -> None:
    (table,) = build_tables(open_results([runs["main"]], seeds=[5]), "plain", metrics=["ece", "nll"], level=0.9)
    for metric, scale in (("ece", 100), ("nll", 1)):
        found = table.cell(method="o-tpt", metric=metric, dataset="dtd")
        interval = bootstrap(metric, probabilities(2, "o-tpt", 5), SETS[2].labels, level=0.9)
        assert (found["low"], found["high"]) == pytest.approx((scale * interval.low, scale * interval.high), rel=1e-4)


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
    (table,) = build_tables(results, "plain")
    assert results.partial
    assert "…" in table.to_text()
    assert "in progress: dtd" in table.to_csv()


def test_bad_input(results: Results) -> None:
    for options, value in [
        ({"layout": "plian"}, "plain"),
        ({"methods": ["otpt"]}, "otpt"),
        ({"datasets": ["dtdd"]}, "dtdd"),
        ({"metrics": ["eec"]}, "eec"),
        ({"prompt": "a sketch"}, "a sketch"),
        ({"level": 95}, "95"),
        ({"methods": []}, "zero-shot"),
    ]:
        with pytest.raises(OtptError, match=value):
            build_tables(results, **{"layout": "plain", **options})


class Counts(Layout):
    """The number of methods."""

    def tables(self, results: Results, selection: Selection) -> list[Table]:
        count = len(selection.methods or results.methods)
        return [Table("counts", f"{count} methods", results.frame)]


class Noted(Reference):
    """What it was asked for, as a note."""

    def tables(self, results, selection, *, layout=None, backbone=None) -> list[Table]:
        (table,) = get_layout(layout).tables(results, selection)
        return [Table(table.name, table.title, table.cells, notes=(f"of {backbone}",))]


@pytest.mark.usefixtures("registries")
def test_registered_layouts_and_references(results: Results) -> None:
    before = get_layout()
    register_layout("counts", Counts())
    assert get_layout() is before
    assert build_tables(results, "counts", methods=["tpt"])[0].title == "1 methods"
    register_layout("counts", Counts(), default=True)
    register_reference("first", Noted(), default=True)
    register_reference("second", Noted())
    assert build_tables(results)[0].title == "4 methods"
    assert get_reference() is get_reference("first")
    (table,) = get_reference("second").tables(results, Selection(), backbone="RN50")
    assert (table.title, table.notes) == ("4 methods", ("of RN50",))
    with pytest.raises(OtptError, match="second"):
        get_reference("third")
