"""Image features as a data set: ``.npz`` files, and Parquet tables as ``otpt embed`` writes them.

| array of an ``.npz`` file | shape | |
|---|---|---|
| ``features`` (or ``image_features``) | (N, D) or (N, V, D) | of the clean view, or of V views, the clean one first |
| ``labels`` | (N,) | numbers from 0, or class names |
| ``class_names`` (or ``classnames``, ``classes``) | (C,) | unless ``--classes`` has them |
| ``text_features`` | (C, D) | optional: without them a backbone encodes the class names |
| ``ids``, ``logit_scale``, ``backbone`` | (N,), number, text | optional: by default row numbers and 100 |

With ``split="val"``, arrays called ``val_features`` and ``val_labels`` come first. A Parquet table has the columns
``feature`` (list of numbers), ``id``, and ``label``; without labels the first folder of an id is the class.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import torch

from otpt.arguments import checked
from otpt.arrays import check_directions
from otpt.data.classes import ClassList, class_list_of
from otpt.data.dataset import DEFAULT_PROMPT, Conventions, Dataset
from otpt.data.own import origin_of, resolve_labels
from otpt.data.registered import shortened
from otpt.errors import OtptError, cannot_read
from otpt.images import ImageFeatures

Array = npt.NDArray[np.generic]

_CLASSES = ("class_names", "classnames", "classes")
_LOGIT_SCALE = 100.0
"""Logit scale of the released CLIP models."""


@dataclass(frozen=True, eq=False)
class _Rows:
    """Row → features (V, D)."""

    features: npt.NDArray[np.float32]

    def __call__(self, index: int) -> ImageFeatures:
        return ImageFeatures(self.features[index])


class FeatureDataset(Dataset):
    """Data set of image features; see :func:`feature_dataset`.

    Attributes:
        text_features: (C, D), or None if a backbone encodes the class names.
        logit_scale: logits = logit_scale · image features · text features.
        backbone: name of the model that made the features; "" if unknown.
    """

    text_features: npt.NDArray[np.float32] | None
    logit_scale: float
    backbone: str
    _images: _Rows

    @property
    def width(self) -> int:
        """Number of dimensions of the features."""
        return self._images.features.shape[2]

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the data set including its features."""
        digest = hashlib.sha256(super().fingerprint.encode())
        digest.update(self._images.features[list(self._positions)].tobytes())
        if self.text_features is not None:
            digest.update(self.text_features.tobytes() + str(self.logit_scale).encode())
        return digest.hexdigest()[:32]

    def with_texts(self, text_features: npt.ArrayLike, *, drop_missing: bool = False) -> Self:
        """Return the data set with text features, which are scaled to unit norm.

        Args:
            text_features: (C, D); a row of NaN or zeros is a class without a text.
            drop_missing: leave out classes without a text, and their images; otherwise they are an error.
        """
        texts = _floats(text_features, f"text features of {self.name!r}", (2,))
        if texts.shape != (len(self.class_names), self.width):
            raise OtptError(
                f"The data set {self.name!r} has text features of shape {texts.shape}; expected "
                f"({len(self.class_names)}, {self.width}), one row per class and as wide as the image features."
            )
        present = _directions(texts)
        missing = [self.class_names[i] for i in np.flatnonzero(~present)]
        if missing and not drop_missing:
            raise OtptError(
                f"The data set {self.name!r} has {len(missing)} classes without a text feature ({shortened(missing)}); "
                "give them one, or leave them and their images out with --drop-missing-texts."
            )
        dataset = self.in_order([i for i, label in enumerate(self.labels) if present[label]])
        new_labels = np.cumsum(present) - 1
        dataset.labels = tuple(int(new_labels[label]) for label in dataset.labels)
        dataset.class_names = tuple(self.class_names[i] for i in np.flatnonzero(present))
        dataset.text_features = _unit(texts[present])
        return dataset


