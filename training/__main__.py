"""Download, rasterise, train, export, evaluate: ``python -m training WORK`` (may be stopped and started again)."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

# Before torch is loaded: threads that wait must sleep, or a busy machine spends its time on waiting.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from otpt.cli import main as otpt
from otpt.data.emoji import GROUPS, SHIFTS

from .artists import download
from .export import export
from .names import write_classes
from .rasterise import rasterise_all
from .train import Recipe, train


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("work", type=Path, help="folder for downloads, drawings and checkpoints")
    parser.add_argument("--processes", type=int, default=2, help="that learn together, of one thread each")
    options = parser.parse_args()
    work: Path = options.work
    download(work / "packages")
    write_classes(work / "packages")
    rasterise_all(work / "packages", work / "drawings.npz")
    train(work, Recipe(), count=options.processes)
    export(work)
    sets = [f"emoji/{name}" for name in GROUPS + SHIFTS]
    command = ["evaluate", *sets, "--backbone", "pocket", "--methods", "zero-shot", "--out", str(work / "zero-shot")]
    raise SystemExit(otpt(command))


if __name__ == "__main__":
    main()
