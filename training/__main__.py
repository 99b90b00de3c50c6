"""Download, rasterise, train, export, evaluate: ``python -m training WORK`` (may be stopped and started again)."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

# Before torch is loaded: threads that wait must sleep, or a busy machine spends its time on waiting.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

from .artists import download
from .curve import plot_curve
from .evaluate import evaluate_package
from .export import export
from .names import write_classes
from .rasterise import rasterise_all
from .train import Recipe, train


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("work", type=Path, help="folder for downloads, drawings and checkpoints")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    work: Path = options.work
    download(work / "packages")
    write_classes(work / "packages")
    rasterise_all(work / "packages", work / "drawings.npz")
    train(work, Recipe())
    export(work)
    plot_curve(work / "run.csv")
    evaluate_package()


if __name__ == "__main__":
    main()
