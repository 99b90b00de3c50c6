"""How long commands take to start: processor time and wall time, best of three, beside those before imports were lazy.

python -m benchmarks.startup                      # add --source DIR for the package of another checkout (its src)
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

REPEATS = 3
RUN = "run"
MODEL = ("--backbone", "pocket", "--views", "8")
COMMANDS: dict[str, tuple[str, ...]] = {
    "--version": ("--version",),
    "--help": ("--help",),
    "datasets": ("datasets",),
    "models": ("models",),
    "methods": ("methods",),
    "a wrong option": ("evaluate", "--wrong"),
    "a wrong command": ("wrong",),
    "table": ("table", RUN),
    "compare": ("compare", RUN, "--a", "tpt", "--b", "zero-shot"),
    "metrics": ("metrics", RUN),
    "plot": ("plot", "reliability", RUN, "-o", "figure.png"),
    "report": ("report", RUN, "--images", "0"),
    "predict": ("predict", "image.png", "--classes", "apple", "dog", *MODEL),
}
TORCH = "python -c 'import torch'"
BEFORE: dict[str, float] = {
    "otpt --version": 10.27,
    "otpt --help": 9.76,
    "otpt datasets": 9.1,
    "otpt models": 10.07,
    "otpt methods": 9.67,
    "a wrong option": 10.86,
    "a wrong command": 10.83,
    "otpt table": 8.61,
    "otpt compare": 11.06,
    "otpt metrics": 9.64,
    "otpt plot": 12.01,
    "otpt report": 11.27,
    "otpt predict": 12.79,
    "predict without torch's import": 10.02,
}
"""Seconds of processor time at commit b414bd6, two cores of an AMD EPYC, one thread."""


def seconds(arguments: list[str], folder: Path, source: Path | None) -> tuple[float, float]:
    """Processor and wall time of a program, the best of three each."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **({} if source is None else {"PYTHONPATH": str(source)})}
    processor, wall = [], []
    for _ in range(REPEATS):
        start = time.perf_counter()
        process = os.posix_spawn(
            "/bin/sh", ["sh", "-c", 'cd "$0" && exec "$@" >/dev/null 2>&1', str(folder), *arguments], variables
        )
        usage = os.wait4(process, 0)[2]
        wall.append(time.perf_counter() - start)
        processor.append(usage.ru_utime + usage.ru_stime)
    return min(processor), min(wall)


def run(source: Path | None = None) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Image.new("RGB", (64, 64), (200, 50, 20)).save(folder / "image.png")
        otpt = [sys.executable, "-m", "otpt.cli"]
        data = ("emoji/food", "--limit", "40", "--methods", "zero-shot", "tpt", "--no-cache", "--out", RUN)
        seconds([*otpt, "evaluate", *data, *MODEL], folder, source)
        print(f"{'seconds':<32} {'processor':>9} {'wall':>6} {'processor before':>17}")
        torch = seconds([sys.executable, "-c", "import torch"], folder, source)
        _print(TORCH, torch)
        for title, arguments in COMMANDS.items():
            found = seconds([*otpt, *arguments], folder, source)
            _print(f"otpt {title}" if title in arguments else title, found)
        _print("predict without torch's import", (found[0] - torch[0], found[1] - torch[1]))


def _print(title: str, found: tuple[float, float]) -> None:
    before = f"{BEFORE[title]:17.2f}" if title in BEFORE else f"{'–':>17}"
    print(f"{title:<32} {found[0]:9.2f} {found[1]:6.2f} {before}", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, help="folder that holds the package otpt to measure")
    run(parser.parse_args().source)


if __name__ == "__main__":
    main()