@checked
def feature_dataset(
    features: npt.ArrayLike,
    labels: npt.ArrayLike,
    class_names: Sequence[str] | ClassList | None,
    text_features: npt.ArrayLike | None = None,
    *,
    name: str = "features",
    ids: Sequence[str] | None = None,
    logit_scale: float = _LOGIT_SCALE,
    backbone: str = "",
) -> FeatureDataset:
    """Make a data set of image features, which are scaled to unit norm.

    Args:
        features: (N, D) of the clean view, or (N, V, D) of V views, the clean one first.
        labels: (N,) numbers from 0, or class names.
        class_names: (C,); None takes the labels themselves, in alphabetical order.
        text_features: (C, D), one row per class; see :meth:`FeatureDataset.with_texts` for classes without one.
        name: name of the data set.
        ids: (N,) names of the images; row numbers by default.
        logit_scale: factor of the cosine similarities in the logits.
        backbone: name of the model that made the features.
    """
    where = f"The data set {name!r}"
    images = _floats(features, f"image features of {name!r}", (2, 3))
    views = images[:, None] if images.ndim == 2 else images
    check_directions(torch.from_numpy(views), where)
    class_list = None if class_names is None else class_list_of(class_names)
    listed, indices = resolve_labels([str(label) for label in np.asarray(labels).tolist()], class_list, where)
    image_ids = [str(image_id) for image_id in (range(len(views)) if ids is None else ids)]
    if not len(image_ids) == len(views) == len(indices):
        raise OtptError(f"{where} has {len(views)} images, {len(indices)} labels and {len(image_ids)} ids.")
    conventions = Conventions(
        family=listed.family or "fine-grained", prompt=listed.prompt or DEFAULT_PROMPT, allow_duplicates=True
    )
    dataset = FeatureDataset(name, listed.names, image_ids, indices, _Rows(_unit(views)), conventions=conventions)
    dataset.views = views.shape[1]
    dataset.logit_scale = logit_scale
    dataset.backbone = backbone
    return dataset if text_features is None else dataset.with_texts(text_features)


@checked
def read_features(
    path: str | Path, *, split: str = "test", classes: ClassList | None = None, drop_missing_texts: bool = False
) -> FeatureDataset:
    """Read a file of features; see the module."""
    path = Path(path)
    try:
        arrays = _read_npz(path) if path.suffix.lower() == ".npz" else _read_parquet(path)
    except Exception as error:  # zipfile, NumPy and pyarrow raise nearly anything for a damaged file
        raise cannot_read("features", path, error) from None

    def array(*names: str) -> Array | None:
        keys = [key for name in names for key in (f"{split}_{name}", name)]
        return next((arrays[key] for key in keys if key in arrays), None)

    features, labels, names = array("features", "image_features"), array("labels"), array(*_CLASSES)
    if features is None or labels is None:
        raise OtptError(
            f"{str(path)!r} has {', '.join(map(repr, arrays)) or 'nothing'} for the split {split!r}; expected "
            "'features' and 'labels'."
        )
    texts, scale, backbone, ids = array("text_features"), array("logit_scale"), array("backbone"), array("ids")
    if scale is None and texts is not None:
        warnings.warn(
            f"{str(path)!r} has no logit_scale: {_LOGIT_SCALE:g} is assumed, as of OpenAI's CLIP. Confidences and ECE "
            "depend on it.",
            stacklevel=2,
        )
    dataset = feature_dataset(
        features,
        labels,
        classes or (None if names is None else names.astype(str).tolist()),
        name=path.stem,
        ids=None if ids is None else ids.tolist(),
        logit_scale=_LOGIT_SCALE if scale is None else float(scale.item()),
        backbone="" if backbone is None else str(backbone),
    )
    dataset.origin = origin_of(path)
    return dataset if texts is None else dataset.with_texts(texts, drop_missing=drop_missing_texts)


def _read_npz(path: Path) -> Mapping[str, Array]:
    # Arrays of Python objects, which could run code, are refused.
    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
        return dict(file)


def _read_parquet(path: Path) -> Mapping[str, Array]:
    table = pq.read_table(path)
    metadata = table.schema.metadata or {}
    columns = table.to_pandas()
    columns = columns[columns["feature"].notna()]  # images that could not be read have none
    arrays: dict[str, Array] = {
        "features": np.stack(columns["feature"].to_numpy()),
        "backbone": np.asarray(metadata.get(b"otpt.model", b"").decode()),
    }
    ids: list[str] = columns["id"].astype(str).tolist() if "id" in columns else []
    if "id" in columns:
        arrays["ids"] = columns["id"].astype(str).to_numpy()
    if "label" in columns:
        arrays["labels"] = columns["label"].to_numpy()
    elif ids and all("/" in image_id for image_id in ids):
        arrays["labels"] = np.asarray([image_id.rsplit("/", 2)[-2] for image_id in ids])
    return arrays


def _floats(values: npt.ArrayLike, what: str, dimensions: tuple[int, ...]) -> npt.NDArray[np.float32]:
    array = np.asarray(values)
    if array.ndim not in dimensions or not np.issubdtype(array.dtype, np.floating) or not array.size:
        raise OtptError(
            f"The {what} have shape {array.shape} and type {array.dtype}; expected floats in "
            f"{' or '.join(map(str, dimensions))} dimensions."
        )
    return array.astype(np.float32)


def _directions(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Return a mask (…) of rows (…, D) that are finite and not all zero."""
    mask: npt.NDArray[np.bool_] = np.isfinite(rows).all(axis=-1) & (rows != 0).any(axis=-1)
    return mask


def _unit(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    unit: npt.NDArray[np.float32] = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return unit
