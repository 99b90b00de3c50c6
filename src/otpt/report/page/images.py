"""Images of the page: where methods disagree, the most confident mistakes, and heat maps of mistakes."""

from __future__ import annotations

import base64
import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from PIL import Image

from otpt.backbones import Backbone, load_backbone, text_encoder
from otpt.classifier import Classifier
from otpt.data import FeatureDataset, find_entry, load_dataset, stratified
from otpt.data.dataset import Dataset, is_own
from otpt.errors import OtptError
from otpt.images import open_image
from otpt.prompts import Prompt
from otpt.prompts.tokens import whole_context
from otpt.runs import DatasetConfig, Rows, Run

_THUMBNAIL = 128
"""Longer side of a thumbnail in pixels."""


@dataclass(frozen=True)
class Answer:
    """What a method says of an image: the class, and its confidence in percent."""

    method: str
    correct: bool
    label: str
    percent: str


@dataclass
class Card:
    """An image with the answers of methods.

    Attributes:
        index: position of the image in the data set.
        source: thumbnail as a data URI; None if it cannot be read.
        map: heat map as a data URI.
    """

    index: int
    name: str
    label: str
    answers: Sequence[Answer]
    source: str | None = None
    map: str | None = None


def open_images(config: DatasetConfig, root: Path | None) -> Dataset:
    """Open the images of a data set in the order of an evaluation; :class:`OtptError` says why they are missing."""
    is_user_data = is_own(config.source)
    name = str(config.source if is_user_data else config.name)
    if name.startswith("hf:"):
        raise OtptError("they are on the Hugging Face hub, and nothing is downloaded")
    if not is_user_data and not name.startswith("emoji/") and find_entry(name) is None:
        raise OtptError("the run does not say where they are")
    data = stratified(load_dataset(name, root=root))
    if data.fingerprint != config.fingerprint:
        raise OtptError("the data that are here now are not those that the run saw")
    if isinstance(data, FeatureDataset):
        raise OtptError("the run used a file of features, without images")
    return data


def load_model(run: Run) -> Backbone:
    """Load the model of a run."""
    stored = run.config.backbone
    backbone = load_backbone(stored.name, precision=stored.precision or "float32")
    if backbone.fingerprint != stored.fingerprint:
        raise OtptError(f"The weights of {stored.name!r} are not those of the run {str(run.folder)!r}.")
    return backbone


def collect_answers(rows_of: Mapping[str, Rows]) -> pd.DataFrame:
    """Collect the predictions of methods, one row per method and image."""
    return pd.concat(
        pd.DataFrame(
            {
                "method": method,
                "index": rows.indices,
                "name": rows.ids,
                "label": rows.labels,
                "prediction": rows.predictions,
                "confidence": rows.confidences,
                "correct": rows.correct,
            }
        )
        for method, rows in rows_of.items()
    )


def choose_images(answers: pd.DataFrame, classes: Sequence[str], count: int) -> tuple[list[Card], list[Card]]:
    """Choose up to ``count`` images with the largest disagreement, and up to ``count`` most confident mistakes.

    Two methods disagree on an image as much as the less confident of them is confident, max over pairs a ≠ b with
    different answers of min(conf_a, conf_b). Only images that all methods have seen count.
    """
    wide = answers.pivot(index="index", columns="method").dropna()
    confidences, predictions = wide["confidence"].to_numpy(), wide["prediction"].to_numpy()  # (N, K)
    both = np.minimum(confidences[:, :, None], confidences[:, None])  # (N, K, K)
    disagreement = np.where(predictions[:, :, None] != predictions[:, None], both, 0.0).max(axis=(1, 2))
    wrong = np.where(wide["correct"].to_numpy(bool), 0.0, confidences).max(axis=1)

    def largest(values: npt.NDArray[np.float64]) -> list[Card]:
        order = [at for at in np.argsort(-values, kind="stable")[:count] if values[at] > 0]
        return [_card(answers[answers["index"] == wide.index[at]], classes) for at in order]

    return largest(disagreement), largest(wrong)


def add_thumbnails(cards: Sequence[Card], data: Dataset) -> None:
    """Add the image to each card, unless it cannot be read."""
    for card in cards:
        with contextlib.suppress(OtptError):
            card.source = _data_uri(open_image(data[card.index].source))


def explain_mistakes(
    answers: pd.DataFrame, config: DatasetConfig, data: Dataset, backbone: Backbone, count: int
) -> Iterator[Card]:
    """Yield the ``count`` most confident mistakes of each method with the zero-shot heat map of the prediction.

    Methods that make the same mistake share a card.
    """
    if backbone.text is None:
        raise OtptError(f"The model {backbone.name!r} has no text encoder, which heat maps need; leave out --explain.")
    words = (str(column.prompt["words"]) for column in config.columns if "words" in column.prompt)
    prompt = whole_context(text_encoder(backbone), Prompt(next(words, Prompt.words)))
    classifier = Classifier(backbone, "zero-shot").set_classes(config.classes, prompt, allow_duplicates=True)
    wrong = answers[~answers["correct"]].sort_values("confidence", ascending=False, kind="stable")
    chosen = set(wrong.groupby("method").head(count)[["index", "prediction"]].itertuples(index=False, name=None))
    for key, mistakes in wrong.groupby(["index", "prediction"], sort=False):
        if key in chosen:
            card = _card(mistakes, config.classes)
            heat = classifier.explain(data[card.index].source, card.answers[0].label)
            card.source = _data_uri(heat.image)
            card.map = _data_uri(heat.overlay())
            yield card


def _card(answers: pd.DataFrame, classes: Sequence[str]) -> Card:
    """Return the card of an image with the answers of methods to it."""
    first = answers.iloc[0]
    columns = (answers[name] for name in ("method", "correct", "prediction", "confidence"))
    said = [
        Answer(method, bool(correct), classes[prediction], _percent(confidence))
        for method, correct, prediction, confidence in zip(*columns, strict=True)
    ]
    return Card(int(first["index"]), first["name"], classes[first["label"]], said)


def _percent(confidence: float) -> str:
    """Format a confidence; one below 1 never reads as 100 %."""
    return "> 99 %" if 0.995 <= confidence < 1 else f"{100 * confidence:.0f} %"


def _data_uri(image: Image.Image) -> str:
    """Encode a thumbnail as a JPEG data URI."""
    small, buffer = image.copy(), io.BytesIO()
    small.thumbnail((_THUMBNAIL, _THUMBNAIL))
    small.save(buffer, "JPEG", quality=72)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
