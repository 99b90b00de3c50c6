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
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from otpt.data.classes import ClassList, class_list_of
from otpt.data.dataset import DEFAULT_PROMPT, Dataset
from otpt.data.own import origin_of, resolve_labels
from otpt.data.registered import shortened
from otpt.errors import OtptError, cannot_read
from otpt.images import ImageFeatures

Array = npt.NDArray[Any]

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


def feature_dataset(
    features: Any,
    labels: Any,
    class_names: Sequence[str] | ClassList | None,
    text_features: Any = None,
    *,
    name: str = "features",
    ids: Sequence[str] | None = None,
    logit_scale: float = _LOGIT_SCALE,
    backbone: str = "",
    drop_missing_texts: bool = False,
    origin: str | None = None,
) -> FeatureDataset:
    """Make a data set of image features (N, D) or (N, V, D), which are scaled to unit norm.

    Args:
        labels: (N,) numbers from 0, or class names.
        class_names: (C,); None takes the labels themselves, in alphabetical order.
        text_features: (C, D); a row of NaN is a class without a text, which is an error unless
            ``drop_missing_texts``: then the class and its images are left out.
    """
    where = f"The data set {name!r}"
    images = _floats(features, f"image features of {name!r}", (2, 3))
    views = images[:, None] if images.ndim == 2 else images
    bad = np.flatnonzero(~_directions(views).all(axis=1))
    if len(bad):
        raise OtptError(f"{where} has {len(bad)} images whose features are NaN or zero, such as row {bad[0]}.")
    given = None if class_names is None else class_list_of(class_names)
    listed, indices = resolve_labels([str(each) for each in np.asarray(labels).tolist()], given, where)
    own = [str(each) for each in (range(len(views)) if ids is None else ids)]
    if not len(own) == len(views) == len(indices):
        raise OtptError(f"{where} has {len(views)} images, {len(indices)} labels and {len(own)} ids.")
    found = FeatureDataset(
        name,
        listed.names,
        own,
        indices,
        _Rows(_unit(views)),
        family=listed.family or "fine-grained",
        prompt=listed.prompt or DEFAULT_PROMPT,
        allow_duplicates=True,
        origin=origin,
    )
    found.views, found.logit_scale, found.backbone = views.shape[1], logit_scale, backbone
    return found if text_features is None else _with_texts(found, text_features, drop_missing_texts)


def _with_texts(data: FeatureDataset, given: Any, drop_missing: bool) -> FeatureDataset:
    """Add text features (C, D); leave out classes without one, and their images, if requested."""
    texts = _floats(given, f"text features of {data.name!r}", (2,))
    if texts.shape != (len(data.class_names), data.width):
        raise OtptError(
            f"The data set {data.name!r} has text features of shape {texts.shape}; expected "
            f"({len(data.class_names)}, {data.width}), one row per class and as wide as the image features."
        )
    present = _directions(texts)
    missing = [data.class_names[i] for i in np.flatnonzero(~present)]
    if missing and not drop_missing:
        raise OtptError(
            f"The data set {data.name!r} has {len(missing)} classes without a text feature ({shortened(missing)}); "
            "give them one, or leave them and their images out with --drop-missing-texts."
        )
    found: Any = data.in_order([i for i, label in enumerate(data.labels) if present[label]])
    renumbered = np.cumsum(present) - 1
    found.labels = tuple(int(renumbered[label]) for label in found.labels)
    found.class_names = tuple(data.class_names[i] for i in np.flatnonzero(present))
    found.text_features = _unit(texts[present])
    return found


def read_features(
    path: Path, *, split: str = "test", classes: ClassList | None = None, drop_missing_texts: bool = False
) -> FeatureDataset:
    """Read a file of features; see the module."""
    try:
        arrays = _read_npz(path) if path.suffix.lower() == ".npz" else _read_parquet(path)
    except Exception as error:  # zipfile, NumPy and pyarrow raise nearly anything for a damaged file
        raise cannot_read("features", path, error) from None

    def array(*names: str) -> Array | None:
        return next((arrays[each] for name in names for each in (f"{split}_{name}", name) if each in arrays), None)

    features, labels, names = array("features", "image_features"), array("labels"), array(*_CLASSES)
    if features is None or labels is None:
        raise OtptError(
            f"{str(path)!r} has {', '.join(map(repr, arrays)) or 'nothing'} for the split {split!r}; expected "
            "'features' and 'labels'."
        )
    texts, scale, backbone, ids = (array(each) for each in ("text_features", "logit_scale", "backbone", "ids"))
    if scale is None and texts is not None:
        warnings.warn(
            f"{str(path)!r} has no logit_scale: {_LOGIT_SCALE:g} is assumed, as of OpenAI's CLIP. Confidences and ECE "
            "depend on it.",
            stacklevel=2,
        )
    return feature_dataset(
        features,
        labels,
        classes or (None if names is None else names.astype(str).tolist()),
        texts,
        name=path.stem,
        ids=None if ids is None else ids.tolist(),
        logit_scale=_LOGIT_SCALE if scale is None else float(scale),
        backbone="" if backbone is None else str(backbone),
        drop_missing_texts=drop_missing_texts,
        origin=origin_of(path),
    )


def _read_npz(path: Path) -> Mapping[str, Array]:
    # Arrays of Python objects, which could run code, are refused.
    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
        return dict(file)


def _read_parquet(path: Path) -> Mapping[str, Array]:
    table = pq.read_table(path)
    metadata = table.schema.metadata or {}
    columns = table.to_pandas()
    columns = columns[columns["feature"].notna()]  # images that could not be read have none
    found: dict[str, Array] = {
        "features": np.stack(columns["feature"].to_numpy()),
        "backbone": np.asarray(metadata.get(b"otpt.model", b"").decode()),
    }
    if "id" in columns:
        found["ids"] = columns["id"].astype(str).to_numpy()
    if "label" in columns:
        found["labels"] = columns["label"].to_numpy()
    elif "ids" in found and all("/" in each for each in found["ids"]):
        found["labels"] = np.asarray([each.rsplit("/", 2)[-2] for each in found["ids"]])
    return found


def _floats(given: Any, what: str, dimensions: tuple[int, ...]) -> npt.NDArray[np.float32]:
    array = np.asarray(given)
    if array.ndim not in dimensions or not np.issubdtype(array.dtype, np.floating) or not array.size:
        raise OtptError(
            f"The {what} have shape {array.shape} and type {array.dtype}; expected floats in "
            f"{' or '.join(map(str, dimensions))} dimensions."
        )
    return array.astype(np.float32)


def _directions(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Return a mask (…) of rows (…, D) that are finite and not all zero."""
    found: npt.NDArray[np.bool_] = np.isfinite(rows).all(axis=-1) & (rows != 0).any(axis=-1)
    return found


def _unit(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    found: npt.NDArray[np.float32] = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return found
