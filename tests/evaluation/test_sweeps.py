"""Sweeps over settings and prompts: names, templates, and that sharing a pass changes no number."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from oracles.runs.evaluation_bench import NAMES, backbone, dataset, files, image, rows, settings

from otpt import Classifier, OtptError, get_method
from otpt.evaluation import evaluate
from otpt.evaluation.sweeps import read_templates, read_values, sweep_method, template_prompt
from otpt.methods.state import PromptState
from otpt.prompts import Linearisation
from otpt.report import build_tables, compare_methods, open_results
from otpt.report.figures import draw

pytestmark = pytest.mark.slow


def test_variants_are_named_and_numbered() -> None:
    variants = sweep_method(get_method("o-tpt"), read_values(["lambda=0,6", "steps=1,2"]))
    assert [each.name for each in variants] == [
        "o-tpt[lambda=0,steps=1]",
        "o-tpt[lambda=0,steps=2]",
        "o-tpt[lambda=6,steps=1]",
        "o-tpt[lambda=6,steps=2]",
    ]
    assert dict(variants[2].tuning("shift").weights) == {"entropy": 1.0, "orthogonality": 6.0}
    assert variants[3].steps == 2
    assert pickle.loads(pickle.dumps(variants[3])) == variants[3]


@pytest.mark.equality
def test_a_sweep_shares_the_entropy_gradient_and_changes_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    products = []
    real = Linearisation.vjp
    monkeypatch.setattr(Linearisation, "vjp", lambda self, g: products.append(1) or real(self, g))
    variants = sweep_method(get_method("o-tpt"), read_values(["lambda=0,2,18,54"]))
    evaluate(dataset(3), backbone(), settings(methods=variants), out=tmp_path / "sweep")
    assert len(products) == 3 + 1, "one product per image, and one for the regulariser"
    found = rows(tmp_path / "sweep")
    for value in ("0", "18"):
        alone = [get_method("o-tpt").override({"lambda": value})]
        evaluate(dataset(3), backbone(), settings(methods=alone), out=tmp_path / value)
        expected = [row["confidence"] for row in rows(tmp_path / value)]
        assert [r["confidence"] for r in found if r["method"] == f"o-tpt[lambda={value}]"] == expected


def test_views_are_swept_like_settings(tmp_path: Path) -> None:
    """Each variant has the rows of a run with that many views; a method without the settings runs once."""
    sweep = {"views": [2, 5], "lambda": [1, 18]}
    chosen = settings(methods=["zero-shot", "o-tpt"]).replace(sweep=sweep)
    evaluate(dataset(3), backbone(), chosen, out=tmp_path / "sweep")
    found = rows(tmp_path / "sweep")
    names = [f"o-tpt[views={views},lambda={weight}]" for views in (2, 5) for weight in (1, 18)]
    assert list(dict.fromkeys(row["method"] for row in found)) == ["zero-shot", *names]
    for views in (2, 5):
        alone = settings(methods=[get_method("o-tpt").override({"lambda": 18})]).replace(views=views)
        evaluate(dataset(3), backbone(), alone, out=tmp_path / str(views))
        expected = [row["confidence"] for row in rows(tmp_path / str(views))]
        assert [r["confidence"] for r in found if r["method"] == f"o-tpt[views={views},lambda=18]"] == expected
    results = open_results([tmp_path / "2", tmp_path / "5"])
    assert results.methods == ["o-tpt[views=2]", "o-tpt[views=5]"]
    (test,) = compare_methods(results, *results.methods, resamples=20)
    assert test.images == 3
    assert draw("heatmap", open_results([tmp_path / "sweep"])).axes
    tables = build_tables(open_results([tmp_path / "sweep"]), "sweep", metrics=["ece"])
    assert [table.rows + (table.columns,) for table in tables] == [("views", "lambda")]


@pytest.mark.parametrize(
    ("sweep", "word"),
    [
        ({"views": []}, "views"),
        ({"views": [0]}, "0"),
        ({"views": [2, 2]}, "twice"),
        ({"lamda": [1]}, "lamda"),
        ({"seed": [1, 2]}, "seeds"),
        ({"budget": [8]}, "views"),
        ({"coverage": [0.8]}, "calibration"),
        ({"official_precision": [True]}, "make a run for each"),
        (7, "7"),
    ],
)
def test_sweeps_that_are_refused(sweep: object, word: str, tmp_path: Path) -> None:
    with pytest.raises(OtptError, match=word):
        evaluate(dataset(3), backbone(), methods=["o-tpt"], sweep=sweep, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_eighty_templates(tmp_path: Path) -> None:
    from open_clip.zero_shot_metadata import OPENAI_IMAGENET_TEMPLATES

    prompts = read_templates("imagenet-80")
    assert [p.sentence("red panda") for p in prompts] == [make("red panda") for make in OPENAI_IMAGENET_TEMPLATES]
    assert len(prompts) == 80
    chosen = [p for p in prompts if "itap" in p.words or "video game" in p.words][:3]
    some = settings(methods=["zero-shot", "tpt"], prompts=chosen, all_tokens=True)
    evaluate(dataset(2), backbone(), some, out=tmp_path / "run")
    found = rows(tmp_path / "run")
    assert len(found) == 2 * 2 * 3
    inside = next(p for p in chosen if "video game" in p.words)
    expected = Classifier(backbone(), "zero-shot").set_classes(NAMES, inside).predict(image(0))
    row = next(r for r in found if (r["prompt"], r["method"]) == (inside.words, "zero-shot"))
    assert row["confidence"] == expected.confidence


@pytest.mark.equality
def test_many_prompts_keep_to_the_memory_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs beyond the budget are released and computed again, with the same result."""
    prompts = ["a photo of a", "an example of", "an image of the"]
    chosen = settings(methods=["o-tpt"], prompts=prompts)
    evaluate(dataset(2), backbone(), chosen, out=tmp_path / "held")
    monkeypatch.setattr(PromptState, "graph_bytes", property(lambda self: 10**12))
    evaluate(dataset(2), backbone(), chosen, out=tmp_path / "again")
    assert files(tmp_path / "held") == files(tmp_path / "again")


def test_templates_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "templates.txt"
    file.write_text("a photo of a {}.\n\n{} texture.\nthe {} in the dark.\n", encoding="utf-8")
    assert [p.sentence("sea") for p in read_templates(file)] == [
        "a photo of a sea.",
        "sea texture.",
        "the sea in the dark.",
    ]
    with pytest.warns(UserWarning, match="gets a full stop"):
        assert template_prompt("a photo of a {}").sentence("sea") == "a photo of a sea."


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"a photo", "has 0 places"),
        (b"{} and {}.", "has 2 places"),
        (b"{}.", "no context words"),
        (b"\xff\xfe", "not UTF-8 text"),
        (None, "Cannot read the template file"),
    ],
)
def test_templates_that_cannot_be_used(tmp_path: Path, content: bytes | None, words: str) -> None:
    file = tmp_path / "templates.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(OtptError, match=words):
        read_templates(file)


@pytest.mark.parametrize("given", [["lambda"], ["lambda="], ["lambda=1,"], ["=1"]])
def test_values_that_cannot_be_used(given: list[str]) -> None:
    with pytest.raises(OtptError, match="expected NAME=VALUE,VALUE"):
        read_values(given)
    with pytest.raises(OtptError, match="twice"):
        read_values(["lambda=1", "lambda=2"])
