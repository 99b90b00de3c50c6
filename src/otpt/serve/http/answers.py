"""Predictions as the JSON of an answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
        "set": None if prediction.set is None else list(prediction.set),
        "abstained": prediction.abstained,
        "unknown": prediction.rejected if rejecting else None,
        "flags": list(prediction.flags),
        "extras": {name: float(v) if math.isfinite(v) else None for name, v in prediction.extras.items()},
    }


def predicted(query: Query, answer: Answer, top: int) -> dict[str, Any]:
    """One image of ``/v1/predict``."""
    (only,) = answer.predictions.values()
    return result(only, top, rejecting=query.settings.reject is not None)


def compared(query: Query, answer: Answer, top: int) -> dict[str, Any]:
    """One image of ``/v1/compare``."""
    rejecting = query.settings.reject is not None
    found = {name: result(each, top, rejecting=rejecting) for name, each in answer.predictions.items()}
    return {"methods": found, **({} if answer.views is None else {"views": answer.views})}


def scored(answer: Answer) -> list[dict[str, Any]]:
    """All labels, the most probable first, as Hugging Face's clients expect them."""
    (only,) = answer.predictions.values()
    return [{"label": label, "score": score} for label, score in only.top(len(only))]


def answered(
    answers: Sequence[Answer | OtptError], show: Callable[[Answer], dict[str, Any]], seconds: Mapping[str, float]
) -> dict[str, Any]:
    """A result for each image, and where the time went.

    The error of a single image is that of the request; of several images each has its own in its place.
    """
    if len(answers) == 1 and isinstance(answers[0], OtptError):
        raise unusable_image(answers[0])
    results = [unusable_image(each).content() if isinstance(each, OtptError) else show(each) for each in answers]
    return {"results": results, "seconds": {part: round(value, 6) for part, value in seconds.items()}}
