"""Published numbers, and comparisons with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from oracles.runs.simulated_runs import registered, simulate_run, simulated_dataset

from otpt import OtptError
from otpt.evaluation import Evaluation
from otpt.report import Selection, open_results
from otpt_papers.comparison import compare_with_paper
from otpt_papers.papers import PAPERS, get_paper, method_key, paper_table, published
from otpt_papers.references import PeerPaper


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
    listed = {}
    for erratum in get_paper("otpt").errata:
        key = (erratum.table, erratum.backbone, erratum.method, erratum.metric)
        listed[key] = (erratum.printed, erratum.other)
    assert found == listed
    assert len(listed) == 13


def test_methods_are_matched_by_their_parts() -> None:
    assert method_key("tpt+e-cots") == method_key("weak-strong+cots+tpt")
    assert method_key("tpt+cots") != method_key("tpt+e-cots")


@pytest.mark.slow
def test_comparison_with_a_paper(tmp_path: Path) -> None:
    methods = ("zero-shot", "tpt", "o-tpt", "a-tpt")
    folder = simulate_run(
        tmp_path / "run",
        [registered("dtd", 40), registered("pets", 40)],
        Evaluation(methods=methods),
        model="ViT-B-16/openai",
    )
    results = open_results([folder])
    tables = {table.name: table for table in compare_with_paper(results, "cots")}
    cell = tables["sets"].cell(dataset="dtd", method="o-tpt", metric="ece")
    theirs = paper_table("sets", paper="cots", backbone="ViT-B/16").set_index(["method", "metric", "dataset"])["value"]
    assert cell["paper"] == theirs["o-tpt", "ece", "dtd"]
    assert np.isnan(cell["difference"]), "of other images"
    assert "average" not in set(tables["sets"].cells["dataset"])  # not all of the paper's data sets
    notes = " ".join(tables["sets"].notes)
    assert "40 of 1692 images of dtd" in notes
    assert "1 seed instead of 3" in notes
    assert tables["sets"].to_markdown()
    (first, *_) = PeerPaper("cots").tables(results, Selection(), backbone="ViT-B/16")
    assert first.cells.equals(next(iter(tables.values())).cells)
    for options, value in [
        ({"paper": "cotz"}, "cotz"),
        ({"paper": "cots", "methods": ["x"]}, "'x'"),
        ({"paper": "cots", "backbone": "RN51"}, "RN51"),
    ]:
        with pytest.raises(OtptError, match=value):
            compare_with_paper(results, **options)
    with pytest.raises(OtptError, match="zero"):
        compare_with_paper(results, "zero")
    for selection in (Selection(metrics=["nll"]), Selection(level=0.9)):
        with pytest.raises(OtptError, match="cots"):
            PeerPaper("cots").tables(results, selection)


def test_other_models_and_data_are_not_compared(tmp_path: Path, runs: dict[str, Path]) -> None:
    with pytest.raises(OtptError, match="ViT-B/16 or RN50"):
        compare_with_paper(open_results([runs["main"]]), "cots")
    settings = Evaluation(methods=("zero-shot", "tpt"))
    folder = simulate_run(tmp_path / "run", [simulated_dataset("dtd", 5, 20)], settings, model="RN50/openai")
    with pytest.raises(OtptError, match="dtd"):
        compare_with_paper(open_results([folder]), "cots")
