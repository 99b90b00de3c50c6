"""Predictions that are killed at random moments, again and again: the rows are those of an unbroken one."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
from faults.processes import start, wait
from oracles.models.tiny import open_clip_local_dir
from PIL import Image

from otpt.bulk import store
from otpt.cli import main

pytestmark = [pytest.mark.long, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]

KILLS = int(os.environ.get("OTPT_FAULT_KILLS", "30"))
IMAGES = int(os.environ.get("OTPT_FAULT_IMAGES", "500"))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], pd.DataFrame]:
    """A command without its output, and its rows."""
    root = tmp_path_factory.mktemp("bulk")
    open_clip_local_dir(root / "model")
    (root / "images").mkdir()
    for i in range(IMAGES):
        pixels = np.random.default_rng(i).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "images" / f"{i}.png")
    (root / "images" / "77.png").write_bytes(b"no image")
    command = ["predict", str(root / "images"), "--backbone", f"local-dir:{root / 'model'}", "--classes", "cat", "dog"]
    command += ["--methods", "zero-shot", "tpt", "--views", "4", "--device", "cpu"]
    assert main([*command, "-o", str(root / "whole.parquet")]) == 2
    return command, pd.read_parquet(root / "whole.parquet")


FLUSHING = """
import sys
from otpt.bulk import store
from otpt.cli import main
store.FLUSH_SECONDS = 0.2
sys.exit(main())
"""
OUTPUTS = ("p.csv", "p.jsonl", "p.parquet", "folder")


def check(out: Path, expected: pd.DataFrame, kills: int) -> None:
    if out.suffix == ".jsonl":
        found = pd.read_json(out, lines=True, dtype=False)
    else:
        found = pd.read_csv(out) if out.suffix == ".csv" else pd.read_parquet(out)
    print(f"{out.name}: {kills} kills, {len(found)} rows of {found['image'].nunique()} images")
    assert list(found["image"]) == list(expected["image"])
    for name in ("method", "label", "error"):
        assert list(found[name].fillna("")) == list(expected[name].fillna(""))
    np.testing.assert_allclose(found["confidence"], expected["confidence"], rtol=1e-12)


@pytest.mark.parametrize("name", OUTPUTS)
def test_one_process(
    name: str, job: tuple[list[str], pd.DataFrame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "FLUSH_SECONDS", 0.02)
    command, expected = job
    chosen, out, kills = random.Random(name), tmp_path / name, 0
    for _ in range(KILLS):
        child = start(lambda: main([*command, "-o", str(out)]), tmp_path / "printed.txt")
        time.sleep(1.2 * chosen.random() ** 2)
        os.kill(child, signal.SIGKILL)
        code = wait(child, tmp_path / "printed.txt").code
        assert code in (2, -signal.SIGKILL)
        kills += code == -signal.SIGKILL
    assert main([*command, "-o", str(out)]) == 2
    assert kills
    check(out, expected, kills)


def run(command: list[str], out: Path) -> subprocess.Popen[bytes]:
    roots = os.pathsep.join(str(folder) for folder in (Path(__file__).parents[2] / "src", Path(__file__).parents[1]))
    with (out.parent / "printed.txt").open("ab") as printed:
        return subprocess.Popen(
            [sys.executable, "-c", FLUSHING, *command, "-o", str(out)],
            stdout=printed,
            stderr=printed,
            env={**os.environ, "PYTHONPATH": roots},
        )


def written(out: Path) -> int:
    """Number of images of which the rows are flushed."""
    state = out.parent / f"{out.name}.job.json"
    return int(json.loads(state.read_text(encoding="utf-8"))["done"]) if state.exists() else 0


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("kind", ["processes", "driver"])
def test_several_processes(kind: str, name: str, job: tuple[list[str], pd.DataFrame], tmp_path: Path) -> None:
    """The command or one of its workers is killed at any moment, and repeated; a finished one begins again."""
    command, expected = job
    command = [*command, *(["--workers", "2"] if kind == "processes" else ["--engine", "ray"])]
    chosen, kills, unfinished, runs = random.Random(kind + name), 0, 0, 0
    counts: list[int] = []
    while kills < -(-KILLS // len(OUTPUTS)) or unfinished:
        out = tmp_path / str(runs) / name
        out.parent.mkdir(exist_ok=True)
        process = run(command, out)
        if kills < -(-KILLS // len(OUTPUTS)):
            before, new_rows = written(out), kills % 4 > 0  # every fourth kill may come while the command starts
            while new_rows and process.poll() is None and written(out) == before:
                time.sleep(0.05)
            time.sleep((1 if new_rows else 10) * chosen.random())
            if process.poll() is None:
                victims = [psutil.Process(process.pid)]
                if kind == "processes":
                    victims += [child for child in victims[0].children() if "spawn_main" in " ".join(child.cmdline())]
                with suppress(psutil.NoSuchProcess):  # a worker that has just ended by itself
                    chosen.choice(victims).kill()
                    counts.append(written(out))
                    code, kills, unfinished = process.wait(300), kills + 1, unfinished + 1
                    assert code in (2, -signal.SIGKILL)
                    continue
        assert process.wait(300) == 2, (out.parent / "printed.txt").read_text(encoding="utf-8")
        check(out, expected, unfinished)
        unfinished, runs = 0, runs + 1
    print(f"{kind}, {name}: {kills} kills in {runs} runs, images written at each: {counts}")
    assert any(0 < count < IMAGES for count in counts), "no kill came between rows"


def test_actors(job: tuple[list[str], pd.DataFrame], tmp_path: Path) -> None:
    """An actor of Ray is killed whenever new rows are written; the command goes on."""
    command, expected = job
    out = tmp_path / "p.parquet"
    process = run([*command, "--engine", "ray", "--ray-actors", "1", "2"], out)
    kills, chosen, before = 0, random.Random(0), ""
    while process.poll() is None and kills < KILLS:
        time.sleep(0.5 + chosen.random())
        written = str(sorted(path.name for path in tmp_path.rglob("part-*")))
        if written == before or process.poll() is not None:  # nothing new since the last kill
            continue
        actors = [each for each in psutil.Process(process.pid).children(recursive=True) if "WorkerHost" in each.name()]
        if actors:
            chosen.choice(actors).kill()
            kills, before = kills + 1, written
    assert process.wait(300) == 2, (tmp_path / "printed.txt").read_text(encoding="utf-8")
    assert kills
    check(out, expected, kills)
