"""The images that the page shows: which ones, and that they are the run's own."""

from __future__ import annotations

import base64
import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from oracles.command import run
from oracles.pages.html_pages import Reader
from oracles.runs.figure_bench import NAMES, Bench
from oracles.runs.simulated_runs import simulate_run, simulated_dataset
from PIL import Image

from otpt.evaluation import Settings
from otpt.report import ResultKey, open_results
from otpt.report.page import make_page
from otpt.report.page.images import choose_images

pytestmark = pytest.mark.slow


def test_images_worth_looking_at(bench: Bench) -> None:
    results = bench.results()
    rows = {m: results.rows(ResultKey("first", 0, "a photo of a", m)) for m in results.methods}
    asked: list[int] = []
    disagreements, mistakes = choose_images(rows, NAMES, lambda index: str(asked.append(index)), 4)
    first = rows["tpt"]
    surest_wrong = {
        first.ids[i]: max([float(r.confidences[i]) for r in rows.values() if not r.correct[i]], default=0.0)
        for i in range(len(first))
    }
    assert [p.name for p in mistakes] == sorted(surest_wrong, key=lambda name: -surest_wrong[name])[:4]
    conflict = {}
    for i in range(len(first)):
        pairs = [(a, b) for a in rows.values() for b in rows.values() if a.predictions[i] != b.predictions[i]]
        conflict[first.ids[i]] = max([min(a.confidences[i], b.confidences[i]) for a, b in pairs], default=0.0)
    expected = [name for name in sorted(conflict, key=lambda name: -conflict[name]) if conflict[name] > 0][:4]
    assert expected
    assert [p.name for p in disagreements] == expected
    for image in mistakes:
        i = first.ids.index(image.name)
        assert image.label == NAMES[first.labels[i]]
        for answer in image.answers:
            assert answer.label == NAMES[rows[answer.method].predictions[i]]
            assert answer.correct == (answer.label == image.label)


def test_thumbnails_are_the_very_images(bench: Bench) -> None:
    page = Reader(make_page(bench.results(), root=bench.data, images=3))
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(images) >= 3 * 3
    assert all(image["alt"].startswith("Test image, class ") for image in images)
    decoded = base64.b64decode(str(images[0]["src"]).removeprefix("data:image/jpeg;base64,"))
    found = np.asarray(Image.open(io.BytesIO(decoded)).convert("RGB"), float)
    originals = [np.asarray(Image.open(path), float) for path in bench.data.rglob("*.png")]
    assert min(np.abs(found - original).mean() for original in originals) < 8
    assert "<img" in make_page(bench.results(), images=3), "the run knows where its own folders are"


def test_images_of_other_data_are_not_shown(bench: Bench, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    own = shutil.copytree(bench.data / "first", tmp_path / "first")
    few = ("--methods", "zero-shot", "--backbone", bench.model, "--views", 4, "--no-cache", "--device", "cpu")
    assert run(capsys, "evaluate", own, *few, "--out", tmp_path / "run")[0] == 0
    for path in own.rglob("*.png"):
        path.rename(path.with_name(f"other-{path.name}"))
    page = make_page(open_results([tmp_path / "run"]))
    assert "<img" not in page
    assert "are not those that the run saw" in page


def test_nothing_is_fetched_for_thumbnails(tmp_path: Path) -> None:
    folder = simulate_run(tmp_path / "run", [simulated_dataset("hf:owner/name", 3, 4)], Settings(methods=("tpt",)))
    assert "they are on the Hugging Face hub" in make_page(open_results([folder]))
