"""Prediction sets from views: ``python -m benchmarks.view_sets [--sets NAME …] [--images N] [--views V] [--draws R]``.

Emoji sets with ``pocket``: LAC and APS of the clean view, of the mean logit of the views (``mean-logit``), and of the
weights that :func:`fit_view_weights` learns from a fifth of the images; two fifths calibrate, two
fifths are measured. Printed are coverage and size of the sets over random draws, and the difference in size to the
clean view's on the same images; intervals are 1.96 standard errors over the draws.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from scipy.optimize import minimize

from otpt.backbones import load_backbone
from otpt.calibration.conformal import conformal_quantile, conformal_scores
from otpt.data import load_dataset, stratified
from otpt.features.pipeline import EncodedImage, FeaturePipeline, ImageTask
from otpt.methods.state import prompt_state
from otpt.views import ViewRecipe

COVERAGES = (0.8, 0.9, 0.95)
Measured = dict[tuple[str, str, float], list[tuple[float, float]]]


def view_logits(name: str, images: int, views: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits (N, V, C) and labels (N,) of an emoji set."""
    backbone, data = load_backbone("pocket", device="cpu"), stratified(load_dataset(name))
    texts = prompt_state(backbone, data.class_names, tunes=False).text_features
    recipe = ViewRecipe(n_views=views, augmix=data.augmix)
    count = min(images, len(data))
    tasks = (ImageTask(i, partial(data.source, i), [recipe], 0) for i in range(count))
    found = []
    for _, image in FeaturePipeline(backbone)(tasks):
        assert isinstance(image, EncodedImage)
        found.append(backbone.logit_scale * image.features[recipe.kind] @ texts.mT)
    return torch.stack(found).double().numpy(), np.asarray(data.labels[:count])


def softmax(logits: np.ndarray) -> np.ndarray:
    """(N, C)."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def fit_view_weights(view_logits: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Weights (a, b) of softmax(a·ℓ_0 + b·mean_v ℓ_v) of least cross-entropy: (N, V, C) and (N,).

    The mean is over the augmented views. Shanmugam et al., CVPR 2025, arXiv 2505.22764, with two weights, since random
    views are exchangeable.
    """
    parts = np.stack([view_logits[:, 0], view_logits[:, 1:].mean(axis=1)]).astype(np.float64)  # (2, N, C)
    rows = np.arange(len(labels))

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        p = softmax(np.tensordot(weights, parts, axes=1))
        expected = (parts * p).sum(axis=2) - parts[:, rows, labels]
        return float(-np.log(p[rows, labels]).mean()), expected.mean(axis=1)

    share = 1 / view_logits.shape[1]
    best = minimize(loss, np.array([share, 1 - share]), jac=True, method="L-BFGS-B", options={"ftol": 1e-14}).x
    return float(best[0]), float(best[1])


def measure(logits: np.ndarray, labels: np.ndarray, draws: int) -> Measured:
    """(coverage, size) of each draw, by kind of sets, prediction and coverage."""
    found: Measured = {}
    clean, rest = logits[:, 0], logits[:, 1:].mean(axis=1)
    for draw in range(draws):
        order = np.random.default_rng(draw).permutation(len(labels))
        fit, calibration, test = np.split(order, [len(order) // 5, 3 * len(order) // 5])
        a, b = fit_view_weights(logits[fit], labels[fit])
        predictions = {"clean": clean, "view-mean": logits.mean(axis=1), "view-weights": a * clean + b * rest}
        for name, values in predictions.items():
            p = softmax(values)
            for kind in ("lac", "aps"):
                scores = conformal_scores(kind, p)
                for coverage in COVERAGES:
                    limit = conformal_quantile(scores[calibration, labels[calibration]], coverage)
                    sets = scores[test] <= limit
                    covered = sets[np.arange(len(test)), labels[test]].mean()
                    found.setdefault((kind, name, coverage), []).append((covered, sets.sum(axis=1).mean()))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=["emoji/animals", "emoji/food", "emoji/objects"], metavar="NAME")
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--views", type=int, default=16)
    parser.add_argument("--draws", type=int, default=20)
    given = parser.parse_args(arguments)
    print(
        "| set | sets | prediction | coverage % | measured % | size | size − clean % |\n|---|---|---|--:|--:|--:|--:|"
    )
    for name in given.sets:
        logits, labels = view_logits(name, given.images, given.views)
        found = measure(logits, labels, given.draws)
        for (kind, prediction, coverage), values in found.items():
            (covered, size), n = np.mean(values, axis=0), np.sqrt(len(values))
            sizes = np.array([each[1] for each in values])
            base = np.array([each[1] for each in found[kind, "clean", coverage]])
            change = 100 * (sizes / base - 1)
            error, spread = 1.96 * np.std(change, ddof=1) / n, 1.96 * np.std(sizes, ddof=1) / n
            print(
                f"| {name} | {kind} | {prediction} | {100 * coverage:g} | {100 * covered:.1f} | "
                f"{size:.2f} ± {spread:.2f} | {change.mean():+.1f} ± {error:.1f} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
