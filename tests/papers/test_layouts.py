"""Tables in the O-TPT paper's layouts: order, titles, printed numbers, groups of images."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from oracles.runs.report_bench import SEEDS, SETS, probabilities
from oracles.runs.simulated_runs import simulated_output

from otpt import OtptError
from otpt.metrics import evaluate
from otpt.report import FORMATS, Results, Selection, Table, open_results, render
from otpt.report.figures import save, styled
from otpt_papers.figures import draw_groups
from otpt_papers.groups import split_groups
from otpt_papers.layouts import LAYOUTS
from otpt_papers.papers import guess_backbone, paper_table
from otpt_papers.references import OtptPaper

RUN_OF = {"shifts": "shifts", "prompts": "prompts", "medical": "medical"} | dict.fromkeys(
    ("coop", "maple", "householder", "combination"), "special"
)


def build(results: Results, layout: str = "main", *, backbone: str | None = None, **selection) -> list[Table]:
    return LAYOUTS[layout].tables(results, Selection(**selection), backbone=backbone)


def test_order_and_titles(results: Results) -> None:
    (table,) = build(results)
    head = table.to_text().splitlines()[1].split()
    assert head == ["Method", "Metric", "DTD", "FLW", "own", "Avg"]
    assert list(dict.fromkeys(table.cells["method"])) == ["zero-shot", "tpt", "c-tpt", "o-tpt"]
    assert "Zero-shot" in table.to_markdown()


def test_seeds_layout_has_the_mean_of_deviations(results: Results) -> None:
    (table,) = build(results, "seeds")
    for metric in ("accuracy", "ece"):
        deviations = []
        for position, data in enumerate(SETS):
            by_seed = [evaluate(probabilities(position, "tpt", seed), data.labels) for seed in SEEDS]
            deviations.append(np.std([100 * getattr(metrics, metric) for metrics in by_seed], ddof=1))
        average = table.cell(method="tpt", metric=f"{metric}_deviation", dataset="average")["value"]
        assert average == pytest.approx(np.mean(deviations), abs=1e-4)


def test_the_papers_numbers_are_joined(paper_results: Results) -> None:
    results = paper_results
    (table,) = build(results, backbone="ViT-B/16")
    theirs = paper_table(2).set_index(["method", "metric", "dataset"])["value"]
    cell = table.cell(method="o-tpt", metric="ece", dataset="dtd")
    assert cell["paper"] == theirs["o-tpt", "ece", "dtd"] == 7.88
    assert cell["difference"] == pytest.approx(cell["value"] - 7.88)
    assert np.isnan(table.cell(method="o-tpt", metric="ece", dataset="flowers102")["difference"]), "20 of 2463 images"
    assert np.isnan(table.cell(method="o-tpt", metric="ece", dataset="own")["paper"])
    assert np.isnan(table.cell(method="o-tpt", metric="ece", dataset="average")["paper"])  # "own" has no number
    assert "printed" not in set(table.cells["dataset"]), "the average of other sets"
    (two,) = build(results, datasets=["dtd", "flowers102"], backbone="ViT-B/16")
    mean = (theirs["o-tpt", "ece", "dtd"] + theirs["o-tpt", "ece", "flowers102"]) / 2
    assert two.cell(method="o-tpt", metric="ece", dataset="average")["paper"] == pytest.approx(mean)


def test_printed_averages_stand_next_to_the_same_sets_only(paper_results: Results) -> None:
    three = ["dtd", "flowers102", "caltech101"]
    (table,) = build(paper_results, "sce", datasets=three, backbone="ViT-B/16")
    assert (table.paper, table.cell(method="o-tpt", metric="sce", dataset="printed")["paper"]) == ("9", 0.65)
    assert table.cell(method="zero-shot", metric="sce", dataset="dtd")["paper"] == 1.34
    (table,) = OtptPaper().tables(paper_results, Selection(), number="10")
    assert table.cell(method="zero-shot", metric="sce", dataset="dtd")["paper"] == 1.33
    assert "printed" not in set(table.cells["dataset"])
    assert any("1.33" in note for note in table.notes)
    with pytest.raises(OtptError, match="99"):
        OtptPaper().tables(paper_results, Selection(), number="99")
    with pytest.raises(OtptError, match="medical"):
        OtptPaper().tables(paper_results, Selection(), number="17", layout="main")
    with pytest.raises(OtptError, match="covid"):
        OtptPaper().tables(paper_results, Selection(), number="17")


def test_formats_have_the_papers_numbers(paper_results: Results) -> None:
    results = paper_results
    (table,) = build(results, backbone="ViT-B/16")
    data = json.loads(table.to_json())
    assert data["paper_table"] == "2"
    assert {7.88, None} <= {cell["paper"] for cell in data["cells"]}
    frame = pd.read_csv(io.StringIO(table.to_csv()))
    for kind in ("paper", "difference"):
        numbers = frame[frame["kind"] == kind].set_index(["method", "metric"])
        for cell in table.cells.dropna(subset=[kind]).itertuples():
            assert numbers.loc[(cell.method, cell.metric), cell.dataset] == pytest.approx(getattr(cell, kind))
    (without,) = build(results)
    assert "– paper" not in without.to_text()
    assert json.loads(without.to_json())["paper_table"] is None


@pytest.mark.parametrize("backbone", ["ViT-B/16", "RN50"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(layout: str, backbone: str, opened: dict[str, Results]) -> None:
    selection = Selection(datasets=["flowers102"] if layout == "groups" else None)
    tables = OtptPaper().tables(opened[RUN_OF.get(layout, "main")], selection, layout=layout, backbone=backbone)
    for table in tables:
        assert table.cells["value"].notna().any()
        assert all(render([table], form) for form in FORMATS)


def test_one_table_per_prompt_and_paper_table(opened: dict[str, Results]) -> None:
    assert len(build(opened["prompts"], "prompts")) == 4
    assert len(build(opened["prompts"], "prompts", prompt="an icon of")) == 1
    datasets = [set(table.cells["dataset"]) for table in build(opened["medical"], "medical")]
    assert len(datasets) > 1
    assert "average" not in set.union(*datasets)


def test_groups_split_at_the_median(results: Results) -> None:
    table = build(results, "groups", datasets=["dtd"])[0]
    data, parts = SETS[2], []
    for seed in SEEDS:
        outputs = [simulated_output(data, i, ("a photo of a", "tpt"), seed) for i in range(60)]
        cosines = np.array([output.extras["mean_cosine"] for output in outputs])
        above = cosines > np.median(cosines)
        parts.append(evaluate(probabilities(2, "o-tpt", seed)[above], np.array(data.labels)[above]))
    for metric in ("accuracy", "ece"):
        mean = 100 * np.mean([getattr(part, metric) for part in parts])
        cell = table.cell(method="o-tpt", metric=metric, dataset="dtd:group 1")
        assert cell["value"] == pytest.approx(mean, rel=1e-4)


@pytest.mark.slow
def test_figure_of_groups(results: Results, tmp_path: Path) -> None:
    shown = results.narrow(results.select(dataset="dtd"), methods=["tpt", "o-tpt"])
    with styled("dark"):
        figure = draw_groups(shown)
    save(figure, tmp_path / "figure.png", dpi=60)
    assert (tmp_path / "figure.png").stat().st_size > 1000
    groups = split_groups(results.narrow(results.select(dataset="dtd", seed=SEEDS[0])), "dtd")
    groups = groups[groups["dataset"] != "dtd"].set_index(["method", "dataset"])["accuracy"]
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    wanted = [100 * groups[method, f"dtd:group {number}"] for method in ("tpt", "o-tpt") for number in (1, 2)]
    assert heights == pytest.approx(wanted)


def test_bad_input(results: Results, runs: dict[str, Path]) -> None:
    for options, value in [
        ({"methods": ["otpt"]}, "otpt"),
        ({"datasets": ["dtdd"]}, "dtdd"),
        ({"metrics": ["eec"]}, "eec"),
        ({"prompt": "a sketch"}, "a sketch"),
        ({"backbone": "ViT-L/14"}, "ViT-L/14"),
        ({"level": 95}, "95"),
        ({"layout": "shifts"}, "shifts"),
        ({"layout": "coop"}, "coop"),
        ({"methods": []}, "zero-shot"),
        ({"layout": "groups", "metrics": ["nll"]}, "groups"),
        ({"layout": "groups", "level": 0.9}, "--intervals"),
        ({"layout": "seeds", "level": 0.9}, "--intervals"),
    ]:
        with pytest.raises(OtptError, match=value):
            build(results, **options)
    with pytest.raises(OtptError, match="seeds"):
        build(open_results([runs["main"]], seeds=[0]), "seeds")


def test_the_backbone_is_that_of_the_runs(results: Results, opened: dict[str, Results]) -> None:
    assert guess_backbone(results) is None
    with pytest.raises(OtptError, match="--paper-backbone"):
        OtptPaper().tables(results, Selection())
    assert OtptPaper().tables(opened["medical"], Selection(), layout="medical")
    with pytest.raises(OtptError, match="plain"):
        OtptPaper().tables(results, Selection(), layout="plain")
