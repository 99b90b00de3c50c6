"""Whole evaluations by the command line: ``python -m benchmarks.evaluation [--quick]``.

- one pass of one, seven and twenty methods; a further method from a warm cache against the first pass;
- seconds per image against the number of classes, views and methods;
- peak memory and seconds against the number of images.

Architectures are real, weights are random, images are synthetic photographs. Each number is the difference between an
evaluation of many and of few images in processes of their own, so that loading the model does not count.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.engine import class_names, photograph

SEVEN = ("o-tpt", "zero-shot", "tpt", "c-tpt", "o-tpt+c-tpt", "tpt+ts", "tpt+sals")
LIGHT = ("zero-shot+weak-strong", "zero-shot+se", "zero", "mta", "tps", "reliability", "mean-probability")
TWENTY = (*SEVEN, *LIGHT, "a-tpt", "soc", "tpt+cots", "tpt+e-cots", "use", "r-tpt")
FEW = 2


def make_data(folder: Path, images: int, classes: int) -> Path:
    """A CSV of photographs, each of another class in turn."""
    folder.mkdir(parents=True)
    names = list(dict.fromkeys(name.replace(",", "") for name in class_names(1000)))[:classes]
    (folder / "classes.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    lines = ["path,label"]
    for i in range(images):
        photograph(i).save(folder / f"{i}.jpg")
        lines.append(f"{i}.jpg,{names[i % classes]}")
    (folder / "data.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "data.csv"


class Bench:
    """A folder of photographs and the evaluations of them."""

    def __init__(self, folder: Path, backbone: str, images: int) -> None:
        self.folder, self.backbone, self.images = folder, backbone, images
        self._data: dict[int, Path] = {}

    def evaluate(
        self, images: int, classes: int, views: int, methods: Sequence[str], cache: str
    ) -> tuple[float, float]:
        """Seconds and peak memory (MiB) of one command."""
        if classes not in self._data:
            self._data[classes] = make_data(self.folder / f"data-{classes}", self.images + FEW, classes)
        command = [sys.executable, "-m", "otpt", "evaluate", str(self._data[classes]), "--backbone", self.backbone]
        command += ["--methods", *methods, "--views", str(views), "--limit", str(images), "--device", "cpu"]
        command += ["--cache", str(self.folder / cache)] if cache else ["--no-cache"]
        with tempfile.TemporaryDirectory() as out:
            start = time.perf_counter()
            child = subprocess.Popen([*command, "--out", f"{out}/run"], stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(child.pid, 0)
            seconds = time.perf_counter() - start
        if status:
            raise RuntimeError(f"this command failed: {' '.join(command)}")
        return seconds, usage.ru_maxrss / 1024

    def seconds(
        self, methods: Sequence[str], *, classes: int = 100, views: int = 64, cache: str = "", rounds: int = 2
    ) -> float:
        """Seconds per image; the faster of two rounds counts."""
        few = min(self.evaluate(FEW, classes, views, methods, cache)[0] for _ in range(rounds))
        many = min(self.evaluate(FEW + self.images, classes, views, methods, cache)[0] for _ in range(rounds))
        return (many - few) / self.images


def run(quick: bool = False) -> None:
    """Print everything."""
    images = 4 if quick else 16
    with tempfile.TemporaryDirectory() as folder:
        for backbone in ("random:ViT-B-32",) if quick else ("random:RN50", "random:ViT-B-16"):
            bench = Bench(Path(folder) / backbone.replace(":", "-"), backbone, images)
            passes = {"one": SEVEN[:1], "seven": SEVEN, "twenty": TWENTY}
            found = {name: bench.seconds(methods) for name, methods in passes.items()}
            found["first"] = bench.seconds(["o-tpt"], cache="cache", rounds=1)
            found["warm"] = bench.seconds(["c-tpt"], cache="cache", rounds=1)
            print(f"{backbone}, 100 classes, 64 views; seconds per image")
            for name, seconds in found.items():
                print(f"  {name:8}{seconds:8.3f}{seconds / found['one']:8.2f}× of one", flush=True)
        print("\nSeconds per image (100 classes, 64 views, O-TPT where not varied)")
        for classes in (10, 100) if quick else (10, 100, 1000):
            print(f"  {classes:5} classes {bench.seconds(['o-tpt'], classes=classes):8.3f}", flush=True)
        for views in (4, 16) if quick else (8, 16, 32, 64, 128):
            print(f"  {views:5} views   {bench.seconds(['o-tpt'], views=views):8.3f}", flush=True)
        print("\nzero-shot and O-TPT by pocket, 4 views: images, seconds, MiB at the peak")
        small = Bench(Path(folder) / "small", "pocket", 400 if quick else 10_000)
        for count in (small.images // 4, small.images):
            seconds, memory = small.evaluate(count, 5, 4, ["zero-shot", "o-tpt"], "cache")
            print(f"  {count:7}{seconds:9.1f}{memory:8.0f}", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    run(parser.parse_args().quick)


if __name__ == "__main__":
    main()
