"""Labels for Ray Data: bytes, paths and arrays give the predictions of a classifier, bad images an error."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles.command import run
from oracles.models.tiny import open_clip_local_dir
from PIL import Image

import otpt
from otpt.errors import OtptError
from otpt_ray import Classify

CLASSES = ["cat", "dog", "ram"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    open_clip_local_dir(folder)
    return f"local-dir:{folder}"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("images")
    found = [folder / f"{i}.png" for i in range(4)]
    for i, path in enumerate(found):
        Image.fromarray(np.random.default_rng(i).integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    return found


def batches(files: list[Path]) -> dict[str, dict[str, Any]]:
    return {
        "bytes": {"bytes": np.array([path.read_bytes() for path in files], object), "n": np.arange(4)},
        "path": {"path": np.array([str(path) for path in files], object), "n": np.arange(4)},
        "arrays": {"image": np.stack([np.asarray(Image.open(path)) for path in files]), "n": np.arange(4)},
    }


@pytest.mark.parametrize("form", ["bytes", "path", "arrays"])
def test_any_form_of_images(form: str, model: str, files: list[Path]) -> None:
    classify = pickle.loads(pickle.dumps(Classify(model, CLASSES, "zero-shot", reject=True)))
    found = classify(batches(files)[form])
    expected = otpt.load(model, "zero-shot", classes=CLASSES).predict(files)
    assert list(found["label"]) == [each.label for each in expected]
    np.testing.assert_allclose(found["confidence"], [each.confidence for each in expected], rtol=1e-5)
    assert list(found["n"]) == [0, 1, 2, 3]
    assert set(found) == {"n", "label", "confidence", "rejected", "error"} | ({"path"} if form == "path" else set())


def test_bad_images_and_bad_input(model: str, files: list[Path]) -> None:
    classify = Classify(model, CLASSES, "zero-shot")
    found = classify({"bytes": [files[0].read_bytes(), b"no image", b""]})
    assert [bool(each) for each in found["error"]] == [False, True, True]
    assert list(found["label"][1:]) == [None, None]
    with pytest.raises(OtptError, match="picture"):
        classify({"picture": []})
    with pytest.raises(OtptError, match="no-method"):
        Classify(model, CLASSES, "no-method")
    with pytest.raises(OtptError, match="tda"):  # a stream, whose batches would reach several workers
        Classify(model, CLASSES, "tda")


@pytest.mark.long
def test_on_ray_data(model: str, files: list[Path], tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    (tmp_path / "bad.png").write_bytes(b"no image")
    ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20, log_to_driver=False)
    try:
        data = ray.data.read_binary_files([*map(str, files), str(tmp_path / "bad.png")], include_paths=True)
        rows = data.map_batches(
            Classify, fn_constructor_args=(model, CLASSES, "zero-shot"), batch_size=2, concurrency=1
        ).take_all()
    finally:
        ray.shutdown()
    expected = otpt.load(model, "zero-shot", classes=CLASSES).predict(files)
    found = {row["path"]: row["label"] for row in rows}
    assert [found[str(path)] for path in files] == [each.label for each in expected]
    assert [row["path"] for row in rows if row["error"]] == [str(tmp_path / "bad.png")]


QUESTIONS: dict[str, dict[str, Any]] = {
    "several labels": {"multi_label": True},
    "one label": {"classes": CLASSES[:1]},
    "groups": {"method": "zero-shot", "groups": {"pet": CLASSES[:2]}},
    "examples": {"classes": (), "examples": True},
}


@pytest.fixture
def given(files: list[Path], tmp_path: Path) -> dict[str, tuple[dict[str, Any], tuple[object, ...]]]:
    """Each question as options of Python and of the command line."""
    (tmp_path / "groups.csv").write_text("cat,pet\ndog,pet\n")
    for name, own in (("a", files[:2]), ("b", files[2:])):
        (tmp_path / "examples" / name).mkdir(parents=True)
        for path in own:
            shutil.copy(path, tmp_path / "examples" / name)
    groups = {"method": "zero-shot", "classes": CLASSES, "groups": tmp_path / "groups.csv"}
    words = ("--classes", *CLASSES, "--methods", "zero-shot", "--groups", tmp_path / "groups.csv")
    return {
        "several labels": ({"classes": CLASSES, "multi_label": True}, ("--classes", *CLASSES, "--multi-label")),
        "one label": ({"classes": CLASSES[:1]}, ("--classes", CLASSES[0])),
        "groups": (groups, words),
        "examples": ({"examples": tmp_path / "examples"}, ("--examples", tmp_path / "examples")),
    }


QUESTIONS = ("several labels", "one label", "groups", "examples")
WARNINGS = pytest.mark.filterwarnings("ignore:The probability that", "ignore::DeprecationWarning")


@pytest.mark.long
@WARNINGS
def test_other_questions_on_ray_data(files: list[Path], given: dict[str, Any]) -> None:
    ray = pytest.importorskip("ray")
    ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20, log_to_driver=False)
    try:
        for question in QUESTIONS:
            options, _ = given[question]
            expected = otpt.load("pocket", **options).predict(files)
            data = ray.data.read_binary_files([str(path) for path in files], include_paths=True)
            arguments = {"backbone": "pocket", **options}
            rows = data.map_batches(Classify, fn_constructor_kwargs=arguments, batch_size=4, concurrency=1).take_all()
            found = {row["path"]: row for row in rows}
            for path, own in zip(files, expected, strict=True):
                row = found[str(path)]
                assert (row["label"], row["error"]) == (own.label, ""), question
                assert row["confidence"] == pytest.approx(own.confidence, abs=1e-5)
                assert list(row.get("labels", own.labels_above())) == own.labels_above()
                assert row.get("group_probabilities", own.groups) == pytest.approx(own.groups)
    finally:
        ray.shutdown()


@pytest.mark.long
@WARNINGS
@pytest.mark.parametrize("question", QUESTIONS)
def test_other_questions_on_ray_actors(
    question: str, files: list[Path], given: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray")
    options, words = given[question]
    expected = otpt.load("pocket", **options).predict(files)
    code, out, err = run(capsys, "predict", *files, *words, "--backbone", "pocket", "--engine", "ray", "--json")
    assert code == 0, err
    found = [json.loads(line) for line in out.splitlines()]
    assert [each["label"] for each in found] == [each.label for each in expected]
    assert found[0].get("groups") == pytest.approx(expected[0].groups, abs=1e-5)
