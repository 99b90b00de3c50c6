"""Area under the ROC curve, by which FPT chooses its epoch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def macro_auc(probabilities: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> float:
    """Mean over classes of P[score of an image of the class > score of another], ties counting half.

    Probabilities (N, C), labels (N,). Classes without images, or with all, are left out; 0.5 if none is left.
    """
    areas = []
    for label, scores in enumerate(probabilities.T):
        inside = labels == label
        count = int(inside.sum())
        if 0 < count < len(labels):
            _, position, counts = np.unique(scores, return_inverse=True, return_counts=True)
            ranks = (np.cumsum(counts) - (counts - 1) / 2)[position]
            areas.append((ranks[inside].sum() - count * (count + 1) / 2) / (count * (len(labels) - count)))
    return float(np.mean(areas)) if areas else 0.5
