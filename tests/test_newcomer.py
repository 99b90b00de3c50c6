"""What somebody tried in the first days, and how it answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import otpt
from otpt.data import as_dataset, load_dataset
from otpt.evaluation import Evaluation, evaluate
from otpt.serve.errors import invalid_field
from otpt.serve.schemas import FIELDS, REFUSED


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty images of two classes, without a logit scale."""
    draw = np.random.default_rng(0)
    arrays = {"features": draw.normal(size=(20, 8)), "text_features": draw.normal(size=(2, 8))}
    path = tmp_path_factory.mktemp("features") / "f.npz"
    np.savez(path, **arrays, labels=draw.integers(0, 2, 20), class_names=["cat", "dog"])
    return path


def test_a_missing_logit_scale_is_noted(features: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    with pytest.warns(UserWarning, match="logit_scale"):
        load_dataset(str(features))
    recwarn.clear()
    with np.load(features) as arrays:
        np.savez(tmp_path / "scaled.npz", **arrays, logit_scale=50.0)
    load_dataset(str(tmp_path / "scaled.npz"))
    assert not recwarn


@pytest.mark.filterwarnings("ignore:.*logit_scale")
def test_evaluate_takes_fields_of_its_settings(features: Path, tmp_path: Path) -> None:
    data = load_dataset(str(features))
    result = evaluate(data, None, methods=["zero-shot"], limit=10, out=tmp_path / "run")
    assert (result.frame["method"].tolist(), result.frame["images"].tolist()) == (["zero-shot"], [10])
    with pytest.raises(otpt.OtptError, match="methods"):
        evaluate(data, None, Evaluation(), methods=["zero-shot"], out=tmp_path / "other")


def test_one_split_of_a_dictionary_is_asked_for() -> None:
    with pytest.raises(otpt.OtptError, match=r"data\['test'\]"):
        as_dataset({"train": None, "test": None})


def test_pipeline_takes_their_arguments() -> None:
    classify = otpt.pipeline(model="pocket", device=-1, torch_dtype=torch.float32, method="zero-shot")
    image = np.zeros((32, 32, 3), np.uint8)
    plain = classify(image, candidate_labels=["cat", "dog"])
    assert classify(image, candidate_labels=["cat", "dog"], batch_size=8, num_workers=2, timeout=3.0) == plain
    assert otpt.pipeline(model="pocket", dtype="bfloat16").classifier.backbone.precision == "bf16"
    with pytest.raises(otpt.OtptError, match="int8"):
        otpt.pipeline(model="pocket", dtype="int8")


def test_a_calibration_prints_one_line() -> None:
    clf = otpt.load("pocket", "zero-shot", device="cpu").set_classes(["cat", "dog"])
    draw = np.random.default_rng(0)
    images = [draw.integers(0, 256, (32, 32, 3), dtype=np.uint8) for _ in range(20)]
    found = clf.calibrate(images, ["cat", "dog"] * 10)
    assert str(found) == repr(found)
    assert len(str(found)) < 120


def test_the_service_names_its_word_for_candidate_labels() -> None:
    error = {"type": "extra_forbidden", "loc": ("body", "candidate_labels"), "msg": "Extra", "input": []}
    assert "'labels'" in invalid_field(error, FIELDS, REFUSED).content["error"]["hint"]


@pytest.mark.parametrize("module", [otpt.data, otpt.functional, otpt.metrics], ids=lambda module: module.__name__)
def test_completion_offers_public_names_only(module: object) -> None:
    assert sorted(dir(module)) == sorted(module.__all__)  # type: ignore[attr-defined]
