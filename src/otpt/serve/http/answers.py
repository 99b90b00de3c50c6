"""Predictions as the JSON of an answer."""

from __future__ import annotations

import math
from typing import Any

from otpt.errors import OtptError
from otpt.prediction import Prediction
from otpt.serve.http.errors import unusable_image
from otpt.serve.jobs import Answer, Query


def result(prediction: Prediction, top: int, *, rejecting: bool) -> dict[str, Any]:
    """What a method says of an image; see :class:`otpt.serve.http.schemas.Result`."""
    return {
        "label": prediction.label,
        "confidence": prediction.confidence,
        "index": prediction.index,
        "top": [{"label": label, "score": score} for label, score in prediction.top(top)],
        "set": None if prediction.labels is None else list(prediction.labels),
        "abstained": prediction.abstained,
        "unknown": prediction.rejected if rejecting else None,
        "flags": list(prediction.flags),
        "extras": {name: float(v) if math.isfinite(v) else None for name, v in prediction.extras.items()},
    }


def predicted(query: Query, answer: Answer | OtptError, top: int) -> dict[str, Any]:
    """One image of ``/v1/predict``."""
    if isinstance(answer, OtptError):
        return _failed(answer)
    (only,) = answer.predictions.values()
    return result(only, top, rejecting=query.task.reject is not None)


def compared(query: Query, answer: Answer | OtptError, top: int) -> dict[str, Any]:
    """One image of ``/v1/compare``."""
    if isinstance(answer, OtptError):
        return _failed(answer)
    rejecting = query.task.reject is not None
    found = {name: result(each, top, rejecting=rejecting) for name, each in answer.predictions.items()}
    return {"methods": found, **({} if answer.views is None else {"views": answer.views})}


def scored(answer: Answer) -> list[dict[str, Any]]:
    """All labels, the most probable first, as Hugging Face's clients expect them."""
    (only,) = answer.predictions.values()
    return [{"label": label, "score": score} for label, score in only.top(len(only))]


def rounded(seconds: dict[str, float]) -> dict[str, float]:
    """To microseconds."""
    return {part: round(value, 6) for part, value in seconds.items()}


def _failed(error: OtptError) -> dict[str, Any]:
    return unusable_image(error).content()
