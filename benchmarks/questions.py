"""Evidence for several labels per image, one label, heat maps and classes by example images.

    python -m benchmarks.questions                 # 150 canvases of each kind, about ten minutes on 2 cores
    python -m benchmarks.questions --parts photographs --photos FOLDER --model local-dir:MODEL
    python -m benchmarks.questions --parts examples --features FOLDER --photos FOLDER --model local-dir:MODEL

Canvases have one to four drawings of known place, or photographs. Rules were compared on the data ``chosen on`` and
fixed; ``confirmed on`` was looked at once. ``--features`` holds CLIP features as NPZ files (``train16_features``,
``test_features`` …, ``text_detic``), ``--photos`` has a folder of photographs for each class.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image, ImageOps
from scipy.special import expit, softmax
from torch.nn import functional as F

import otpt
from otpt.calibration.maps import fit_map
from otpt.data.dataset import Dataset
from otpt.data.emoji import SIDE, UNITS, _background, drawing, keyed_random, load_emoji, rasterise
from otpt.data.own import image_folder
from otpt.explain import explain
from otpt.images import open_image
from otpt.methods.example_scorers import SCORERS, fit_examples, gda, tip_adapter
from otpt.methods.multi_label import grid_views, log_odds
from otpt.metrics import bootstrap
from otpt.metrics.multi_label import mean_average_precision, multi_label_ece, multi_label_f1
from otpt.views import ViewRecipe, make_views

Box = tuple[float, float, float, float]
PARTS = ["labels", "maps", "photographs", "examples"]


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


def photo_canvas(data: Dataset, number: int) -> tuple[Image.Image, list[int]]:
    """An RGB image of 512 × 512 pixels with one to four photographs, and their classes (every second class)."""
    rng = keyed_random("questions", "photographs", number)
    image = Image.new("RGB", (512, 512), tuple(rng.randint(190, 250) for _ in "rgb"))
    chosen = rng.sample(range(0, len(data.class_names), 2), 1 + int(4 * rng.random()))
    corners = rng.sample([(0, 0), (256, 0), (0, 256), (256, 256)], len(chosen))
    for label, (left, top) in zip(chosen, corners, strict=True):
        photo = data.source(rng.choice([i for i, each in enumerate(data.labels) if each == label]))
        photo = ImageOps.contain(open_image(photo), (side := rng.randint(164, 256), side))
        image.paste(photo, (left + rng.randint(0, 256 - photo.width), top + rng.randint(0, 256 - photo.height)))
    return image, [label // 2 for label in chosen]


def several_labels(
    make: Callable[[int], tuple[Any, ...]], names: Sequence[str], count: int, model: str = "pocket"
) -> pd.DataFrame:
    """Metrics of each rule on the last two thirds of the canvases; the first third fits Platt scaling."""
    clf = otpt.load(model, "zero-shot").set_classes(names)
    scale = clf.backbone.logit_scale
    logits, views, present = [], [], np.zeros((count, len(names)), bool)
    for number in range(count):
        image, chosen, *_ = make(number)
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
    """Whether maps of labels that are there find their boxes: AUC of pixels, and the peak inside (95 % interval)."""
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
    return pd.DataFrame(rows).groupby("crops").agg(_mean_interval)


def _mean_interval(values: pd.Series) -> str:
    """The mean with its 95 % bootstrap interval over canvases."""
    x = values.to_numpy(np.float64)
    draws = np.random.default_rng(0).integers(0, len(x), (2000, len(x)))
    low, high = np.percentile(x[draws].mean(axis=1), [2.5, 97.5])
    return f"{x.mean():.2f} ({low:.2f}–{high:.2f})"


Split = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, float]
"""Features and labels of examples, of test images, text features, logit scale."""


def npz_split(path: Path) -> Split:
    """Features of a file; classes without a text feature are left out."""
    content = np.load(path, allow_pickle=True)
    train = "train16" if "train16_features" in content else "train"
    x, t = (F.normalize(torch.tensor(content[f"{part}_features"]).double(), dim=-1) for part in (train, "test"))
    y, labels = (torch.tensor(content[f"{part}_labels"].astype(np.int64)) for part in (train, "test"))
    if "text_detic" not in content:
        return x, y, t, labels, None, 100.0
    texts = torch.tensor(content["text_detic"]).double()
    known = texts.isfinite().all(dim=1)
    place = known.long().cumsum(0) - 1
    x, y, t, labels = x[known[y]], place[y[known[y]]], t[known[labels]], place[labels[known[labels]]]
    return x, y, t, labels, F.normalize(texts[known], dim=-1), 100.0


def image_split(model: str, names: Sequence[str], train: Sequence[Any], test: Sequence[Any]) -> Split:
    """Features of (image, label) pairs by a model."""
    clf = otpt.load(model, "zero-shot").set_classes(names)
    features = [clf.embed([image for image, _ in part]).double() for part in (train, test)]
    y, labels = (torch.tensor([label for _, label in part]) for part in (train, test))
    return features[0], y, features[1], labels, clf.text_features.double(), clf.backbone.logit_scale


def emoji_split(name: str) -> Split:
    """Sixteen other compositions of each drawing as examples."""
    train, test = load_emoji(name, seed=7, compositions=16), load_emoji(name)
    some = range(0, len(test), max(1, len(test) // 500))
    pairs = [[(data.image(i), data.label(i)) for i in own] for data, own in ((train, range(len(train))), (test, some))]
    return image_split("pocket", test.class_names, *pairs)


def photo_split(folder: Path, model: str) -> Split:
    """Half of the photographs of each class as examples."""
    data = image_folder(folder)
    rank: dict[int, int] = {}
    pairs: list[list[Any]] = [[], []]
    for i, label in enumerate(data.labels):
        rank[label] = rank.get(label, -1) + 1
        pairs[rank[label] % 2].append((data.source(i), label))
    return image_split(model, data.class_names, *pairs)


def example_classes(split: Split, shots: int, alpha: float) -> pd.DataFrame:
    """Accuracy, ECE and NLL, with 95 % intervals over test images, of each init with and without texts."""
    x, y, t, labels, texts, scale = split
    kept = torch.cat([(y == c).nonzero()[:shots, 0] for c in y.unique()])
    x, y, classes = x[kept], y[kept], int(y.max()) + 1
    logits: dict[str, torch.Tensor] = {}
    for init in SCORERS:
        own = fit_examples(init, x, y, classes, logit_scale=scale)
        logits[f"{init}, no texts"] = own.weight * own.scorer(t)
    logits["gda as published (α = 1), no texts"] = gda(x, y, classes, shrinkage=None)(t)
    if texts is not None:
        text = scale * t @ texts.mT
        logits["texts alone"] = text
        for init in SCORERS:
            own = fit_examples(init, x, y, classes, logit_scale=scale, texts=scale * x @ texts.mT)
            logits[f"texts and {init}"] = own.text_weight * text + own.weight * own.scorer(t)
        released = tip_adapter(x, y, classes, beta=1.0, balanced=False)(t)
        logits[f"texts and Tip-Adapter, released (α = {alpha:g}, β = 1)"] = text + alpha * released
    rows = {}
    for name, each_image in logits.items():
        p = each_image.softmax(dim=-1).numpy()
        found = {metric: bootstrap(metric, p, labels.numpy(), resamples=200) for metric in ("accuracy", "ece", "nll")}
        rows[name] = {
            metric: f"{k * each.estimate:.{d}f} ({k * each.low:.{d}f}–{k * each.high:.{d}f})"
            for (metric, each), (k, d) in zip(found.items(), ((100, 1), (100, 1), (1, 3)), strict=True)
        }
    return pd.DataFrame(rows).T


def print_examples(features: Path | None, photos: Path | None, model: str) -> None:
    """Classes by example images on all data at hand."""
    splits: dict[str, tuple[Callable[[], Split], float]] = {}
    if features is not None:
        for name, purpose, alpha in (
            ("caltech101", "chosen on", 3.0),
            ("ucf101", "chosen on", 3.0),
            ("fgvc", "confirmed on", 5.0),
            ("food10", "confirmed on", 1.17),
        ):
            splits[f"{purpose}: {name}"] = partial(npz_split, features / f"{name}_vitb32.npz"), alpha
    for name in ("emoji/animals", "emoji/objects"):
        splits[f"confirmed on: {name}"] = partial(emoji_split, name), 1.17
    if photos is not None:
        splits["confirmed on: photographs"] = partial(photo_split, photos, model), 3.0
    for title, (make, alpha) in splits.items():
        split = make()
        for shots in (1, 2, 4, 16):
            if shots <= int(torch.bincount(split[1]).max()):
                print(
                    f"\n{title}, {int(split[1].max()) + 1} classes, up to {shots} examples each, {len(split[3])} images"
                )
                print(example_classes(split, shots, alpha).to_markdown(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=150, help="canvases of each kind")
    parser.add_argument("--parts", nargs="+", default=["labels", "maps"], choices=PARTS)
    parser.add_argument("--features", type=Path, help="folder of NPZ files")
    parser.add_argument("--photos", type=Path, help="folder of photographs, a sub-folder for each class")
    parser.add_argument("--model", default="pocket", help="for the photographs")
    parser.add_argument("--on", nargs="+", default=list(KINDS), choices=list(KINDS))
    options = parser.parse_args()
    if "examples" in options.parts:
        print_examples(options.features, options.photos, options.model)
    if "photographs" in options.parts:
        data = image_folder(options.photos)
        names = data.class_names[::2]
        print(f"\nconfirmed on: photographs, {len(names)} labels, {options.count} canvases")
        found = several_labels(partial(photo_canvas, data), names, options.count, options.model)
        print(found.round(1).to_markdown(), flush=True)
    for purpose in options.on if {"labels", "maps"} & set(options.parts) else ():
        for name, kind in KINDS[purpose].items():
            codes, labels = classes_of(kind)
            print(f"\n{purpose}: {name}, {len(labels)} labels, {options.count} canvases")
            if "labels" in options.parts:
                found = several_labels(partial(canvas, codes, kind), labels, options.count)
                print(found.round(1).to_markdown(), flush=True)
            if "maps" in options.parts:
                print(heat_maps(kind, options.count // 5).to_markdown(), flush=True)


if __name__ == "__main__":
    main()
