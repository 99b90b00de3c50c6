"""Evidence for several labels per image and for heat maps, on canvases with one to four drawings of known place.

    python -m benchmarks.questions                 # 150 canvases of each kind, about ten minutes on 2 cores

Rules for several labels were compared on the canvases ``chosen on`` and fixed; ``confirmed on`` was looked at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from PIL import Image
from scipy.special import expit, softmax

import otpt
from otpt.calibration.maps import fit_map
from otpt.data.emoji import SIDE, UNITS, _background, drawing, keyed_random, load_emoji, rasterise
from otpt.metrics.multi_label import mean_average_precision, multi_label_ece, multi_label_f1
from otpt.tasks.explain import explain
from otpt.tasks.multi_label import grid_views, log_odds
from otpt.views import ViewRecipe, make_views

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Kind:
    """A kind of canvas: from which sets, every how many-th class, sizes as fractions of the side, outlines only."""

    sets: tuple[str, ...]
    step: int
    sizes: tuple[float, float] = (0.32, 0.5)
    lines: bool = False


KINDS = {
    "chosen on": {
        "activities, food": Kind(("emoji/activities", "emoji/food"), 5),
        "food, all": Kind(("emoji/food",), 1),
    },
    "confirmed on": {
        "animals, travel": Kind(("emoji/animals", "emoji/travel"), 5),
        "objects, all": Kind(("emoji/objects",), 1),
        "animals, small": Kind(("emoji/animals",), 3, sizes=(0.18, 0.28)),
        "objects, outlines": Kind(("emoji/objects",), 4, lines=True),
    },
}


def canvas(codes: Sequence[str], kind: Kind, number: int) -> tuple[Image.Image, list[int], list[Box]]:
    """An RGB image of 256 × 256 pixels, the classes on it, and their boxes (left, top, right, bottom)."""
    rng = keyed_random("questions", *kind.sets, kind.sizes, number)
    chosen = rng.sample(range(len(codes)), 1 + int(4 * rng.random()))
    body, boxes = _background(rng), list[Box]()
    for label in chosen:
        for _ in range(200):
            size = rng.uniform(*kind.sizes) * SIDE
            x, y = (rng.uniform(0, SIDE - size) for _ in "xy")
            if all(min(x + size, b[2]) - max(x, b[0]) < 6 or min(y + size, b[3]) - max(y, b[1]) < 6 for b in boxes):
                break
        boxes.append((x, y, x + size, y + size))
        middle, turn = f"{x + size / 2:.2f} {y + size / 2:.2f}", rng.uniform(-15, 15)
        body += (
            f'<g transform="translate({middle}) rotate({turn:.2f}) scale({size / UNITS:.4f}) '
            f'translate({-UNITS / 2} {-UNITS / 2})">{drawing(codes[label], lines_only=kind.lines)}</g>'
        )
    image = rasterise(f'<g transform="scale(2)">{body}</g>', 2 * SIDE)
    return image, chosen, [(2 * a, 2 * b, 2 * c, 2 * d) for a, b, c, d in boxes]


def classes_of(kind: Kind) -> tuple[list[str], list[str]]:
    """Code points and names, each name once."""
    found: dict[str, str] = {}
    for name in kind.sets:
        data = load_emoji(name)
        for code, label in list(zip(data.codes, data.class_names, strict=True))[:: kind.step]:
            found.setdefault(label, code)
    return list(found.values()), list(found)


def several_labels(kind: Kind, count: int) -> pd.DataFrame:
    """Metrics of each rule on the last two thirds of the canvases; the first third fits Platt scaling."""
    codes, names = classes_of(kind)
    clf = otpt.load("pocket", "zero-shot").set_classes(names)
    scale = clf.backbone.logit_scale
    logits, views, present = [], [], np.zeros((count, len(names)), bool)
    for number in range(count):
        image, chosen, _ = canvas(codes, kind, number)
        present[number, chosen] = True
        logits.append(_cosines(clf, grid_views(image, clf.backbone.preprocessing)) * scale)
        made = make_views(image, ViewRecipe(augmix=False), clf.backbone.preprocessing, seed=0, image_id=str(number))
        views.append(_cosines(clf, torch.from_numpy(made)) * scale)
    grid, random = np.stack(logits), np.stack(views)
    odds = log_odds(torch.from_numpy(grid)).numpy()
    best = softmax(grid, axis=-1).max(axis=1)
    fit = count // 3
    scores = {
        "softmax of the image": softmax(grid[:, 0], axis=-1),
        "best of 64 views": softmax(random, axis=-1).max(axis=1),
        "best of 64 views, odds / 64": expit(log_odds(torch.from_numpy(random)).numpy()),
        "best of 14 crops": best,
        "best of 14 crops, odds / 14": expit(odds),
        f"… Platt on {fit} images": fit_map("platt", expit(odds[:fit]), present[:fit])(expit(odds)),
        f"… Platt per label on {fit} images": fit_map("platt-per-label", expit(odds[:fit]), present[:fit])(expit(odds)),
    }
    y = present[fit:]
    rows = {}
    for rule, every in scores.items():
        p = every[fit:]
        rows[rule] = {
            "mAP": mean_average_precision(p, y),
            "F1": multi_label_f1(p, y),
            "ECE": multi_label_ece(p, y),
            "ECE without easy": multi_label_ece(p, y, easy_negatives=False),
            "ECE ±": 1.96 * _bootstrap(p, y),
        }
    return pd.DataFrame(rows).T.mul(100)


def _bootstrap(p: np.ndarray, y: np.ndarray) -> float:
    """Standard error of ECE over images."""
    rng = np.random.default_rng(0)
    draws = [rng.integers(0, len(p), len(p)) for _ in range(100)]
    return float(np.std([multi_label_ece(p[i], y[i]) for i in draws]))


def _cosines(clf: otpt.Classifier, pixels: torch.Tensor) -> np.ndarray:
    features = clf.backbone.encode_pixels(pixels, chunk=clf.backbone.chunk)
    return (features @ clf.text_features.mT).numpy()


def heat_maps(kind: Kind, count: int) -> pd.DataFrame:
    """Whether maps of labels that are there find their boxes: AUC of pixels, and the peak inside."""
    from sklearn.metrics import roc_auc_score

    codes, names = classes_of(kind)
    clf = otpt.load("pocket", "zero-shot").set_classes(names)
    rows = []
    for crops in (64, 256):
        for number in range(count):
            image, chosen, boxes = canvas(codes, kind, number)
            found = explain(clf, image, names[chosen[0]], crops=crops)
            left, top, right, bottom = (round(each) for each in boxes[0])
            inside = np.zeros(found.values.shape, bool)
            inside[top:bottom, left:right] = True
            x, y = found.peak
            rows.append(
                {
                    "crops": crops,
                    "AUC": roc_auc_score(inside.ravel(), found.values.ravel()),
                    "peak inside": left <= x < right and top <= y < bottom,
                }
            )
    return pd.DataFrame(rows).groupby("crops").mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=150, help="canvases of each kind")
    parser.add_argument("--parts", nargs="+", default=["labels", "maps"], choices=["labels", "maps"])
    parser.add_argument("--on", nargs="+", default=list(KINDS), choices=list(KINDS))
    options = parser.parse_args()
    for purpose in options.on:
        for name, kind in KINDS[purpose].items():
            labels = len(classes_of(kind)[1])
            print(f"\n{purpose}: {name}, {labels} labels, {options.count} canvases")
            if "labels" in options.parts:
                print(several_labels(kind, options.count).round(1).to_markdown())
            if "maps" in options.parts:
                print(heat_maps(kind, options.count // 5).round(3).to_markdown())


if __name__ == "__main__":
    main()
