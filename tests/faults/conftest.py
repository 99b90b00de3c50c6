"""A small evaluation by the command line, as it ends when nothing disturbs it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from faults.processes import run
from PIL import Image

from otpt.cli import main
from otpt.runs import Run

CASES = int(os.environ.get("OTPT_FAULT_CASES", "12"))
"""Cases of each kind of fault."""


@dataclass(frozen=True)
class Evaluation:
    """An evaluation to disturb.

    Attributes:
        rows: of an undisturbed run.
        seconds: that an undisturbed run takes.
    """

    images: Path
    rows: pd.DataFrame
    seconds: float

    def command(self, folder: Path, methods: Sequence[str] = ("zero-shot", "tda")) -> list[str]:
        options = ["--methods", *methods, "--views", "8", "--seeds", "0", "1", "--shard-size", "2", "--device", "cpu"]
        places = ["--out", str(folder / "run"), "--cache", str(folder / "cache")]
        return ["evaluate", str(self.images), "--backbone", "pocket", *options, *places]

    def check(self, folder: Path) -> None:
        """Resume the run undisturbed; its rows must be those of a run that was never disturbed."""
        ended = run(lambda: main(self.command(folder)), folder / "resumed.txt")
        assert ended.code == 0, ended.printed
        pd.testing.assert_frame_equal(rows(folder / "run"), self.rows)
        assert not list((folder / "run").rglob("*.tmp*"))


def rows(folder: Path) -> pd.DataFrame:
    """All rows of a run in a fixed order; as any reader of Parquet sees them, too."""
    keys = ["dataset", "seed", "method", "id"]
    found = Run(folder).to_pandas().sort_values(keys, ignore_index=True)
    pd.testing.assert_frame_equal(
        pd.read_parquet(folder / "rows").sort_values(keys, ignore_index=True), found, check_like=True
    )
    return found


@pytest.fixture(scope="session")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("faults")
    for i in range(12):
        folder = root / "images" / f"class {i % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(i).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    made = Evaluation(root / "images", pd.DataFrame(), 0)
    assert main(made.command(root / "warm-up")) == 0
    started = time.monotonic()
    ended = run(lambda: main(made.command(root / "whole")), root / "whole.txt")
    assert ended.code == 0, ended.printed
    return Evaluation(made.images, rows(root / "whole" / "run"), time.monotonic() - started)
