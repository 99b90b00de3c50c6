"""Evaluation at scale: ``python -m benchmarks.evaluation [--quick]``.

- one pass of seven methods against one method's pass, and against seven runs the literal way (one literal image is
  measured; seven runs are seven times that); one pass of twenty, and what a method without a text pass adds;
- a further method from a warm cache, with the features and the entropy's gradients in it, against the first pass;
- seconds per image against the number of classes, views and methods;
- memory over many images.

Architectures are real, weights are random, images are synthetic photographs. Seconds an image are those of the
running evaluation, rows and all; loading the model and preparing the text features, done once, do not count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from PIL import Image

from benchmarks.engine import Case, class_names, in_process, photograph, random_backbone
from benchmarks.paths import TESTS
from otpt.backbones import Backbone
from otpt.data import Dataset
from otpt.evaluation import Evaluator, Settings
from otpt.evaluation.evaluator import Predicted
from otpt.features import FeatureCache
from otpt.runs.run import WorkItem
from otpt.views import ViewRecipe

RESULTS = Path(__file__).parent / "results" / "evaluation.json"
SEVEN = ("zero-shot", "tpt", "c-tpt", "o-tpt", "o-tpt+c-tpt", "tpt+ts", "tpt+sals")
TWELVE = (*SEVEN, "tpt+penalty", "tpt+zs", "c-tpt+sals", "c-tpt+penalty", "c-tpt+zs")

LIGHT = ("zero-shot+weak-strong", "zero-shot+se", "zero", "mta", "tps", "reliability", "mean-probability")
"""Methods that run no text pass for an image."""
TWENTY = (*SEVEN, *LIGHT, "a-tpt", "soc", "tpt+cots", "tpt+e-cots", "use", "r-tpt")


def seconds_per_image(
    backbone: Backbone,
    *,
    classes: int = 100,
    views: int = 64,
    methods: Sequence[str] = ("o-tpt",),
    images: int = 4,
    cache: FeatureCache | None = None,
) -> float:
    """Of a running evaluation: the first batch, which prepares the text features, is left out."""
    together = torch.get_num_threads()
    count = together + images
    sources = [photograph(i) for i in range(count)]
    labels = [i % classes for i in range(count)]
    names = class_names(classes)
    data = Dataset("bench", names, list(map(str, range(count))), labels, sources.__getitem__, allow_duplicates=True)
    moments: list[float] = []

    def on_image(_: Predicted) -> None:
        moments.append(time.perf_counter())

    settings = Settings(methods=methods, recipe=ViewRecipe(n_views=views), shard_size=count)
    evaluator = Evaluator(backbone, [data], settings, cache=cache, on_image=on_image)
    columns = settings.task_for(data).columns(settings.chosen)
    list(evaluator([WorkItem("bench", 0, 0, 0, count, columns)]))
    return (moments[-1] - moments[together - 1]) / images


def one_pass(architecture: str, classes: int, images: int, *, literal: bool) -> dict[str, Any]:
    """Seven and twenty methods against one, against the literal way, and from a warm cache."""
    backbone = random_backbone(architecture)
    found: dict[str, Any] = {"architecture": architecture, "classes": classes}
    with tempfile.TemporaryDirectory() as folder:
        cache = FeatureCache(folder)
        # taken in turns, the faster of two counts: the machine may have been busy once
        for _ in range(2):
            passes = {"one": ("o-tpt",), "seven": SEVEN, "twenty": TWENTY}
            for name, methods in passes.items():
                seconds = seconds_per_image(backbone, classes=classes, images=images, methods=methods)
                found[name] = min(seconds, found.get(name, seconds))
        found["cold"] = seconds_per_image(backbone, classes=classes, images=images, cache=cache)
        found["warm"] = seconds_per_image(backbone, classes=classes, images=images, cache=cache, methods=["c-tpt"])
        # from the cache: what they add is far below the noise of encoding the views
        found["light"] = seconds_per_image(backbone, classes=classes, images=images, cache=cache, methods=LIGHT)
    if literal:
        found["literal"] = in_process(Case(architecture, classes), "literal", 1)["image"]
    return found


def costs(architecture: str, images: int, *, quick: bool) -> list[dict[str, Any]]:
    """Seconds an image, one of classes, views and methods varied at a time; the faster of two rounds counts."""
    backbone = random_backbone(architecture)
    steps: dict[str, Sequence[int]] = {"classes": (10, 100), "views": (4, 16), "methods": (1, 7)}
    if not quick:
        steps = {"classes": (10, 30, 100, 300, 1000), "views": (8, 16, 32, 64, 128), "methods": (1, 2, 4, 7, 12)}
    rows: list[dict[str, Any]] = [
        {"varied": varied, "value": value} for varied, values in steps.items() for value in values
    ]
    for _ in range(2):
        for row in rows:
            given: dict[str, Any] = {row["varied"]: row["value"]}
            if "methods" in given:
                given["methods"] = ("o-tpt", *(m for m in TWELVE if m != "o-tpt"))[: row["value"]]
            seconds = seconds_per_image(backbone, images=images, **given)
            row["seconds"] = min(seconds, row.get("seconds", seconds))
    return rows


def memory(images: int) -> list[tuple[int, float]]:
    """(images done, MiB resident) along a whole evaluation of a tiny model: every image another one, so that each
    is encoded and its features are cached; shards and metrics written.
    """
    sys.path.insert(0, str(TESTS))
    from oracles.models.tiny import tiny_backbone  # type: ignore[import-not-found]

    from otpt.evaluation import Job, LocalEngine, run_job
    from otpt.evaluation.progress import ProgressEvent, Silent

    small = [photograph(i, (48, 40)) for i in range(50)]

    def stamped(index: int) -> Image.Image:
        image = small[index % len(small)].copy()
        image.putpixel((0, 0), tuple(index.to_bytes(3, "big")))
        return image

    labels = [i % 5 for i in range(images)]
    ids = [str(i) for i in range(images)]
    data = Dataset("many", class_names(5), ids, labels, stamped)
    process, seen = psutil.Process(), [0]
    samples: list[tuple[int, float]] = []

    class Watch(Silent):
        def __call__(self, event: ProgressEvent) -> None:
            seen[0] += 1
            if seen[0] % max(images // 20, 1) == 0:
                samples.append((seen[0], process.memory_info().rss / 2**20))

    settings = Settings(methods=["zero-shot", "o-tpt"], recipe=ViewRecipe(n_views=4))
    backbone = tiny_backbone("vit")
    with tempfile.TemporaryDirectory() as folder:
        job = Job(lambda _: backbone, [lambda: data], settings, Path(folder) / "run", FeatureCache(f"{folder}/cache"))
        run_job(job, LocalEngine(), Watch())
    return samples


def run(quick: bool = False) -> None:
    """Print everything; the numbers also go to ``RESULTS`` (in short to ``build``), for the figures."""
    images = 2 if quick else 4
    results: dict[str, Any] = {"threads": torch.get_num_threads(), "passes": []}
    print("One pass, O-TPT, seven and twenty methods, 64 views; seconds per image")
    print(f"{'':10} classes    one  seven  ratio  literal  7 literal/seven  first   warm  first/warm")
    for architecture in ("ViT-B-32",) if quick else ("RN50", "ViT-B-16"):
        found = one_pass(architecture, 100, images, literal=not quick)
        results["passes"].append(found)
        literal = found.get("literal")
        against = f"{literal:7.1f}  {7 * literal / found['seven']:14.1f}×" if literal else f"{'–':>7}  {'–':>15}"
        print(
            f"{architecture:10} {found['classes']:7} {found['one']:6.2f} {found['seven']:6.2f} "
            f"{found['seven'] / found['one']:5.2f}× {against} {found['cold']:6.2f} {found['warm']:6.3f} "
            f"{found['cold'] / found['warm']:10.1f}×",
            flush=True,
        )
        light = found["light"] / len(LIGHT) / found["one"]
        print(
            f"{'':10} twenty methods {found['twenty']:.2f} s, {found['twenty'] / found['one']:.2f}× of one; a method "
            f"without a text pass adds {100 * light:.1f} %",
            flush=True,
        )
    print(
        "literal: one image by one method, measured; 7 literal: seven times that. first: O-TPT, filling the cache;\n"
        "warm: a further method from it.\n"
    )
    print("Seconds an image (100 classes, 64 views, one method where not varied)")
    results["costs"] = costs("ViT-B-32" if quick else "RN50", images, quick=quick)
    for row in results["costs"]:
        print(f"  {row['value']:5} {row['varied']:8} {row['seconds']:8.3f}")
    count = 400 if quick else 20_000
    results["memory"] = _memory_alone(count)
    (_, early), (_, late) = results["memory"][4], results["memory"][-1]
    print(f"\nMemory over {count} images: {early:.0f} MiB after a quarter, {late:.0f} MiB at the end")
    path = Path("build/evaluation-quick.json") if quick else RESULTS
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def _memory_alone(images: int) -> list[tuple[int, float]]:
    """In a process of its own, so that it is the evaluation's memory alone."""
    command = [sys.executable, "-m", "benchmarks.evaluation", "--memory", str(images)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [(int(n), float(mib)) for n, mib in json.loads(done.stdout.splitlines()[-1])]


def main() -> None:
    """All of it, or the memory of this process alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        print(json.dumps(memory(options.memory)))
    else:
        run(options.quick)


if __name__ == "__main__":
    main()
