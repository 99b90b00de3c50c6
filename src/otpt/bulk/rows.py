"""Predictions as plain rows, and rows as flat columns of tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from otpt.arguments import checked
from otpt.bulk.jobs import Answer
from otpt.prediction import Failure, Prediction

Row = Mapping[str, object]
"""Columns of one image, or of one image and method; nested values are flattened in tables."""

_FIRST = ("image", "method", "label", "confidence")
_NESTED = ("top", "flags", "extras", "set", "labels_above", "groups", "back_off")


def answer_rows(
    image: str, answer: Answer, top: int, *, several_labels: bool, ranked: bool = False
) -> list[dict[str, object]]:
    """Return an answer as plain data, one row per method: the content of ``--json`` and of files.

    Args:
        image: name of the image.
        answer: predictions by method, or a failure.
        top: number of best classes.
        several_labels: whether labels are independent of each other.
        ranked: whether to add the :func:`uncertainty`.
    """
    if isinstance(answer, Failure):
        return [{"image": image, "error": str(answer.error)}]
    rows = []
    for method, prediction in answer.items():
        row = {"image": image, "method": method, **_prediction_row(prediction, top, several_labels=several_labels)}
        if ranked:
            row["uncertainty"] = uncertainty(prediction, several_labels=several_labels)
        rows.append(row)
    return rows


@checked
def uncertainty(prediction: Prediction, *, several_labels: bool) -> float:
    """Return how uncertain a prediction is, from 0 to 1, to label such images first.

    It is one minus the confidence. With independent labels, it is one minus the distance of a label's probability to
    the threshold, as a share of the largest possible one, of the label that is nearest to it.
    """
    if not several_labels:
        return 1.0 - prediction.confidence if math.isfinite(prediction.confidence) else 1.0
    threshold = prediction.threshold
    distance = float(abs(prediction.probabilities - threshold).min()) / max(threshold, 1.0 - threshold)
    return 1.0 - distance if math.isfinite(distance) else 1.0


def _prediction_row(prediction: Prediction, top: int, *, several_labels: bool) -> dict[str, object]:
    """Return a prediction as plain data; what was asked is there also if the answer is none."""
    extras = {name: _finite(value) for name, value in prediction.extras.items()}
    row: dict[str, object] = {
        "label": prediction.label,
        "confidence": _finite(prediction.confidence),
        "top": [{"label": label, "probability": _finite(score)} for label, score in prediction.top(top)],
        "flags": list(prediction.flags),
        "extras": extras,
    }
    if prediction.set is not None:
        row["set"] = list(prediction.set)
    if prediction.abstained is not None:
        row["abstained"] = bool(prediction.abstained)
    if prediction.rejected is not None:
        row["rejected"] = bool(prediction.rejected)
        row["unknown_score"] = extras.pop("unknown_score", None)
    if several_labels:
        row["labels_above"] = prediction.labels_above()
    if prediction.groups is not None:
        best = prediction.back_off()
        row["groups"] = prediction.groups
        row["back_off"] = None if best is None else best._asdict()
    return row


def _finite(value: float) -> float | None:
    """Return a number for JSON, which has neither nan nor infinity."""
    return float(value) if math.isfinite(value) else None


def flat_row(row: Row, top: int | None) -> dict[str, object]:
    """Flatten a row: best classes, prediction set, flags and extras have their own columns.

    Args:
        row: row of :func:`answer_rows`, or any row without nested values.
        top: number of best classes with columns ``label_1``, ``probability_1`` …; None for none.
    """
    flat = {name: value for name, value in row.items() if name not in _NESTED}
    if "flags" not in row:
        return flat
    if top:
        for rank, best in enumerate(_items(row.get("top")), start=1):
            flat |= {f"{name}_{rank}": value for name, value in _mapping(best).items()}
    for name in ("set", "labels_above"):
        if name in row:
            flat[name] = " | ".join(map(str, _items(row[name])))
    flat |= {f"group {name}": value for name, value in _mapping(row.get("groups")).items()}
    if "back_off" in row:
        answer = _mapping(row["back_off"])
        flat["back_off"] = answer.get("name")
        flat["back_off_confidence"] = answer.get("confidence")
    flat["flags"] = " ".join(map(str, _items(row["flags"])))
    return {**flat, **_mapping(row.get("extras"))}


def columns_of(rows: Iterable[Row], key: str) -> list[str]:
    """Return the columns of flat rows: name of the image first, ``error`` last."""
    first = _FIRST if key == "image" else (key,)
    return error_last([*first, *(name for row in rows for name in row)])


def error_last(names: Iterable[str]) -> list[str]:
    """Return each name once, and ``error`` at the end."""
    return [*(name for name in dict.fromkeys(names) if name != "error"), "error"]


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) else ()


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
