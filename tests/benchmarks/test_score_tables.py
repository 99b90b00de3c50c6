"""The tables of the benchmarks on the emoji bench: λ chosen by the lowest ECE, marks of the pages."""

from __future__ import annotations

import doctest
from dataclasses import replace
from pathlib import Path

from benchmarks import pages
from benchmarks.emoji import LAMBDAS, PAGE, chosen, swept
from benchmarks.pages import put_into
from benchmarks.score_tables import score_table
from otpt.metrics import evaluate
from otpt.runs import Score


def score(method: str, ece: float, *, dataset: str = "emoji/a", seed: int = 0) -> Score:
    metrics = evaluate([[0.9, 0.1]], [0])
    return Score(dataset, seed, "", method, replace(metrics, ece=ece), 0, 0, None)


def test_lambda_with_the_lowest_error_is_chosen() -> None:
    names = [method.name for method in swept()]
    assert names[:2] == ["zero-shot", "tpt"]
    assert len(names) == 2 + sum(map(len, LAMBDAS.values()))
    errors = dict.fromkeys(names, 0.1) | {"tpt": 0.0, "c-tpt[lambda=20]": 0.02, "o-tpt[lambda=54]": 0.03}
    found = chosen([score(name, error) for name, error in errors.items()])
    assert [method.name for method in found] == ["c-tpt[lambda=20]", "o-tpt[lambda=54]"]


def test_table_has_means_and_deviations() -> None:
    scores = [
        score("tpt", error, dataset=name, seed=seed)
        for (name, seed), error in {
            ("emoji/a", 0): 0.1,
            ("emoji/b", 0): 0.2,
            ("emoji/a", 1): 0.3,
            ("emoji/b", 1): 0.4,
        }.items()
    ]
    text = score_table(scores, ["tpt"], ["emoji/a", "emoji/b"])
    assert "| ECE % | a | b | average |" in text
    assert "| `tpt` | 20.00 | 30.00 | 25.00 ± 14.14 |" in text


def test_doctests() -> None:
    tried = doctest.testmod(pages)
    assert tried.attempted > 0
    assert tried.failed == 0


def test_pages_have_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    for name in ("sweep", "sets", "shifts"):
        put_into(page, name, f"new {name}")
        put_into(page, name, f"newer {name}")
        assert f"<!-- {name} -->\nnewer {name}\n<!-- /{name} -->" in page.read_text(encoding="utf-8")
