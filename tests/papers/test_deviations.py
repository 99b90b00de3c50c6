"""``otpt table --paper`` says what deviates from the paper, and shows differences only where they mean something."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from oracles.runs.simulated_runs import registered, simulate_run, simulated_dataset

from otpt.data import Dataset
from otpt.evaluation import Evaluation
from otpt.methods import get_method
from otpt.report import Results, Selection, Table, open_results
from otpt_papers.papers import get_paper
from otpt_papers.references import OtptPaper

OPENAI = "ViT-B-16/openai"
RIGHT: dict[str, object] = {
    "methods": ("zero-shot", "o-tpt"),
    "official_precision": True,
    "official_orientation": True,
}
LIGHTER = replace(get_method("o-tpt").override({"lambda": "6"}), name="o-tpt")


def table_of(folder: Path, dataset: Dataset, model: str, request: dict[str, object]) -> Table:
    run = simulate_run(folder, [dataset], Evaluation(**{**RIGHT, **request}), model=model)
    (table,) = OtptPaper().tables(open_results([run]), Selection(), layout="main", backbone="ViT-B/16")
    return table


def test_a_right_run_has_differences_and_no_note(paper_results: Results) -> None:
    (table,) = OtptPaper().tables(paper_results, Selection(datasets=["dtd"]))
    cells = table.cells[(table.cells["dataset"] == "dtd") & (table.cells["metric"] == "ece")]
    assert cells["difference"].notna().all()
    assert set(table.notes) == set(get_paper("otpt").remarks_on("2"))


@pytest.mark.parametrize(
    ("model", "dataset", "request_", "noted", "compared"),
    [
        ("ViT-B-16/laion2b_s34b_b88k", registered("dtd"), {}, "laion2b", False),
        ("random:ViT-B-16", registered("dtd"), {}, "random:ViT-B-16", False),
        ("local-dir:/models/mine", registered("dtd"), {}, "/models/mine", False),
        (OPENAI, registered("dtd", 2), {}, "2 of 1692 images", False),
        (OPENAI, simulated_dataset("dtd", 47, 20), {}, "other class names", False),
        (OPENAI, registered("dtd", 1692), {"views": 3}, "3 views instead of 64", True),
        (OPENAI, registered("food101"), {}, "--official-names", False),
        (OPENAI, registered("dtd", 1692), {"prompts": ["an icon of"]}, "'an icon of' instead of", True),
        (OPENAI, registered("dtd"), {"seeds": (0, 1, 2)}, "3 seeds", False),
        (OPENAI, registered("dtd", 1692), {"official_precision": False}, "--official-precision", True),
        (OPENAI, registered("dtd"), {"official_orientation": False}, "EXIF", False),
        (OPENAI, registered("dtd", 1692, augmix=False), {}, "AugMix off", True),
        (OPENAI, registered("dtd"), {"family": "shift"}, "'shift' data sets instead of 'fine-grained'", False),
        (OPENAI, registered("dtd", 1692), {"methods": ("zero-shot", LIGHTER)}, "orthogonality 6", True),
        (OPENAI, registered("dtd", 1692), {"n_bins": 15}, "15 bins", True),
        (OPENAI, registered("dtd"), {"features": "float16"}, "--features float16", False),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.slow
def test_wrong_runs_are_noted(
    tmp_path: Path, model: str, dataset: Dataset, request_: dict[str, object], noted: str, compared: bool
) -> None:
    table = table_of(tmp_path / "run", dataset, model, request_)
    assert any(noted in note for note in table.notes), table.notes
    cells = table.cells[table.cells["metric"] == "ece"]
    differences = cells.loc[cells["dataset"] == dataset.name, "difference"]
    assert differences.notna().all() == compared
    assert differences.isna().all() == (not compared)
    if not compared:
        assert np.isnan(table.cell(method="o-tpt", metric="ece", dataset="average")["difference"])
