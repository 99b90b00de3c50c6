"""From predictions to the rows of a part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from otpt.evaluation.parts import KEPT_SHARE, SUM_UNIT, TOP, Part, make_table

if TYPE_CHECKING:
    from otpt.classifier import Prediction


class PartRows:
    """Collects the rows of one part.

    Args:
        columns: (prompt, method) pairs in the order in which every picture is judged.
        classes: C.
        save_probabilities: keep all probabilities of every row.
    """

    def __init__(self, columns: tuple[tuple[str, str], ...], classes: int, *, save_probabilities: bool) -> None:
        self._columns = columns
        self._class_sums = np.zeros((len(columns), classes), np.int64)
        self._rows: list[dict[str, Any]] = []
        self._nothing: dict[str, Any] = {"probabilities": None} if save_probabilities else {}
        self._save = save_probabilities

    def add(self, index: int, picture_id: str, label: int, predictions: list[Prediction]) -> None:
        """A picture that was judged: one prediction for each (prompt, method)."""
        for k, ((prompt, method), prediction) in enumerate(zip(self._columns, predictions, strict=True)):
            self._class_sums[k] += np.rint(np.minimum(prediction.probabilities, 1.0) / SUM_UNIT).astype(np.int64)
            row = {"id": picture_id, "index": index, "label": label, "prompt": prompt, "method": method, "error": None}
            self._rows.append({**row, **_judgement(prediction, label)})
            if self._save:
                self._rows[-1]["probabilities"] = prediction.probabilities.astype(np.float32)

    def add_unreadable(self, index: int, picture_id: str, label: int, reason: str) -> None:
        """A picture that could not be judged."""
        for prompt, method in self._columns:
            row = {"id": picture_id, "index": index, "label": label, "prompt": prompt, "method": method}
            self._rows.append({**row, **_NO_JUDGEMENT, **self._nothing, "error": reason})

    def part(self) -> Part:
        """All rows so far."""
        names = self._rows[0].keys()
        return Part(make_table({name: [row[name] for row in self._rows] for name in names}), self._class_sums)


def _judgement(prediction: Prediction, label: int) -> dict[str, Any]:
    p = prediction.probabilities
    of_label = p[label]
    order = np.argsort(-p, kind="stable")
    kept = order[: max(TOP, int((p >= KEPT_SHARE).sum()))]
    logs = np.log(p, out=np.zeros_like(p), where=p > 0)
    return {
        "prediction": prediction.index,
        "correct": prediction.index == label,
        "confidence": min(prediction.confidence, 1.0),
        "probability": float(of_label),
        # of tied classes the one listed first ranks higher
        "rank": int((p > of_label).sum() + (p[:label] == of_label).sum()),
        "entropy": max(float(-(p * logs).sum()), 0.0),
        "squares": float(np.square(p).sum()),
        "top_classes": kept,
        "top_probabilities": p[kept],
        "mean_cosine": prediction.mean_cosine,
        "flags": list(prediction.flags),
    }


_NO_JUDGEMENT = dict.fromkeys(
    (
        "prediction",
        "correct",
        "confidence",
        "probability",
        "rank",
        "entropy",
        "squares",
        "top_classes",
        "top_probabilities",
        "mean_cosine",
        "flags",
    )
)
