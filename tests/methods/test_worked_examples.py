"""The worked examples of CONTRIBUTING: an objective, an aggregation and a stream method, each one short file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"
METHODS = ("zero-shot", "tpt", "tpt+largest-cosine", "zero-shot+median-probability", "recent-classes")


def examples() -> list[str]:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [block for block in blocks if "@otpt." in block]


def test_each_is_at_most_fifteen_lines() -> None:
    assert len(examples()) == 3
    for block in examples():
        assert len([line for line in block.splitlines() if line.strip()]) <= 15


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them as plugins of one evaluation, in two processes."""
    folder = tmp_path_factory.mktemp("worked")
    plugins = []
    for number, block in enumerate(examples()):
        plugins.append(folder / f"own_{number}.py")
        plugins[-1].write_text(block, encoding="utf-8")
    for name in ("apple", "car"):
        (folder / "data" / name).mkdir(parents=True)
        for i in range(3):
            values = np.random.default_rng(3 * len(name) + i).integers(0, 256, (5, 7, 3), dtype=np.uint8)
            Image.fromarray(values).resize((70, 66), Image.Resampling.BICUBIC).save(folder / "data" / name / f"{i}.png")
    command = [sys.executable, "-m", "otpt.cli", "evaluate", str(folder / "data"), "--backbone", "pocket"]
    command += ["--device", "cpu", "--views", "8", "--shard-size", "2", "--workers", "2", "--no-cache", "--json"]
    command += [
        "--plugin",
        *map(str, plugins),
        "--methods",
        *METHODS,
        "--out",
        str(folder / "run"),
        "--save-probabilities",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {score["method"] for score in json.loads(done.stdout)["scores"]} == set(METHODS)
    return folder / "run"


def probabilities(run: Path, method: str) -> np.ndarray:
    rows = pq.read_table(next(run.glob(f"*/seed-0/{method}"))).to_pylist()
    return np.array([row["probabilities"] for row in sorted(rows, key=lambda row: row["index"])])


def test_they_do_something_of_their_own(run: Path) -> None:
    found = {method: probabilities(run, method) for method in METHODS}
    assert all(values.shape == (6, 2) for values in found.values())
    for own, base in (
        ("tpt+largest-cosine", "tpt"),
        ("zero-shot+median-probability", "zero-shot"),
        ("recent-classes", "zero-shot"),
    ):
        assert not np.allclose(found[own], found[base], atol=1e-6), own


def test_the_stream_is_what_its_formula_says(run: Path) -> None:
    """ℓ_c − log(n_c / mean n) in the order of the rows, n the counts of zero-shot's labels so far."""
    rows = pq.read_table(next(run.glob("*/seed-0/recent-classes"))).to_pylist()
    zero_shot = probabilities(run, "zero-shot")
    order = [row["index"] for path in sorted(next(run.glob("*/seed-0/recent-classes")).glob("*.parquet"))
             for row in pq.read_table(path).to_pylist()]  # fmt: skip
    assert sorted(order) == list(range(6))
    assert len(rows) == 6
    counts = np.ones(2)
    found = {row["index"]: row["probabilities"] for row in rows}
    for index in order:
        weighted = zero_shot[index] / (counts / counts.mean())
        np.testing.assert_allclose(found[index], weighted / weighted.sum(), atol=1e-5)
        counts[zero_shot[index].argmax()] += 1
