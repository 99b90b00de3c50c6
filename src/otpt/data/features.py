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
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from otpt.data.classes import ClassList
from otpt.data.dataset import DEFAULT_PROMPT, Dataset
from otpt.data.own import origin_of, resolve_labels
from otpt.errors import OtptError, cannot_read
from otpt.images import ImageFeatures

Array = npt.NDArray[Any]

_CLASSES = ("class_names", "classnames", "classes")
_LOGIT_SCALE = 100.0
"""Of every released CLIP."""
_SHOWN = 5


class FeatureDataset(Dataset):
    """Images of which only features are known; see :func:`feature_dataset`.

    Attributes:
        text_features: (C, D), or None if a backbone encodes the class names.
        logit_scale: logits = logit_scale · image features · text features.
        backbone: name of the model that made the features; "" if unknown.
    """

    text_features: npt.NDArray[np.float32] | None
    logit_scale: float
    backbone: str

    @property
    def width(self) -> int:
        """Of the features."""
        assert isinstance(self._images, _Rows)
        return self._images.features.shape[2]

    @cached_property
    def fingerprint(self) -> str:
        """As of any data set, with the features themselves."""
        digest = hashlib.sha256(super().fingerprint.encode())
        assert isinstance(self._images, _Rows)
        digest.update(self._images.features[list(self._positions)].tobytes())
        if self.text_features is not None:
            digest.update(self.text_features.tobytes() + str(self.logit_scale).encode())
        return digest.hexdigest()[:32]


class _Rows:
    """Row → features (V, D)."""

    def __init__(self, features: npt.NDArray[np.float32]) -> None:
        self.features = features

    def __call__(self, index: int) -> ImageFeatures:
        return ImageFeatures(self.features[index])


def feature_dataset(
    features: Any,
    labels: Any,
    class_names: Sequence[str] | ClassList,
    text_features: Any = None,
    *,
    name: str = "features",
    ids: Sequence[str] | None = None,
    logit_scale: float = _LOGIT_SCALE,
    backbone: str = "",
    drop_missing_texts: bool = False,
    origin: str | None = None,
) -> FeatureDataset:
    """A data set of image features (N, D) or (N, V, D), which are scaled to unit norm.

    Args:
        labels: (N,) numbers from 0, or class names.
        class_names: (C,).
        text_features: (C, D); a row of NaN is a class without a text, which is an error unless
            ``drop_missing_texts``: then the class and its images are left out.
    """
    listed = class_names if isinstance(class_names, ClassList) else ClassList(tuple(class_names), tuple(class_names))
    images, where = _checked(features, f"image features of {name!r}", (2, 3)), f"The data set {name!r}"
    views = images[:, None] if images.ndim == 2 else images
    bad = np.flatnonzero(~_directions(views).all(axis=1))
    if len(bad):
        raise OtptError(
            f"{where} has {len(bad)} images whose features are NaN, infinite or all zero, the first of them row "
            f"{bad[0]}; leave them out."
        )
    listed, indices = resolve_labels([str(each) for each in np.asarray(labels).tolist()], listed, where)
    outside = next((label for label in indices if label >= len(listed)), None)
    if len(indices) != len(views) or outside is not None:
        what = f"{len(indices)} labels of {len(views)} images" if outside is None else f"the label {outside}"
        raise OtptError(f"{where} has {what}; expected one of 0 to {len(listed) - 1} for each image.")
    kept, texts = np.arange(len(views)), None
    if text_features is not None:
        texts = _checked(text_features, f"text features of {name!r}", (2,))
        if texts.shape != (len(listed), views.shape[2]):
            raise OtptError(
                f"{where} has text features of shape {texts.shape}; expected ({len(listed)}, {views.shape[2]}), one "
                "row per class and as wide as the image features."
            )
        missing = [listed.names[i] for i in np.flatnonzero(~_directions(texts))]
        if missing and not drop_missing_texts:
            shown = ", ".join(missing[:_SHOWN]) + (" …" if len(missing) > _SHOWN else "")
            raise OtptError(
                f"{where} has {len(missing)} classes without a text feature ({shown}); give them one, or leave them "
                "and their images out with --drop-missing-texts."
            )
        present = _directions(texts)
        renumbered = np.cumsum(present) - 1
        kept = np.flatnonzero(present[list(indices)])
        indices = tuple(int(renumbered[indices[i]]) for i in kept)
        texts = _unit(texts[present])
        names = [each for each, good in zip(listed.names, present, strict=True) if good]
    else:
        names = list(listed.names)
    own = [str(each) for each in (range(len(views)) if ids is None else ids)]
    if len(own) != len(views):
        raise OtptError(f"{where} has {len(own)} ids of {len(views)} images; expected one for each.")
    found = FeatureDataset(
        name,
        names,
        [own[i] for i in kept],
        indices,
        _Rows(_unit(views[kept])),
        family=listed.family or "fine-grained",
        prompt=listed.prompt or DEFAULT_PROMPT,
        allow_duplicates=True,
        origin=origin,
    )
    found.views, found.text_features, found.logit_scale, found.backbone = views.shape[1], texts, logit_scale, backbone
    return found


