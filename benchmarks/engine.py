"""The literal way against the engine, at real sizes with random weights: ``python -m benchmarks.engine [--quick]``.

Each measurement runs in a process of its own, so that peak memory means something, and literal and engine take turns.
An image is a synthetic photograph of 500×375; one image means: make its 64 views, encode them, tune by O-TPT,
predict. The literal way is the tests' oracle: Pillow op by op, all views in one batch, 77 tokens per class, C×C×C
reflectors, torch's AdamW.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter

TESTS = Path(__file__).resolve().parent.parent / "tests"


@dataclass(frozen=True)
class Case:
    """An architecture, a number of classes, and whether the literal way fits into memory."""

    architecture: str
    classes: int
    literal: bool = True


CASES = (Case("ViT-B-16", 100), Case("RN50", 100), Case("RN50", 397), Case("ViT-B-16", 1000, literal=False))
QUICK = (Case("RN50", 100), Case("ViT-B-32", 1000, literal=False))
TWELVE = (
    "zero-shot", "tpt", "c-tpt", "o-tpt", "o-tpt+c-tpt", "tpt+ts", "tpt+sals", "tpt+penalty", "tpt+zs", "c-tpt+sals",
    "c-tpt+penalty", "c-tpt+zs",
)  # fmt: skip


def photograph(seed: int = 0, size: tuple[int, int] = (500, 375)) -> Image.Image:
    """Smooth noise at several scales: histograms and edges like a photograph's."""
    generator = np.random.default_rng(seed)
    image = np.zeros((size[1], size[0], 3))
    for scale in (4, 16, 64):
        small = generator.uniform(0, 255, (size[1] // scale + 1, size[0] // scale + 1, 3)).astype(np.uint8)
        image += np.asarray(Image.fromarray(small).resize(size, Image.Resampling.BICUBIC))
    return Image.fromarray((image / 3).astype(np.uint8)).filter(ImageFilter.SHARPEN)


def class_names(count: int) -> list[str]:
    """The first names of ImageNet's thousand."""
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

    return list(IMAGENET_CLASSNAMES[:count])


def measure_engine(case: Case, images: int) -> dict[str, Any]:
    """Seconds per image of O-TPT and of its parts; tuning is what remains when views and encoding are taken off."""
    from otpt import Classifier
    from otpt.views import ViewRecipe, make_views

    backbone = random_backbone(case.architecture)
    names = class_names(case.classes)
    times: dict[str, list[float]] = {"views": [], "encoding": [], "image": [], "twelve": [], "set up": []}
    classifier = Classifier(backbone, "o-tpt")
    times["set up"] = [_seconds(lambda: classifier.set_classes(names, allow_duplicates=True))]
    for i in range(images + 1):  # the first warms up
        image = photograph(i)
        made: list[Any] = []

        def make(image: Image.Image = image, made: list[Any] = made, i: int = i) -> None:
            made.append(make_views(image, ViewRecipe(), backbone.preprocessing, seed=0, image_id=str(i)))

        times["views"].append(_seconds(make))
        times["encoding"].append(_seconds(partial(backbone.encode_pixels, torch.from_numpy(made[0]))))
        times["image"].append(_seconds(partial(classifier.predict, image)))
        if case.classes <= 100:
            times["twelve"].append(_seconds(partial(classifier.compare, image, TWELVE)))
    best = {name: min(values[-images:]) for name, values in times.items() if values}
    return {**best, "text": max(best["image"] - best["views"] - best["encoding"], 0.0)}


def measure_literal(case: Case, images: int) -> dict[str, Any]:
    """Seconds an image of O-TPT the literal way."""
    sys.path.insert(0, str(TESTS))
    from open_clip import SimpleTokenizer
    from oracles.methods.augmix import literal_views  # type: ignore[import-not-found]
    from oracles.methods.literal import LiteralTuner  # type: ignore[import-not-found]

    from otpt.backbones import Preprocessing
    from otpt.methods import published_methods
    from otpt.views import ViewRecipe

    tuning = published_methods()["o-tpt"].tuning("fine-grained")
    assert tuning is not None
    tuner = LiteralTuner(plain_model(case.architecture), SimpleTokenizer(), class_names(case.classes))
    preprocessing = Preprocessing(224, (0.481, 0.458, 0.408), (0.269, 0.261, 0.276), "bicubic", "shortest")
    found = []
    for i in range(images):

        def one(i: int = i) -> None:
            views = literal_views(photograph(i), ViewRecipe(), preprocessing, seed=0, image_id=str(i))
            tuner.predict(torch.as_tensor(views), weights=dict(tuning.weights))

        found.append(_seconds(one))
    return {"image": min(found)}


def plain_model(architecture: str) -> Any:
    import open_clip

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = open_clip.create_model(architecture, pretrained=None, force_quick_gelu=True)
    return model.eval().requires_grad_(False)


def random_backbone(architecture: str) -> Any:
    from otpt.backbones import load_backbone

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_backbone(f"random:{architecture}", device="cpu")


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def in_process(case: Case, way: str, images: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.engine", "--way", way, "--images", str(images)]
    command += ["--architecture", case.architecture, "--classes", str(case.classes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def run(quick: bool = False) -> None:
    """Print the table, a row as soon as it is measured."""
    images = 1 if quick else 2
    print("O-TPT, 64 views with AugMix, float32, seconds per image (best of", images, "after warm-up)")
    titles = (
        "",
        "classes",
        "literal",
        "engine",
        "ratio",
        "views",
        "encoding",
        "text",
        "text/enc.",
        "12 methods",
        "GB literal",
        "GB engine",
        "once",
    )
    widths = (9, 8, 8, 7, 6, 6, 9, 6, 10, 11, 11, 10, 6)
    print(" ".join(f"{t:>{w}}" for t, w in zip(titles, widths, strict=True)))
    for case in QUICK if quick else CASES:
        engine = in_process(case, "engine", images)
        literal = in_process(case, "literal", 1) if case.literal else {}
        if case.literal and not quick:  # take turns, keep the best of each
            again = in_process(case, "engine", images)
            engine = min(engine, again, key=lambda each: float(each["image"]))
        twelve = ""
        if "twelve" in engine:
            twelve = f"{engine['twelve'] / engine['image']:.2f}×"
        cells = (
            case.architecture,
            str(case.classes),
            f"{literal['image']:.1f}" if literal else "–",
            f"{engine['image']:.2f}",
            f"{literal['image'] / engine['image']:.1f}×" if literal else "–",
            f"{engine['views']:.2f}",
            f"{engine['encoding']:.2f}",
            f"{engine['text']:.2f}",
            f"{100 * engine['text'] / engine['encoding']:.1f} %",
            twelve or "–",
            f"{literal['peak']:.1f}" if literal else "> 24",
            f"{engine['peak']:.1f}",
            f"{engine['set up']:.1f}",
        )
        print(" ".join(f"{c:>{w}}" for c, w in zip(cells, widths, strict=True)), flush=True)
    print(
        "ratio = literal/engine; text/enc. = tuning and prediction against encoding; 12 methods = one pass of twelve\n"
        "against O-TPT alone; GB = peak resident memory of the process; once = preparing the text features.\n"
        "At 1000 classes the literal way is not run: its graph alone needs more than 24 GB (77,000 rows of text with\n"
        "graph, and reflectors of 3.7 GiB a tensor)."
    )


def main() -> None:
    """One measurement in this process (``--way``), or the whole table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--way", choices=("literal", "engine"), help=argparse.SUPPRESS)
    parser.add_argument("--architecture", help=argparse.SUPPRESS)
    parser.add_argument("--classes", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--images", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.way:
        run(options.quick)
        return
    case = Case(options.architecture, options.classes)
    result = {"literal": measure_literal, "engine": measure_engine}[options.way](case, options.images)
    result["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB → GiB on Linux
    print(json.dumps(result))


if __name__ == "__main__":
    main()
