"""Images of classes that are not in the list: ``python -m benchmarks.rejection WORK``.

Of each emoji set, half of the classes, drawn by a seed, are withheld from the class list; their images are the unknown
ones. The scores of :mod:`otpt.rejection` see one view of an image and no label. AUROC: the probability that an unknown
image has a higher score than a known one. FPR95: the fraction of unknown images below the threshold that 95 % of the
known ones are below. Averages over the sets with a 95 % interval of a bootstrap over images, the same images for all
scores. The last columns are what the score's own threshold rejects. Photographs (``FOLDER/caltech101``,
``FOLDER/eurosat``, each with ``classes.txt``) with another model check what was chosen on emoji. ``--write`` puts
the tables into ``docs/unknown.md``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.field import photographs
from benchmarks.measuring import model_on
from benchmarks.pages import put_into
from otpt.backbones import Backbone
from otpt.data import Dataset, load_dataset, stratified
from otpt.data.emoji.sets import GROUPS, SHIFTS
from otpt.errors import OtptError
from otpt.features import FeatureCache, FeaturePipeline
from otpt.features.pipeline import ImageTask
from otpt.metrics import METRICS
from otpt.metrics.bootstrap import centred_interval, resample_weights
from otpt.metrics.inputs import ConfidenceRows
from otpt.prompts import Prompt
from otpt.rejection import SCORES, Rejector
from otpt.threads import one_thread
from otpt.views import ViewRecipe

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

IMAGES = 200
SEEDS = (0, 1, 2)
RESAMPLES = 1000
PAGE = Path(__file__).resolve().parent.parent / "docs" / "unknown.md"
STATISTICS = {METRICS[name].heading: METRICS[name] for name in ("auroc", "fpr95")}


def kept_classes(classes: int, seed: int) -> list[int]:
    """Half of the classes, those that stay in the list."""
    drawn = np.random.default_rng(seed).permutation(classes)[: (classes + 1) // 2]
    return sorted(int(each) for each in drawn)


def clean_features(backbone: Backbone, dataset: Dataset, images: int, cache: FeatureCache) -> torch.Tensor:
    """Unit features (N, D) of the clean views of the first images."""
    recipe = ViewRecipe(n_views=1)
    tasks = (ImageTask(i, partial(dataset.source, i), [recipe], 0) for i in range(min(images, len(dataset))))
    found = []
    for _, encoded in FeaturePipeline(backbone, cache=cache)(tasks):
        if isinstance(encoded, OtptError):
            raise encoded
        found.append(encoded.features[recipe.kind][0])
    return torch.stack(found)


def scores_of(
    backbone: Backbone, dataset: Dataset, features: torch.Tensor, kept: Sequence[int]
) -> tuple[Bools, dict[str, Floats], dict[str, Bools]]:
    """(N,) whether an image is known, and by score the values and whether the image is rejected."""
    names = [dataset.class_names[i] for i in kept]
    known = np.isin(dataset.labels[: len(features)], kept)
    values, rejected = {}, {}
    for name, score in SCORES.items():
        own = 0.0 if score.threshold is None else None  # any: it is not looked at
        rejector = Rejector(backbone, names, Prompt(dataset.prompt), score=name, threshold=own)
        with one_thread():
            values[name] = rejector(features).double().numpy()
        if score.threshold is not None:
            rejected[name] = np.array([rejector.is_unknown(value) for value in values[name].tolist()])
    return known, values, rejected


class Bench:
    """Statistics of all sets and seeds by (metric, score), and what thresholds reject."""

    def __init__(self) -> None:
        self.sets: dict[str, list[dict[tuple[str, str], ConfidenceRows]]] = {}
        self.images: dict[str, int] = {}
        self.rates: dict[str, list[tuple[float, float]]] = {}

    def add(self, name: str, known: Bools, values: dict[str, Floats], rejected: dict[str, Bools]) -> None:
        """A set under one seed."""
        made = {(m, s): ConfidenceRows(-each, known) for m in STATISTICS for s, each in values.items()}
        self.sets.setdefault(name, []).append(made)
        self.images[name] = len(known)
        for score, each in rejected.items():
            self.rates.setdefault(score, []).append((float(each[known].mean()), float(each[~known].mean())))

    def value(self, key: tuple[str, str], name: str) -> float:
        """A metric of a score on a set, averaged over the seeds."""
        return float(np.mean([STATISTICS[key[0]].value(rows[key]) for rows in self.sets[name]]))

    def average(self, key: tuple[str, str]) -> tuple[float, float, float]:
        """Over the sets, with its interval."""
        total = np.zeros(RESAMPLES)
        for position, (name, seeds) in enumerate(self.sets.items()):
            start = 0
            for weights in resample_weights(self.images[name], RESAMPLES, (0, position)):
                part = slice(start, start + len(weights))
                total[part] += np.mean([STATISTICS[key[0]].compute(rows[key], weights) for rows in seeds], axis=0)
                start = part.stop
        estimate = float(np.mean([self.value(key, name) for name in self.sets]))
        found = centred_interval(estimate, total / len(self.sets), 0.95, (0.0, 1.0))
        return found.estimate, found.low, found.high


def tables(bench: Bench) -> dict[str, str]:
    """Markdown: the averages, and AUROC by set."""
    head = ["score", *STATISTICS, "known images rejected %", "unknown images rejected %"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for score in SCORES:
        cells = ["{:.1f} ({:.1f} … {:.1f})".format(*(100 * v for v in bench.average((m, score)))) for m in STATISTICS]
        rates = bench.rates.get(score)
        cells += ["–", "–"] if rates is None else [f"{100 * each:.1f}" for each in np.mean(rates, axis=0)]
        lines.append(f"| `{score}` | {' | '.join(cells)} |")
    by_set = [f"| set | {' | '.join(f'`{score}`' for score in SCORES)} |", "|---" * (1 + len(SCORES)) + "|"]
    for name in bench.sets:
        cells = [f"{100 * bench.value(('AUROC %', score), name):.1f}" for score in SCORES]
        by_set.append(f"| {name} | {' | '.join(cells)} |")
    return {"averages": "\n".join(lines), "sets": "\n".join(by_set)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="a folder for the feature cache")
    parser.add_argument("--images", type=int, default=IMAGES, help="of each set (default: %(default)s)")
    parser.add_argument("--sets", nargs="+", default=GROUPS + SHIFTS, metavar="NAME", help="of the emoji bench")
    parser.add_argument("--photographs", type=Path, help="a folder with caltech101/ and eurosat/")
    parser.add_argument("--model", type=Path, help="an open_clip folder, for the photographs")
    parser.add_argument("--write", action="store_true", help="put the tables into the page")
    options = parser.parse_args()
    cache = FeatureCache(options.work / "cache")
    emoji = [load_dataset(f"emoji/{name}") for name in options.sets]
    found = tables(measured(model_on("pocket")("cpu"), emoji, options.images, cache))
    if options.photographs is not None:
        datasets = [make() for make in photographs(options.photographs)]
        other = tables(measured(model_on(f"local-dir:{options.model}")("cpu"), datasets, options.images, cache))
        found["photographs"] = "\n\n".join(other.values())
    for name, text in found.items():
        print(f"\n{text}", flush=True)
        if options.write:
            put_into(PAGE, name, text)


def measured(backbone: Backbone, datasets: Sequence[Dataset], images: int, cache: FeatureCache) -> Bench:
    """All scores on these sets, under all seeds."""
    bench = Bench()
    for dataset in map(stratified, datasets):
        features = clean_features(backbone, dataset, images, cache)
        for seed in SEEDS:
            kept = kept_classes(len(dataset.class_names), seed)
            bench.add(dataset.name, *scores_of(backbone, dataset, features, kept))
    return bench


if __name__ == "__main__":
    main()