def read_features(
    path: Path, *, split: str = "test", classes: ClassList | None = None, drop_missing_texts: bool = False
) -> FeatureDataset:
    """Read a file of features; see the module."""
    arrays = _read_npz(path) if path.suffix.lower() == ".npz" else _read_parquet(path)

    def array(*names: str) -> Array | None:
        return next((arrays[each] for name in names for each in (f"{split}_{name}", name) if each in arrays), None)

    features, labels, names = array("features", "image_features"), array("labels"), array(*_CLASSES)
    if features is None or labels is None:
        raise OtptError(
            f"{str(path)!r} has {', '.join(map(repr, arrays)) or 'nothing'} for the split {split!r}; expected "
            "'features' and 'labels'."
        )
    if classes is None:
        listed = [str(each) for each in (np.unique(labels) if names is None else names).tolist()]
        if names is None and all(each.isdecimal() for each in listed):
            raise OtptError(f"{str(path)!r} has labels that are numbers, but no class names; give them by --classes.")
        classes = ClassList(tuple(listed), tuple(listed))
    if array("logit_scale") is None and array("text_features") is not None:
        warnings.warn(
            f"{str(path)!r} has no logit_scale: {_LOGIT_SCALE:g} is assumed, as of OpenAI's CLIP. Confidences and ECE "
            "depend on it.",
            stacklevel=2,
        )
    scale, backbone, ids = array("logit_scale"), array("backbone"), array("ids")
    return feature_dataset(
        features,
        labels,
        classes,
        array("text_features"),
        name=path.stem,
        ids=None if ids is None else [str(each) for each in ids.tolist()],
        logit_scale=_LOGIT_SCALE if scale is None else float(scale),
        backbone="" if backbone is None else str(backbone),
        drop_missing_texts=drop_missing_texts,
        origin=origin_of(path),
    )


def has_features(path: Path) -> bool:
    """Whether a Parquet table holds features in place of images; False for files that cannot be read."""
    try:
        return path.suffix.lower() == ".parquet" and "feature" in pq.read_schema(path).names
    except Exception:  # reported by what reads the file
        return False


def _read_npz(path: Path) -> Mapping[str, Array]:
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            return {name: file[name] for name in file.files if file[name].dtype != object}
    except ValueError:  # an array of Python objects, which could run code
        raise OtptError(
            f"{str(path)!r} holds Python objects, which are not read; save names as an array of strings "
            "(np.asarray(names, dtype=str))."
        ) from None
    except OSError as error:
        raise cannot_read("features", path, error) from None
    except Exception as error:  # zipfile and NumPy raise nearly anything for a damaged file
        raise OtptError(f"The features {str(path)!r} cannot be read: {error}; write the file again.") from None


def _read_parquet(path: Path) -> Mapping[str, Array]:
    try:
        table = pq.read_table(path)
        columns = table.to_pandas()
        metadata = table.schema.metadata or {}
    except Exception as error:  # pyarrow raises nearly anything for a damaged file
        raise OtptError(f"The features {str(path)!r} cannot be read: {error}; write the file again.") from None
    columns = columns[columns["feature"].notna()]  # images that could not be read have none
    try:
        features = np.stack(columns["feature"].to_numpy()) if len(columns) else np.empty((0, 0), np.float32)
    except ValueError:
        raise OtptError(f"The features of {str(path)!r} have different widths; expected one model's.") from None
    found: dict[str, Array] = {"features": features, "backbone": np.asarray(metadata.get(b"otpt.model", b"").decode())}
    if "id" in columns:
        found["ids"] = columns["id"].astype(str).to_numpy()
    if "label" in columns:
        found["labels"] = columns["label"].to_numpy()
    elif "ids" in found and all("/" in each for each in found["ids"]):
        found["labels"] = np.asarray([each.rsplit("/", 2)[-2] for each in found["ids"]])
    return found


def _checked(given: Any, what: str, dimensions: tuple[int, ...]) -> npt.NDArray[np.float32]:
    array = np.asarray(given)
    if array.ndim not in dimensions or not np.issubdtype(array.dtype, np.floating) or not array.size:
        raise OtptError(
            f"The {what} have shape {array.shape} and type {array.dtype}; expected floats in "
            f"{' or '.join(map(str, dimensions))} dimensions."
        )
    return array.astype(np.float32)


def _directions(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Which rows (…, D) are finite and not all zero."""
    found: npt.NDArray[np.bool_] = np.isfinite(rows).all(axis=-1) & (rows != 0).any(axis=-1)
    return found


def _unit(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    found: npt.NDArray[np.float32] = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return found
