"""Labels for Ray Data: bytes, paths and arrays give the predictions of a classifier, bad images an error."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles.models.tiny import open_clip_local_dir
from PIL import Image

import otpt
from otpt.errors import OtptError
from otpt.ray import Classify

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
