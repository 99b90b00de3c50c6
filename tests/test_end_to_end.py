"""Every command that a first evaluation needs, in this process, on a few images with the embedded model; one service.

The evaluation is made once; the others read it. In ``make test-fast`` these cover ``cli``, ``evaluation``, ``report``
and ``serve``.
"""

from __future__ import annotations

import base64
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import otpt
from otpt.cli import main

CLASSES = ("circle", "square")
METHODS = ("zero-shot", "confident-half", "o-tpt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders with two noise images each."""
    root = tmp_path_factory.mktemp("shapes") / "shapes"
    for label, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for i in range(2):
            pixels = np.random.default_rng([label, i]).integers(0, 256, (48, 48, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one finished evaluation. Read only."""
    out = tmp_path_factory.mktemp("run") / "run"
    assert main(evaluation(folder, out)) == 0
    return out


def evaluation(folder: Path, out: Path) -> list[str]:
    options = ["--backbone", "pocket", "--views", "4", "--no-cache", "--device", "cpu"]
    return ["evaluate", str(folder), "--methods", *METHODS, *options, "--out", str(out)]


def test_evaluate_repeated_computes_nothing_again(run: Path, folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*.parquet")}
    assert main(evaluation(folder, run)) == 0
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*.parquet")}
    assert before


def test_predict_gives_what_the_evaluation_stored(run: Path, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "predictions.csv"
    images = [str(path) for path in sorted(folder.rglob("*.png"))]
    options = ["--classes", *CLASSES, "--backbone", "pocket", "--views", "4", "--method", "o-tpt", "--out", str(out)]
    assert main(["predict", *images, *options, "--device", "cpu"]) == 0
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    classifier = otpt.load("pocket", method="o-tpt", views=4, device="cpu").set_classes(CLASSES)
    expected = [classifier.predict(path).confidence for path in images]
    assert [float(row["confidence"]) for row in rows] == pytest.approx(expected, abs=1e-6)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    from fastapi.testclient import TestClient

    from otpt.serve import Limits, Service, create_app

    backbone = otpt.load("pocket", device="cpu").backbone
    service = Service({"pocket": backbone}, views=2, limits=Limits(images=2), method="zero-shot")
    with TestClient(create_app(service), base_url="http://127.0.0.1") as client:
        yield client


def test_service_predicts(client: Any, folder: Path) -> None:
    image = folder / "circle" / "0.png"
    body = {"image": base64.b64encode(image.read_bytes()).decode(), "labels": list(CLASSES)}
    answer = client.post("/v1/predict", json=body)
    assert answer.status_code == 200
    classifier = otpt.load("pocket", method="zero-shot", views=2, device="cpu")
    assert classifier.set_classes(CLASSES).predict(image).label in json.dumps(answer.json())


def test_service_refuses_what_it_cannot_read(client: Any) -> None:
    answer = client.post("/v1/predict", json={"image": base64.b64encode(b"no image").decode(), "labels": ["a", "b"]})
    assert answer.status_code == 422
