"""Fewer views for the default method: ``python -m benchmarks.budget WORK [--photographs FOLDER --model DIR]``.

The first views of an image are enough where the most confident quarter of them has the clean view's label
(:func:`otpt.methods.path.is_enough`). Compared with 64 views on the emoji sets that ``docs/default.md`` did not look at
and on photographs. Fixed before the numbers were seen: a budget holds if, on average over sets and seeds, accuracy and
debiased ECE are within 0.5 points and NLL within 0.02 of 64 views. Intervals come from a bootstrap over the images of
each set, the same images for all budgets. Finished sets are stored in WORK: a stopped command continues.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from otpt import load
from otpt.data import load_dataset, stratified
from otpt.features.pipeline import FeaturePipeline, ImageTask
from otpt.methods import DEFAULT_METHOD
from otpt.methods.path import is_enough
from otpt.metrics import METRICS
from otpt.metrics.bootstrap import resample_weights
from otpt.metrics.inputs import DenseRows
from otpt.views import ViewRecipe

Floats = npt.NDArray[np.float64]

SETS = ("animals", "travel", "objects", "smileys", "flags", "grey", "blur", "small")
PHOTOGRAPHS = ("caltech101", "eurosat")
BUDGETS: Mapping[str, Sequence[int]] = {
    "64": (64,),
    "16": (16,),
    "8 + 8": (8, 16),
    "4 + 12": (4, 16),
    "4 + 4 + 8": (4, 8, 16),
    "8": (8,),
    "8 + 24 + 32": (8, 32, 64),
    "1": (1,),
}
"""Numbers of views after which the views may be enough."""
CERTAIN = (0.9, 0.95, 0.99)
"""Confidences of the clean view at which it alone may be enough, before 8 + 8."""
LIMITS = {"accuracy": 0.005, "debiased_ece": 0.005, "nll": 0.02}
RESAMPLES = 1000


def measure(file: Path, spec: str, backbone: str, seed: int, images: int) -> None:
    """Store probabilities and numbers of views of the first images of a set under each budget."""
    data = stratified(load_dataset(spec))
    recipe = ViewRecipe(n_views=64, augmix=data.augmix)
    clf = load(backbone, DEFAULT_METHOD, device="cpu", views=recipe, seed=seed)
    clf.set_classes(data.class_names, data.prompt)
    predictor = clf._predictor(clf.task, (clf.method,))
    count = min(images, len(data))
    tasks = [ImageTask(i, lambda i=i: data[i].source, [recipe], seed) for i in range(count)]  # type: ignore[misc]
    found: dict[str, list[Any]] = {}
    for _, image in FeaturePipeline(clf.backbone)(tasks):
        if isinstance(image, Exception):
            raise image
        features = image.features[recipe.kind]
        logits = predictor.view_logits(image)
        assert logits is not None
        by_count: dict[int, Floats] = {}
        for name, views in views_needed(logits).items():
            if views not in by_count:
                (answer,) = clf.classify_features(features[None, :views], [clf.method])
                by_count[views] = np.asarray(answer[clf.method.name].probabilities, np.float64)
            found.setdefault(f"p {name}", []).append(by_count[views])
            found.setdefault(f"n {name}", []).append(views)
    arrays: dict[str, Any] = {name: np.array(each) for name, each in found.items()}
    np.savez(file, labels=np.array(data.labels[:count]), **arrays)


def views_needed(logits: Tensor) -> dict[str, int]:
    """The number of views of an image under each budget, from the zero-shot logits (64, C) of its views."""
    found = {}
    for name, counts in BUDGETS.items():
        found[name] = next((each for each in counts[:-1] if is_enough(logits[:each])), counts[-1])
    confidence = float(logits[0].softmax(0).max())
    for each in CERTAIN:
        found[f"1 if ≥ {each:g}, 8 + 8"] = 1 if confidence >= each else found["8 + 8"]
    return found


def table(files: Sequence[Path]) -> str:
    """Markdown: a row per budget, averages over sets and seeds, differences to 64 views with 95 % intervals."""
    loaded = [np.load(file) for file in files]
    names = [name.removeprefix("p ") for name in loaded[0].files if name.startswith("p ")]
    sets: dict[str, list[Any]] = {}
    for file, each in zip(files, loaded, strict=True):
        sets.setdefault(file.stem.rpartition("-")[0], []).append(each)
    values: dict[tuple[str, str], Floats] = {}
    views: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        parts: dict[str, list[Floats]] = {metric: [] for metric in LIMITS}
        for seeds in sets.values():
            draws = [np.ones((1, len(seeds[0]["labels"]))), *resample_weights(len(seeds[0]["labels"]), RESAMPLES, 0)]
            for each in seeds:
                rows = DenseRows(each[f"p {name}"], each["labels"])
                views[name].append(float(each[f"n {name}"].mean()))
                for metric, own in parts.items():
                    own.append(np.concatenate([np.atleast_1d(METRICS[metric].compute(rows, w)) for w in draws]))
        for metric, own in parts.items():
            values[name, metric] = np.mean(own, axis=0)
    titles = ["views", "mean number", "accuracy %", "Δ", "debiased ECE %", "Δ", "NLL", "Δ", "holds"]
    lines = [f"| {' | '.join(titles)} |", "|---|" + "--:|" * (len(titles) - 2) + "---|"]
    for name in names:
        cells, holds = [f"{np.mean(views[name]):.1f}"], True
        for metric, limit in LIMITS.items():
            scale, digits = (1.0, 3) if metric == "nll" else (100.0, 1)
            value, change = values[name, metric], values[name, metric] - values["64", metric]
            cells.append(f"{scale * value[0]:.{digits}f}")
            half = 1.96 * float(np.std(change[1:], ddof=1))
            cells.append("–" if name == "64" else f"{scale * change[0]:+.{digits}f} ± {scale * half:.{digits}f}")
            worse = -change[0] if metric == "accuracy" else change[0]
            holds &= worse <= limit
        lines.append(f"| {name} | {' | '.join(cells)} | {'yes' if holds else 'no'} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="folder for the results")
    parser.add_argument("--photographs", type=Path, help="a folder with caltech101/ and eurosat/")
    parser.add_argument("--model", type=Path, help="an open_clip folder, for the photographs")
    parser.add_argument("--images", type=int, default=100, help="of each set (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    jobs = [(name, f"emoji/{name}", "pocket") for name in SETS]
    if options.photographs is not None:
        jobs += [(name, str(options.photographs / name), f"local-dir:{options.model}") for name in PHOTOGRAPHS]
    for seed in range(options.seeds):
        for name, spec, backbone in jobs:
            file = options.work / f"{name}-{seed}.npz"
            if not file.exists():
                measure(file, spec, backbone, seed, options.images)
                print(f"{file.stem} is done", flush=True)
    files = {name: sorted(options.work.glob(f"{name}-*.npz")) for name, *_ in jobs}
    print(table([file for name in SETS for file in files[name]]))
    if options.photographs is not None:
        print(table([file for name in PHOTOGRAPHS for file in files[name]]))
        print(table([file for own in files.values() for file in own]))


if __name__ == "__main__":
    main()
