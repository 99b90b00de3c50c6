"""Unknown images from features to flags: the rejector, the classifier, an evaluation, the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from oracles.command import run
from oracles.runs.evaluation_bench import NAMES, RECIPE, backbone, dataset, image, rows, settings

from otpt import Classifier, OtptError
from otpt.evaluation import evaluate
from otpt.methods.prompt_tuning import prompt_state
from otpt.rejection import DEFAULT_SCORE, REJECTED, SCORES, Rejector, negative_words

pytestmark = pytest.mark.slow

METHODS = ["zero-shot", "o-tpt"]


def features(count: int = 4) -> torch.Tensor:
    classifier = Classifier(backbone(), recipe=RECIPE)
    return torch.stack([classifier.encode_views(image(i))[0] for i in range(count)])


@pytest.mark.equality
def test_the_texts_are_those_of_zero_shot_and_no_image_depends_on_its_neighbours() -> None:
    own = features()
    text = prompt_state(backbone(), NAMES)
    cosines = (own @ text.text_features.mT).double().numpy()
    found = Rejector(backbone(), NAMES, score="max-cosine", threshold=0.5)
    np.testing.assert_allclose(found(own).numpy(), 1 - cosines.max(axis=1), atol=1e-6)
    for name in SCORES:
        rejector = Rejector(backbone(), NAMES, score=name, threshold=0.0)
        together = rejector(own)
        assert torch.equal(together, torch.cat([rejector(each[None]) for each in own]))


def test_words_are_not_the_classes() -> None:
    names = [*NAMES, "lighthouse"]
    rejector = Rejector(backbone(), names)
    listed = [word for word in negative_words() if word not in names]
    assert "lighthouse" in negative_words()
    assert sorted(rejector.words) == listed
    texts = prompt_state(backbone(), [*names, *listed]).text_features
    own = features(2)
    classes, words = ((own @ each.mT).double().numpy() for each in (texts[: len(names)], texts[len(names) :]))
    expected = np.sort(words, axis=1)[:, -10:].mean(axis=1) - classes.max(axis=1)
    np.testing.assert_allclose(rejector(own).numpy(), expected, atol=1e-5)
    nearest = texts[len(names) + listed.index(rejector.words[-1])], texts[len(names) + listed.index(rejector.words[0])]
    near, far = (float((each @ texts[: len(names)].mT).quantile(0.95)) for each in nearest)
    assert near > far
    assert Rejector(backbone(), names, score="msp").words == ()


def test_the_spelling_of_a_class_does_not_make_it_one_of_the_words() -> None:
    plain = Rejector(backbone(), ["lighthouse", "swimming pool", "zebra crossing"])
    other = Rejector(backbone(), ["Lighthouse", "Swimming_Pool", "zebra crossing"])
    assert other.words == plain.words
    assert not {"lighthouse", "swimming pool"} & set(other.words)
    assert torch.equal(other(features()), plain(features()))


def test_a_classifier_marks_unknown_images() -> None:
    values = Rejector(backbone(), NAMES, score="msp")(features()).tolist()
    between = (min(values) + max(values)) / 2
    classifier = Classifier(backbone(), "o-tpt", recipe=RECIPE, reject="msp", reject_threshold=between)
    plain = Classifier(backbone(), "o-tpt", recipe=RECIPE).set_classes(NAMES)
    classifier.set_classes(NAMES)
    seen = set()
    for i, value in enumerate(values):
        found, before = classifier.predict(image(i)), plain.predict(image(i))
        assert found.unknown == found.extras["unknown"] == value
        assert found.rejected == (REJECTED in found.flags) == (value > between)
        assert (found.confidence, found.label, before.rejected) == (before.confidence, before.label, False)
        assert np.isnan(before.unknown)
        seen.add(found.rejected)
    assert seen == {True, False}


def test_scores_are_named_or_left_to_the_default() -> None:
    assert Classifier(backbone(), reject=True)._task.reject == DEFAULT_SCORE
    assert Classifier(backbone(), reject=False)._task.reject is None
    with pytest.raises(OtptError, match=r"The score of unknown images is 0\.5; expected a name, such as 'word-margin'"):
        Classifier(backbone(), reject=0.5)


@pytest.mark.equality
def test_an_evaluation_says_what_the_classifier_says(tmp_path: Path) -> None:
    given = settings(methods=METHODS, reject="word-margin")
    result = evaluate(dataset(4), backbone(), given, out=tmp_path / "run")
    classifier = Classifier(backbone(), recipe=RECIPE, reject="word-margin").set_classes(NAMES)
    expected = [classifier.predict(image(i)) for i in range(4)]
    for method in METHODS:
        found = [row for row in rows(tmp_path / "run") if row["method"] == method]
        assert [row["unknown"] for row in found] == [each.unknown for each in expected]
        assert [REJECTED in row["flags"] for row in found] == [each.rejected for each in expected]
    assert result.run.config["numbers"]["reject"] == {"score": "word-margin", "above": 0.0}
    with pytest.raises(OtptError, match="another configuration"):
        evaluate(dataset(4), backbone(), settings(methods=METHODS), out=tmp_path / "run")


BAD = {
    ("--reject", "neg-lable"): "Unknown score of unknown images 'neg-lable'. Did you mean: neg-label",
    ("--reject", "energy"): "The score 'energy' has no threshold that means something without labels",
    ("--reject", "msp", "--reject-threshold", "nan"): "The threshold of 'msp' is nan; expected a finite number",
    ("--reject-threshold", "0.5"): "A threshold of unknown images was given without a score",
}


@pytest.mark.parametrize("options", BAD, ids=" ".join)
def test_bad_input(options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image(0).save(tmp_path / "a.png")
    given = ("predict", tmp_path / "a.png", "--classes", "cat", "dog", "--backbone", "pocket", "--device", "cpu")
    code, out, err = run(capsys, *given, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert BAD[options] in err


def test_predict_tells_of_an_image_that_fits_no_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image(0).save(tmp_path / "a.png")
    given = ("predict", tmp_path / "a.png", "--backbone", "pocket", "--device", "cpu", "--method", "zero-shot")
    given += ("--classes", "dentist", "accordion")
    code, out, _ = run(capsys, *given, "--reject", "msp", "--reject-threshold", "-1")
    assert code == 0
    assert "zero-shot *" in out
    assert "* rejected: the image probably shows none of the classes" in out
    code, out, _ = run(capsys, *given, "--reject", "--json")
    (row,) = map(json.loads, out.splitlines())
    assert row["rejected"] == (row["extras"]["unknown"] > 0)
    code, out, _ = run(capsys, *given, "--json")
    (row,) = map(json.loads, out.splitlines())
    assert row["rejected"] is False
    assert "unknown" not in row["extras"]


def test_a_word_about_a_threshold_that_rejects_most(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(20):
        image(i).save(tmp_path / f"{i:02}.png")
    given = (
        "predict",
        tmp_path,
        "--backbone",
        "pocket",
        "--device",
        "cpu",
        "--method",
        "zero-shot",
        "--classes",
        "cat",
        "dog",
    )
    code, _, err = run(capsys, *given, "--reject", "msp", "--reject-threshold", "-1")
    assert code == 0
    assert "otpt: note: 20 of 20 images are marked as none of the classes" in err
    assert "marked as none" not in run(capsys, *given, "--reject", "msp", "--reject-threshold", "2")[2]
    (tmp_path / "00.png").unlink()
    assert "marked as none" not in run(capsys, *given, "--reject", "msp", "--reject-threshold", "-1")[2], "too few"
