"""Thresholds of rejection that adapt without labels: ``python -m benchmarks.rejection [--photographs …] [--write]``.

Half of the classes are withheld, three draws; their images are unknown. Next to the default thresholds, rules that look
at the class list or at the images seen; a rule is of use if it keeps its share of known images on every kind of data.
On real features (``--features``) Caltech101's texts meet images of other sets. ``--write`` updates docs/calibrate.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.pages import put_into
from benchmarks.real_clip import SCALE, arrays
from benchmarks.real_clip import load as load_features
from otpt import Classifier, load
from otpt.data import Dataset, stratified
from otpt.data.emoji import GROUPS, SHIFTS, emoji_dataset
from otpt.data.own import image_folder
from otpt.prompts import MEMORY_BUDGET, Prompt
from otpt.rejection import SCORES, furthest_first, negative_words, text_features_of

Floats = npt.NDArray[np.float64]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "calibrate.md"
DRAWS = 3
SHARE = 0.05
"""Of the known images, which an adaptive rule promises to reject at most; or of the unknown ones, to accept."""


class Case(NamedTuple):
    """Unit features of known and unknown images, of the known classes' texts and, with a text tower, of words."""

    known: Tensor
    unknown: Tensor
    texts: Tensor
    words: Tensor | None
    scale: float


def standing_out(cosines: Tensor) -> Tensor:
    """(max − mean)/sd over the classes: (…, C) → (…)."""
    return (cosines.amax(dim=-1) - cosines.mean(dim=-1)) / cosines.std(dim=-1)


def without_best(cosines: Tensor) -> Tensor:
    """Cosines (N, C − 1) without each image's best class: what they would be if that were not in the list."""
    return cosines.sort(dim=-1).values[:, :-1]


def otsu(values: Floats) -> float:
    """The threshold of smallest variance within the two groups that it makes."""
    ordered = np.sort(values)
    n = np.arange(1, len(ordered))
    low, total = np.cumsum(ordered)[:-1] / n, ordered.sum()
    high = (total - np.cumsum(ordered)[:-1]) / (len(ordered) - n)
    best = int(np.argmax(n * (len(ordered) - n) * (low - high) ** 2))
    return float(ordered[best] + ordered[best + 1]) / 2


def rejected(case: Case) -> Iterator[tuple[str, Floats, Floats, float]]:
    """By rule: the score of known and unknown images, and its threshold; above it an image is rejected."""
    parts = [rows @ case.texts.mT for rows in (case.known, case.unknown)]
    words = None if case.words is None else [rows @ case.words.mT for rows in (case.known, case.unknown)]
    for name, score in SCORES.items():
        if score.threshold is None or (score.needs_words and words is None):
            continue
        found = []
        for i, cosines in enumerate(parts):
            logits = case.scale * cosines
            given = {"cosines": cosines, "logits": logits, "probabilities": logits.softmax(dim=-1)}
            if words is not None:
                given["word_cosines"] = words[i]
            found.append(score.function(**{key: given[key] for key in score.inputs}).double().numpy())
        yield f"{name}, default", found[0], found[1], score.threshold
        yield f"{name}, two groups of the images seen", found[0], found[1], otsu(np.concatenate(found))
        quantile = np.quantile(np.concatenate(found), 1 - SHARE)
        yield f"{name}, quantile of the images seen", found[0], found[1], float(quantile)
    known, unknown = (-standing_out(cosines).double().numpy() for cosines in parts)
    among = case.texts @ case.texts.mT
    others = among[~torch.eye(len(among), dtype=torch.bool)].view(len(among), -1)
    for name, nothing in (
        ("texts without their class", others),
        ("images without theirs", without_best(torch.cat(parts))),
    ):
        threshold = np.quantile(-standing_out(nothing).double().numpy(), SHARE)
        yield f"best class against the others, as {name}", known, unknown, float(threshold)


def halves(clf: Classifier, dataset: Dataset, images: int) -> Iterator[Case]:
    """Cases of a data set: half of the classes withheld."""
    chosen = stratified(dataset).in_order(range(min(images, len(dataset))))
    features = clf.embed([each.source for each in chosen], workers=0)
    words = [word for word in negative_words() if word not in {name.lower() for name in dataset.class_names}]
    texts, of_words = (
        text_features_of(clf.backbone, names, Prompt(), MEMORY_BUDGET) for names in (chosen.class_names, words)
    )
    classes = sorted(set(chosen.labels))
    for draw in range(DRAWS):
        kept = np.sort(np.random.default_rng(draw).permutation(classes)[: len(classes) // 2])
        inside = torch.from_numpy(np.isin(chosen.labels, kept))
        near = texts[torch.from_numpy(kept)]
        scale = clf.backbone.logit_scale
        yield Case(features[inside], features[~inside], near, of_words[furthest_first(of_words, near)], scale)


def emoji(images: int) -> Iterator[Case]:
    """The thirteen emoji sets with ``pocket``."""
    clf = load("pocket", device="cpu")
    for name in GROUPS + SHIFTS:
        yield from halves(clf, emoji_dataset(f"emoji/{name}"), images)


def photographs(folder: Path, model: Path, images: int) -> Iterator[Case]:
    """Caltech101 and EuroSAT with a surrogate."""
    clf = load(f"local-dir:{model}", device="cpu")
    for name in ("caltech101", "eurosat"):
        yield from halves(clf, image_folder(folder / name), images)


def real_features(folder: Path) -> Iterator[Case]:
    """Texts of Caltech101-58 and its images, against those of DTD, UCF101 and FGVC Aircraft."""
    data = load_features(folder)[0].test
    known, _, _ = arrays(data)
    for other in ("dtd", "ucf101", "fgvc"):
        features = np.load(folder / f"{other}_vitb32.npz")["test_features"].astype(np.float32)
        unknown = normalize(torch.from_numpy(features), dim=1)
        yield Case(known, unknown, torch.from_numpy(data.text_features), None, SCALE)


def measured(cases: Iterable[Case]) -> pd.DataFrame:
    """Shares of known and unknown images that each rule rejects, averaged over cases, and their extremes."""
    rows = []
    for case in cases:
        for rule, known, unknown, threshold in rejected(case):
            rows.append((rule, 100 * (known > threshold).mean(), 100 * (unknown > threshold).mean()))
    return pd.DataFrame(rows, columns=["rule", "known", "unknown"])


def main() -> None:
    """Measure what is given, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=200, help="of each set (default: %(default)s)")
    parser.add_argument("--photographs", type=Path, help="a folder with caltech101/ and eurosat/")
    parser.add_argument("--model", type=Path, help="an open_clip folder, for the photographs")
    parser.add_argument("--features", type=Path, help="the folder of benchmarks.real_clip")
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    options = parser.parse_args()
    found = {"emoji": measured(emoji(options.images))}
    if options.photographs is not None:
        found["photographs"] = measured(photographs(options.photographs, options.model, options.images))
    if options.features is not None:
        found["ViT-B/32 features"] = measured(real_features(options.features))
    titles = ["rule", *found]
    lines = [titles, ["---"] * len(titles)]
    for rule in found["emoji"].rule.unique():
        cells = []
        for frame in found.values():
            own = frame[frame.rule == rule]
            extremes = f" ({own.known.min():.0f} … {own.known.max():.0f})"
            cells.append(f"{own.known.mean():.1f}{extremes} / {own.unknown.mean():.1f}" if len(own) else "–")
        lines.append([rule, *cells])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    print(table)
    if options.write:
        put_into(PAGE, "rejection", table)


if __name__ == "__main__":
    main()
