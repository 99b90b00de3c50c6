"""Augmented views on one core: crops alone, AugMix operation by operation, and our AugMix.

python -m benchmarks.views            # add --quick for a shorter run
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from otpt.views import ViewRecipe, make_views

IMAGES = ((500, 375), (1500, 1000))


@dataclass(frozen=True)
class _Preprocessing:
    size: int = 224
    mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)
    std: tuple[float, float, float] = (0.26862954, 0.26130258, 0.27577711)
    interpolation: str = "bicubic"
    resize_mode: str = "shortest"


def _photograph(width: int, height: int) -> Image.Image:
    """Smooth shapes under noise, always the same; what is in an image hardly matters for the time."""
    rng = np.random.default_rng(0)
    shapes = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8))
    pixels = np.asarray(shapes.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    pixels += rng.integers(-10, 11, pixels.shape, dtype=np.int16)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def _milliseconds(ways: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median processor time of each way (one thread); they take turns, so that a busy moment hits them alike."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, way in ways.items():
            start = time.process_time()
            way()
            if repeat > 0:  # the first round warms up
                times[name].append(1e3 * (time.process_time() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def run(quick: bool = False) -> None:
    """Print milliseconds for 63 views and the ratio of the literal way to ours."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    literal_views = importlib.import_module("oracles.methods.augmix").literal_views
    preprocessing = _Preprocessing()
    recipes = {"crops": ViewRecipe(augmix=False), "augmix": ViewRecipe()}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        print("63 views at 224 px, one thread, milliseconds of processor time (median)")
        print("image      crops only   AugMix op by op   AugMix   ratio   largest difference")
        for width, height in IMAGES:
            image = _photograph(width, height)

            def fast(kind: str, image: Image.Image = image) -> np.ndarray:
                return make_views(image, recipes[kind], preprocessing, seed=0, image_id="bench")

            def literal(image: Image.Image = image) -> np.ndarray:
                views: np.ndarray = literal_views(image, recipes["augmix"], preprocessing, 0, "bench")
                return views

            difference = np.abs(fast("augmix") - literal()).max()
            times = _milliseconds(
                {"crops": lambda: fast("crops"), "literal": literal, "fast": lambda: fast("augmix")},
                3 if quick else 9,
            )
            print(
                f"{width:4d}×{height:<4d}  {times['crops']:13.0f} {times['literal']:17.0f} {times['fast']:8.0f} "
                f"{times['literal'] / times['fast']:7.1f} {difference:20.1e}"
            )
    finally:
        torch.set_num_threads(threads)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    run(parser.parse_args().quick)


if __name__ == "__main__":
    main()
