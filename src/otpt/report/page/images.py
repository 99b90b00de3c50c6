"""The images worth looking at: where methods are confident of different answers, or confident and wrong."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from otpt.data import find_entry, load_dataset, stratified
from otpt.data.dataset import is_own
from otpt.errors import OtptError
from otpt.images import open_image
from otpt.runs import DatasetConfig, Rows

THUMBNAIL = 128
"""Longer side of a thumbnail in pixels."""


def thumbnails(config: DatasetConfig, root: Path | None) -> tuple[Callable[[int], str | None], str | None]:
    """A function from the position of an image to its thumbnail as a data URI; or why there are none."""
    name = str(config["source"] if is_own(config.get("source")) else config["name"])
    reason = None
    if name.startswith("hf:"):
        reason = "they are on the Hugging Face hub, and nothing is downloaded"
    elif not is_own(config.get("source")) and not name.startswith("emoji/") and find_entry(name) is None:
        reason = "the run does not say where they are"
    else:
        try:
            data = stratified(load_dataset(name, root=root))  # the order of an evaluation
            if data.fingerprint != config["fingerprint"]:
                reason = "the data that are here now are not those that the run saw"
        except OtptError as error:
            reason = str(error).split(". ")[0].rstrip(".")
    if reason is not None:
        return (lambda index: None), f"The images are not shown: {reason}."

    def thumbnail(index: int) -> str | None:
        try:
            return data_uri(open_image(data[index].source))
        except OtptError:
            return None

    return thumbnail, None


def data_uri(image: Image.Image) -> str:
    """A small JPEG as a data URI."""
    image = image.copy()
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=72)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def choose_images(
    rows: Mapping[str, Rows], classes: Sequence[str], thumbnail: Callable[[int], str | None], count: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Images on which methods disagree most, and on which one is most confident and wrong; ``count`` of each at most.

    Two methods disagree on an image as much as the less confident of them is confident, max over pairs a ≠ b with
    different answers of min(conf_a, conf_b).
    """
    shared = reduce(np.intersect1d, [each.indices for each in rows.values()])
    if not len(shared):
        return [], []
    places = {method: np.searchsorted(each.indices, shared) for method, each in rows.items()}
    confidences = np.stack([each.confidences[places[method]] for method, each in rows.items()])
    predictions = np.stack([each.predictions[places[method]] for method, each in rows.items()])
    correct = np.stack([each.correct[places[method]] for method, each in rows.items()])
    first = next(iter(rows))

    def show(at: int) -> dict[str, Any]:
        answers = [
            {
                "method": method,
                "label": classes[predictions[k, at]],
                "percent": _percent(confidences[k, at]),
                "correct": bool(correct[k, at]),
            }
            for k, method in enumerate(rows)
        ]
        place = places[first][at]
        label = classes[rows[first].labels[place]]
        return {
            "name": rows[first].ids[place],
            "label": label,
            "answers": answers,
            "source": thumbnail(int(shared[at])),
        }

    both = np.minimum(confidences[:, None], confidences[None])  # (K, K, N)
    disagreement = np.where(predictions[:, None] != predictions[None], both, 0.0).max(axis=(0, 1))
    wrong = np.where(correct, 0.0, confidences).max(axis=0)
    return [show(i) for i in _largest(disagreement, count)], [show(i) for i in _largest(wrong, count)]


def _percent(confidence: float) -> str:
    """A confidence below 1 never reads as 100 %."""
    whole = f"{100 * confidence:.0f} %"
    return "> 99 %" if whole == "100 %" and confidence < 1 else whole


def _largest(values: npt.NDArray[np.float64], count: int) -> list[int]:
    """Positions of the greatest values above 0, greatest first."""
    return [int(i) for i in np.argsort(-values, kind="stable")[:count] if values[i] > 0]
