"""Methods of the field under ``evaluate``: texts with attributes, static prompts, regularisers on learned prompts."""

from __future__ import annotations

from pathlib import Path

import pytest
from oracles.runs.evaluation_bench import NAMES, RECIPE, backbone, dataset, image, image_number, rows, settings

from otpt import Classifier
from otpt.errors import OtptError
from otpt.evaluation import evaluate
from otpt.features import FeatureCache

pytestmark = pytest.mark.slow

ATTRIBUTES = {name: [f"small {i}", f"old {i}"] for i, name in enumerate(NAMES)}
METHODS = ["tca", "attributes", "attributes+o-tpt", "a-tpt", "soc+static", "zero-shot"]


@pytest.mark.equality
def test_an_evaluation_says_what_the_classifier_says(tmp_path: Path) -> None:
    """With a cache of features and gradients, filled by a first run and used by a second one."""
    given = settings(methods=METHODS, attributes=ATTRIBUTES)
    cache = FeatureCache(tmp_path / "cache")
    for name in ("first", "second"):
        evaluate(dataset(3), backbone(), given, out=tmp_path / name, cache=cache)
    found, again = (
        {(image_number(row), row["method"]): row["confidence"] for row in rows(tmp_path / name)}
        for name in ("first", "second")
    )
    assert found == again
    assert len(found) == 3 * len(METHODS)
    classifier = Classifier(backbone(), "tca", views=RECIPE).set_classes(NAMES, attributes=ATTRIBUTES)
    for i in range(3):
        answers = classifier.compare(image(i), METHODS)
        assert {name: answers[name].confidence for name in METHODS} == {name: found[i, name] for name in METHODS}
        assert len({found[i, name] for name in METHODS}) == len(METHODS), "each says something of its own"


def test_a_run_is_not_continued_with_other_attributes(tmp_path: Path) -> None:
    evaluate(dataset(2), backbone(), settings(methods=["attributes"], attributes=ATTRIBUTES), out=tmp_path / "run")
    other = {**ATTRIBUTES, NAMES[0]: ["small 0", "new 0"]}
    with pytest.raises(OtptError, match="attributes"):
        evaluate(dataset(2), backbone(), settings(methods=["attributes"], attributes=other), out=tmp_path / "run")
