"""The training curve as an image: ``python -m training.curve training/results/curve.csv``."""

from __future__ import annotations

import csv
import shutil
import sys
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


def plot_curve(file: Path, folder: Path = RESULTS) -> None:
    """Keeps the run's CSV as ``curve.csv`` and draws ``curve.png`` beside it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with file.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    folder.mkdir(parents=True, exist_ok=True)
    if file.resolve() != (folder / "curve.csv").resolve():
        shutil.copyfile(file, folder / "curve.csv")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    left.plot([int(row["epoch"]) for row in rows], [float(row["loss"]) for row in rows])
    left.set(xlabel="epoch", ylabel="loss (other artists, augmented)")
    measured = [row for row in rows if row["openmoji_accuracy"]]
    for column, title in (
        ("train_accuracy", "other artists, augmented, all names"),
        ("openmoji_accuracy", "OpenMoji, mean of the eight sets"),
    ):
        right.plot([int(row["epoch"]) for row in measured], [float(row[column]) for row in measured], label=title)
    right.set(xlabel="epoch", ylabel="accuracy, %", ylim=(0, 100))
    right.legend()
    figure.savefig(folder / "curve.png", dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    plot_curve(Path(sys.argv[1]))
