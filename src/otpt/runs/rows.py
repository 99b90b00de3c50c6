"""From outputs of a method to the rows of a shard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from otpt.runs.shards import KEPT_PROBABILITY, SUM_UNIT, TOP, Shard, make_table

_PREDICTED = (
    "prediction", "correct", "confidence", "probability", "rank", "entropy", "squares", "top_classes",
    "top_probabilities", "flags",
)  # fmt: skip


class OutputLike(Protocol):
    """What a row is made of; :class:`otpt.methods.Output` has it."""

    @property
    def probabilities(self) -> npt.NDArray[np.float64]: ...
    @property
    def index(self) -> int: ...
    @property
    def confidence(self) -> float: ...
    @property
    def flags(self) -> tuple[str, ...]: ...
    @property
    def extras(self) -> Mapping[str, float]: ...


class ShardRows:
    """Collects the rows of one column.

    Args:
        column: (prompt, method).
        classes: C.
        save_probabilities: keep all probabilities of every row.
    """

    def __init__(self, column: tuple[str, str], classes: int, *, save_probabilities: bool) -> None:
        self._prompt, self._method = column
        self._class_sums = np.zeros(classes, np.int64)
        self._rows: list[dict[str, Any]] = []
        self._save = save_probabilities

    def add(self, index: int, image_id: str, label: int, output: OutputLike) -> None:
        """An image that was predicted."""
        self._class_sums += np.rint(np.minimum(output.probabilities, 1.0) / SUM_UNIT).astype(np.int64)
        row = {**self._image(index, image_id, label), "error": None, **_row(output, label), **output.extras}
        if self._save:
            row["probabilities"] = output.probabilities.astype(np.float32)
        self._rows.append(row)

    def add_unreadable(self, index: int, image_id: str, label: int, reason: str) -> None:
        """An image that could not be read."""
        self._rows.append({**self._image(index, image_id, label), "error": reason, **dict.fromkeys(_PREDICTED)})

    def shard(self, dataset: str, seed: int, *, first: int, start: int) -> Shard:
        """All rows so far, as images ``start`` and following."""
        names = list(dict.fromkeys(name for row in self._rows for name in row))
        if self._save and "probabilities" not in names:
            names.append("probabilities")
        table = make_table({name: [row.get(name) for row in self._rows] for name in names})
        column = (self._prompt, self._method)
        return Shard(dataset, seed, column, first, start, start + len(self._rows), table, self._class_sums)

    def _image(self, index: int, image_id: str, label: int) -> dict[str, Any]:
        return {"id": image_id, "index": index, "label": label, "prompt": self._prompt, "method": self._method}


def _row(output: OutputLike, label: int) -> dict[str, Any]:
    p = output.probabilities
    of_label = p[label]
    order = np.argsort(-p, kind="stable")
    kept = order[: max(TOP, int((p >= KEPT_PROBABILITY).sum()))]
    logs = np.log(p, out=np.zeros_like(p), where=p > 0)
    return {
        "prediction": output.index,
        "correct": output.index == label,
        "confidence": min(output.confidence, 1.0),
        "probability": float(of_label),
        # of tied classes the one listed first ranks higher
        "rank": int((p > of_label).sum() + (p[:label] == of_label).sum()),
        "entropy": max(float(-(p * logs).sum()), 0.0),
        "squares": float(np.square(p).sum()),
        "top_classes": kept,
        "top_probabilities": p[kept],
        "flags": list(output.flags),
    }
