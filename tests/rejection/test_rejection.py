"""Unknown images: scores against numpy and scipy; the rejector, the classifier, an evaluation, the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from oracles.command import run
from oracles.runs.evaluation_bench import NAMES, RECIPE, backbone, dataset, image, rows, settings
from scipy import special

from otpt import Classifier, OtptError
from otpt.evaluation import evaluate
from otpt.methods.state import prompt_state
from otpt.rejection import REJECTED, SCORES, Rejector, furthest_first, negative_words

COSINES = np.random.default_rng(0).uniform(-0.2, 0.4, (5, 7))
LOGITS = 100 * COSINES
WORDS = np.random.default_rng(1).uniform(-0.2, 0.4, (5, 21))


def value(name: str, *given: np.ndarray) -> np.ndarray:
    found: np.ndarray = SCORES[name].function(*map(torch.from_numpy, given)).numpy()
    return found


def test_scores_of_cosines_and_probabilities() -> None:
    shares = special.softmax(LOGITS, axis=1)
    np.testing.assert_allclose(value("msp", shares), 1 - shares.max(axis=1))
    np.testing.assert_allclose(value("energy", LOGITS), -special.logsumexp(LOGITS, axis=1))


def test_word_margin_literally() -> None:
    expected = [np.mean(sorted(words)[-10:]) - max(own) for own, words in zip(COSINES, WORDS, strict=True)]
    np.testing.assert_allclose(value("word-margin", COSINES, WORDS), expected)


def test_the_words_come_furthest_first() -> None:
    rng = np.random.default_rng(2)
    words, classes = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in rng.normal(size=(2, 40, 8)))
    near = [np.quantile([float(word @ each) for each in classes], 0.95) for word in words]
    expected = sorted(range(40), key=near.__getitem__)
    assert furthest_first(torch.from_numpy(words), torch.from_numpy(classes)).tolist() == expected


def test_the_list_of_words() -> None:
    words = negative_words()
    assert len(words) > 900
    assert len(set(words)) == len(words)
    assert list(words) == sorted(words)
    assert all(word == word.strip() and word for word in words)


METHODS = ["zero-shot", "o-tpt"]


def features(count: int = 4) -> torch.Tensor:
    classifier = Classifier(backbone(), views=RECIPE)
    return torch.stack([classifier.encode_views(image(i))[0] for i in range(count)])


@pytest.mark.slow
@pytest.mark.equality
def test_the_texts_are_those_of_zero_shot_and_no_image_depends_on_its_neighbours() -> None:
    own = features()
    text = prompt_state(backbone(), NAMES)
    cosines = (own @ text.text_features.mT).double().numpy()
    logits = backbone().logit_scale * cosines + backbone().logit_bias
    rejector = Rejector(backbone(), NAMES, score="energy", threshold=0.5)
    np.testing.assert_allclose(rejector(own).numpy(), -special.logsumexp(logits, axis=1), rtol=1e-5)
    for name in SCORES:
        rejector = Rejector(backbone(), NAMES, score=name, threshold=0.0)
        together = rejector(own)
        assert torch.equal(together, torch.cat([rejector(each[None]) for each in own]))


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_spelling_of_a_class_does_not_make_it_one_of_the_words() -> None:
    plain = Rejector(backbone(), ["lighthouse", "swimming pool", "zebra crossing"])
    other = Rejector(backbone(), ["Lighthouse", "Swimming_Pool", "zebra crossing"])
    assert other.words == plain.words
    assert not {"lighthouse", "swimming pool"} & set(other.words)
    assert torch.equal(other(features()), plain(features()))


@pytest.mark.slow
def test_a_classifier_marks_unknown_images() -> None:
    values = Rejector(backbone(), NAMES, score="msp")(features()).tolist()
    between = (min(values) + max(values)) / 2
    classifier = Classifier(backbone(), method="o-tpt", views=RECIPE, reject="msp", reject_threshold=between)
    plain = Classifier(backbone(), method="o-tpt", views=RECIPE).set_classes(NAMES)
    classifier.set_classes(NAMES)
    seen = set()
    for i, value in enumerate(values):
        found, before = classifier.predict(image(i)), plain.predict(image(i))
        assert found.unknown_score == pytest.approx(value, abs=1e-6)
        assert found.rejected == (REJECTED in found.flags) == (found.unknown_score > between)
        assert (found.confidence, found.label, before.rejected) == (before.confidence, before.label, None)
        assert np.isnan(before.unknown_score)
        seen.add(found.rejected)
    assert seen == {True, False}


@pytest.mark.slow
@pytest.mark.equality
def test_an_evaluation_says_what_the_classifier_says(tmp_path: Path) -> None:
    given = settings(methods=METHODS, reject="word-margin")
    evaluate(dataset(4), backbone(), given, out=tmp_path / "run")
    classifier = Classifier(backbone(), views=RECIPE, reject="word-margin").set_classes(NAMES)
    expected = [classifier.predict(image(i)) for i in range(4)]
    for method in METHODS:
        found = [row for row in rows(tmp_path / "run") if row["method"] == method]
        assert [row["unknown_score"] for row in found] == pytest.approx([e.unknown_score for e in expected], abs=1e-6)
        assert [REJECTED in row["flags"] for row in found] == [each.rejected for each in expected]
    with pytest.raises(OtptError):  # another configuration
        evaluate(dataset(4), backbone(), settings(methods=METHODS), out=tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"reject": "word-margni"}, "word-margin"),
        ({"reject": "neg-label"}, "neg-label"),  # a score of earlier versions
        ({"reject": "energy"}, "energy"),
        ({"reject": "msp", "reject_threshold": float("nan")}, "nan"),
        ({"reject_threshold": 0.5}, "score"),
    ],
)
def test_bad_input(options: dict[str, object], value: str) -> None:
    with pytest.raises(OtptError, match=value):
        Classifier(backbone(), **options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_rejected_in_json_only_where_it_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image(0).save(tmp_path / "a.png")
    given = ("predict", tmp_path / "a.png", "--backbone", "pocket", "--device", "cpu", "--method", "zero-shot")
    given += ("--classes", "dentist", "accordion", "--json")
    code, out, _ = run(capsys, *given, "--reject", "msp", "--reject-threshold", "-1")
    assert code == 0
    assert json.loads(out.splitlines()[0])["rejected"] is True
    code, out, _ = run(capsys, *given)
    assert not json.loads(out.splitlines()[0]).get("rejected")
