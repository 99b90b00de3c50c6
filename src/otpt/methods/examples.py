"""Example images of classes, given in place of texts or in addition to them."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from otpt.backbones import Backbone
from otpt.errors import OtptError, unknown
from otpt.features.pipeline import embed
from otpt.folders import class_images
from otpt.images import LIMITS, ImageSource, UrlLimits
from otpt.progress import Progress

Images = tuple[ImageSource, ...]


@dataclass(frozen=True, eq=False)
class Examples:
    """Example images of some or all classes of a list.

    Attributes:
        names: class names of the list, in order.
        named: for each class, whether its name is used as a text.
        images: example images of each class; empty for a class without examples.
        features: (N, D) unit float64 features; None before :meth:`encode`.
        labels: (N,) class indices of the features; None before :meth:`encode`.
    """

    names: tuple[str, ...]
    named: tuple[bool, ...]
    images: tuple[Images, ...] = ()
    features: Tensor | None = field(default=None, repr=False)
    labels: Tensor | None = field(default=None, repr=False)

    @classmethod
    def read(cls, value: object, classes: Sequence[str] = ()) -> Examples:
        """Read examples from {class name: images} or a folder with one sub-folder per class.

        Args:
            value: the examples, or :class:`Examples`, which are returned unchanged.
            classes: class names. If each class has examples, the names are used as texts too. If only some have, those
                with examples are known by them alone, and the others by their names. Without names, the classes are
                those of the examples, and no text is used.
        """
        if isinstance(value, Examples):
            return value
        images = class_images(Path(value).expanduser()) if isinstance(value, (str, PathLike)) else value
        if not isinstance(images, Mapping) or not images:
            raise OtptError(f"The examples are {value!r:.80}; expected {{class name: images}}, or a folder.")
        names = tuple(classes or images)
        for name in images:
            if name not in names:
                raise unknown("class of example images:", str(name), names)
        for name, sources in images.items():
            if isinstance(sources, (str, bytes)) or not hasattr(sources, "__len__") or not len(sources):
                raise OtptError(
                    f"The class {name!r} has no example images ({sources!r:.80}); expected a list of one or more."
                )
        everywhere = len(images) == len(names)
        named = tuple(bool(classes) and (everywhere or name not in images) for name in names)
        return cls(names, named, tuple(tuple(images.get(name, ())) for name in names))

    @property
    def texts(self) -> bool:
        """Whether any class is known by its name."""
        return any(self.named)

    @property
    def mixed(self) -> bool:
        """Whether some classes are known by examples alone, and others by their names alone."""
        return any(self.named) and not all(self.named)

    def encode(
        self,
        backbone: Backbone,
        urls: UrlLimits | None = LIMITS,
        progress: Progress | None = None,
        *,
        upright: bool = True,
    ) -> Examples:
        """Return the examples with the features of their clean views; images other than files are released."""
        if self.features is not None:
            return self
        single = [name for name, images in zip(self.names, self.images, strict=True) if len(images) == 1]
        if single:
            rest = "" if len(single) == 1 else f" (and {len(single) - 1} others)"
            warnings.warn(
                f"The class {single[0]!r}{rest} has one example image: it cannot be held out, and confidences are "
                "fitted on the other classes, or are rough if there are none.",
                stacklevel=4,
            )
        features = []
        embedded = embed(backbone, chain.from_iterable(self.images), urls=urls, upright=upright)
        for feature in (progress or Progress(show=False)).track(embedded, sum(map(len, self.images))):
            if isinstance(feature, OtptError):
                raise feature
            features.append(feature)
        labels = [label for label, images in enumerate(self.images) for _ in images]
        stacked = torch.from_numpy(np.array(features)).double()
        return replace(self, images=self._files or (), features=stacked, labels=torch.tensor(labels))

    @property
    def _files(self) -> tuple[Images, ...] | None:
        """Images of each class, if all of them are files."""
        are_files = all(isinstance(image, (str, PathLike)) for image in chain.from_iterable(self.images))
        return self.images if are_files else None

    @property
    def digest(self) -> str:
        """32 hexadecimal digits of features and labels."""
        assert self.features is not None
        assert self.labels is not None
        named = bytes(self.named) if self.mixed else bytes([self.texts])
        data = self.features.numpy().tobytes() + self.labels.numpy().tobytes() + named
        return hashlib.sha256(data).hexdigest()[:32]

    def to_json(self) -> dict[str, list[str]] | dict[str, str]:
        """Return {class name: files}, or a digest of images in memory."""
        if self._files:
            pairs = zip(self.names, self._files, strict=True)
            return {name: [str(image) for image in images] for name, images in pairs if images}
        return {"Examples": self.digest if self.features is not None else "images in memory"}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Examples):
            return NotImplemented
        if self is other:
            return True
        files = self._files
        if files and other._files:
            return (self.names, self.named) == (other.names, other.named) and self.to_json() == other.to_json()
        encoded = self.features is not None and other.features is not None
        return encoded and self.names == other.names and self.digest == other.digest

    def __hash__(self) -> int:
        return hash((self.names, self.named))
