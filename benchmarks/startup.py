"""Processor and wall seconds of commands, best of three: ``python -m benchmarks.startup [--source DIR]``.

``--source`` measures the package of another checkout (its ``src``).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

ROUNDS = 3
MODEL = ("--backbone", "pocket", "--views", "8")
COMMANDS: dict[str, tuple[str, ...]] = {
    "--version": ("--version",),
    "--help": ("--help",),
    "predict --help": ("predict", "--help"),
    "a wrong option": ("evaluate", "--wrong"),
    "a wrong command": ("wrong",),
    "datasets": ("datasets",),
    "models": ("models",),
    "methods": ("methods",),
    "table": ("table", "run"),
    "compare": ("compare", "run", "--a", "tpt", "--b", "zero-shot"),
    "plot": ("plot", "reliability", "run", "--out", "figure.png"),
    "report": ("report", "run"),
    "predict": ("predict", "image.png", "--classes", "apple", "dog", *MODEL),
}


def seconds(arguments: list[str], folder: Path, source: Path | None) -> tuple[float, float]:
    """Processor and wall seconds of a program, the best of three each."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **({} if source is None else {"PYTHONPATH": str(source)})}
    processor, wall = [], []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        shell = ["sh", "-c", 'cd "$0" && exec "$@" >/dev/null 2>&1', str(folder), *arguments]
        usage = os.wait4(os.posix_spawn("/bin/sh", shell, variables), 0)[2]
        wall.append(time.perf_counter() - start)
        processor.append(usage.ru_utime + usage.ru_stime)
    return min(processor), min(wall)


def run(source: Path | None = None) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Image.new("RGB", (64, 64), (200, 50, 20)).save(folder / "image.png")
        otpt = [sys.executable, "-m", "otpt"]
        data = ("emoji/food", "--limit", "40", "--methods", "zero-shot", "tpt", "--no-cache", "--out", "run")
        seconds([*otpt, "evaluate", *data, *MODEL], folder, source)
        print(f"{'seconds':<24} {'processor':>9} {'wall':>6}")
        programs = {"python -c 'import torch'": [sys.executable, "-c", "import torch"]}
        programs |= {title: [*otpt, *arguments] for title, arguments in COMMANDS.items()}
        for title, arguments in programs.items():
            processor, wall = seconds(arguments, folder, source)
            print(f"{title:<24} {processor:9.2f} {wall:6.2f}", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, help="folder that holds the package otpt to measure")
    run(parser.parse_args().source)


if __name__ == "__main__":
    main()
