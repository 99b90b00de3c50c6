"""Data sets: images with labels, class names, and the settings of the papers."""

from __future__ import annotations

import copy
import hashlib
import operator
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from otpt.arguments import checked
from otpt.errors import OtptError, unknown
from otpt.files import Json
from otpt.images import ImageSource, LocalFile

DEFAULT_PROMPT = "a photo of a"
FAMILIES = ("fine-grained", "shift")


class NoSuchSplit(OtptError):
    """A data set exists, but not the requested split."""


def is_own(origin: str | None) -> bool:
    """Return whether an origin is a path of user data rather than the name of a registered set."""
    return origin is not None and Path(origin).is_absolute()


@dataclass(frozen=True)
class Sample:
    """Image with its id within the set, its class in 0 … C − 1, and its source."""

    id: str
    label: int
    source: ImageSource


@dataclass(frozen=True)
class Conventions:
    """How a data set is usually evaluated, as in the papers' code.

    Attributes:
        family: "fine-grained" or "shift", which λ may depend on.
        augmix: whether views use AugMix by default.
        prompt: default context.
        allow_duplicates: whether class names may be duplicate (ImageNet has two).
        classes_from: what the classes were inferred from, "labels" or "folders"; "" for a list that somebody wrote.
    """

    family: str = "fine-grained"
    augmix: bool = True
    prompt: str = DEFAULT_PROMPT
    allow_duplicates: bool = False
    classes_from: str = ""

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise unknown("family of data sets", self.family, FAMILIES)


USUAL = Conventions()
"""Conventions of a data set that says nothing else."""


@dataclass(frozen=True)
class FilesBelow:
    """Image ``i`` is the file ``folder / files[i]``; nothing is opened."""

    folder: Path
    files: tuple[str, ...]

    def __call__(self, index: int) -> Path:
        return self.folder / self.files[index]


class Dataset:
    """``len(data)`` images of ``len(data.class_names)`` classes; ``data[i]`` is a :class:`Sample`.

    Args:
        name: "dtd", "imagenet-v2", "emoji/animals", or the user's own.
        class_names: (C,) in label order.
        ids: (N,) names of the images, independent of where the data are stored.
        labels: (N,) in 0 … C − 1.
        images: index → path, bytes or PIL image. Called by any thread when a sample is needed; exceptions become
            ``OtptError``, so that an evaluation records the image as unreadable and continues.
        conventions: family, AugMix, prompt and whether class names may be duplicate, which become attributes.
        origin: the name of a registered set, or the absolute path of a user's own data, which may have the name of a
            registered set; None if unknown.

    Attributes:
        variant: name of one of several passes of a method over the same images; "" usually.
        system: facts of this variant for the system that made it.
        base_name: name before :meth:`renamed`, which files of inputs have.
        views: number of features per image, if they replace the images (:mod:`otpt.data.features`).
        label_sets: all labels of each image as given, for several labels per image; ``labels`` are then the first ones,
            or 0 without any.
        text_features: (C, D) that replace the texts, or None.
    """

    text_features: npt.NDArray[np.float32] | None = None

    @checked
    def __init__(
        self,
        name: str,
        class_names: Sequence[str],
        ids: Sequence[str],
        labels: Sequence[int],
        images: Callable[[int], ImageSource],
        *,
        conventions: Conventions = USUAL,
        origin: str | None = None,
    ) -> None:
        self.name = name
        self.base_name = name
        self.class_names = tuple(class_names)
        self.ids = tuple(ids)
        try:
            self.labels = tuple(map(operator.index, labels))  # also of an array or a tensor
        except TypeError as error:
            raise OtptError(f"The data set {name!r} has a label that is not a whole number ({error}).") from None
        self.family = conventions.family
        self.augmix = conventions.augmix
        self.prompt = conventions.prompt
        self.allow_duplicates = conventions.allow_duplicates
        self.classes_from = conventions.classes_from
        self.origin = origin
        self.variant = ""
        self.system: Mapping[str, Json] = {}
        self.views: int | None = None
        self.label_sets: Sequence[tuple[int, ...]] | None = None
        self._images = images
        self._positions: Sequence[int] = range(len(self.ids))  # arguments of ``images``
        self._check()

    @property
    def is_own(self) -> bool:
        """Whether the data are user-supplied rather than registered."""
        return is_own(self.origin)

    @property
    def registered_name(self) -> str:
        """Name of a registered set, or "" for user data."""
        return "" if self.is_own else self.name

    @property
    def unique_name(self) -> str:
        """Name and variant, unique within a run."""
        return f"{self.name}@{self.variant}" if self.variant else self.name

    def as_variant(self, name: str, system: Mapping[str, Json]) -> Dataset:
        """Return the data set for one of several passes of a method.

        Args:
            name: name of the pass.
            system: facts of the pass for the system that made it.
        """
        dataset = copy.copy(self)
        dataset.variant = name
        dataset.system = system
        return dataset

    def renamed(self, name: str, labels: Sequence[int] | None = None) -> Dataset:
        """Return the images under another name and, if given, with other labels."""
        dataset = self.in_order(range(len(self)))
        dataset.name = name
        dataset.labels = self.labels if labels is None else tuple(labels)
        return dataset

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self.ids):
            raise IndexError(f"{self.name} has {len(self.ids)} images, so there is no image {index}")
        return Sample(self.ids[index], self.labels[index], self.source(index))

    def __iter__(self) -> Iterator[Sample]:
        return (self[index] for index in range(len(self)))

    def source(self, index: int) -> ImageSource:
        """Return the path, bytes or image of image ``index``; exceptions become ``OtptError``."""
        try:
            return self._images(self._positions[index])
        except (OtptError, MemoryError):
            raise
        except Exception as error:  # a user's function may fail in any way
            reason = " ".join(str(error).split()).rstrip(".")
            shown = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
            raise OtptError(f"Cannot get the image {self.ids[index]!r} of {self.name!r} ({shown}).") from error

    def reader(self, index: int) -> Callable[[], ImageSource]:
        """Return a function that returns image ``index``, for files without the data set."""
        if isinstance(self._images, FilesBelow):
            return LocalFile(str(self._images(self._positions[index])))
        return partial(self.source, index)

    def labels_of(self, index: int) -> tuple[int, ...]:
        """Return all labels of image ``index``."""
        return (self.labels[index],) if self.label_sets is None else self.label_sets[self._positions[index]]

    def in_order(self, order: Sequence[int]) -> Self:
        """Return a reordered subset whose image ``i`` is image ``order[i]`` of this set."""
        subset = copy.copy(self)
        subset.__dict__.pop("fingerprint", None)
        subset.ids = tuple(self.ids[i] for i in order)
        subset.labels = tuple(self.labels[i] for i in order)
        subset._positions = tuple(self._positions[i] for i in order)
        return subset

    def image_keys(self, count: int | None = None) -> tuple[str, ...]:
        """Return keys of all or the first ``count`` images, equal for the same file or the same origin and id."""
        keys = []
        for index in range(len(self))[:count]:
            place = f"{self.origin or self.name}/{self.ids[index]}"
            if isinstance(self._images, FilesBelow):
                place = os.path.abspath(os.path.expanduser(self._images(self._positions[index])))
            keys.append(_digest(place)[:16])
        return tuple(keys)

    def is_file_missing(self, index: int) -> bool:
        """Return whether image ``index`` is a missing file, without opening it."""
        return isinstance(self._images, FilesBelow) and not os.path.isfile(self._images(self._positions[index]))

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, {len(self)} images, {len(self.class_names)} classes)"

    @cached_property
    def fingerprint(self) -> str:
        """Digest of name, class names, ids and labels, 32 hexadecimal digits."""
        digest = hashlib.sha256()
        labels = (" ".join(map(str, self.labels_of(index))) for index in range(len(self)))
        for part in (self.name, *self.class_names, "", *self.ids, "", *labels):
            text = part.encode("utf-8", "surrogateescape")
            digest.update(len(text).to_bytes(8, "little") + text)
        return digest.hexdigest()[:32]

    def _check(self) -> None:
        classes, where = len(self.class_names), f"The data set {self.name!r}"
        if not self.ids:
            raise OtptError(f"{where} is empty; expected at least one image.")
        if len(self.ids) != len(self.labels):
            raise OtptError(f"{where} has {len(self.ids)} images and {len(self.labels)} labels.")
        for text in (self.name, *self.class_names, *self.ids):
            try:
                text.encode("utf-8", "surrogateescape")  # as file systems do; JSON can hold other lone surrogates
            except UnicodeEncodeError:
                raise OtptError(f"{where} has the name {text!r}, which is not valid Unicode.") from None
        if len(set(self.ids)) != len(self.ids):
            twice = Counter(self.ids).most_common(1)[0][0]
            raise OtptError(f"{where} has the duplicate id {twice!r}; expected a unique id per image.")
        for name, label in zip(self.ids, self.labels, strict=True):
            if not 0 <= label < classes:
                raise OtptError(
                    f"{where} has {classes} classes, but the image {name!r} has label {label}; expected 0 to "
                    f"{classes - 1}."
                )


@checked
def stratified(dataset: Dataset) -> Dataset:
    """Return the images in the order of :func:`stratified_order`; idempotent."""
    return dataset.in_order(stratified_order(dataset))


def stratified_order(dataset: Dataset) -> list[int]:
    """Return indices (N,) whose first n contain each class in proportion, to within one image.

    Image k of the n_c images of class c, sorted by the digest of their ids, gets the key (k + u_c)/n_c, with u_c in
    [0, 1) drawn from the class's number; the keys are sorted. So each class has one image in every n_c-th of the order
    (systematic sampling). Where the classes have the same number of images, the first C images show each class once.
    The order depends only on ids and labels, not on their initial order.
    """
    members = defaultdict(list)
    for index, label in enumerate(dataset.labels):
        members[label].append(index)
    keys = []
    for label, indices in members.items():
        offset = int(_digest(str(label))[:16], 16) * 2.0**-64
        indices.sort(key=lambda index: _digest(dataset.ids[index]))
        keys += [((k + offset) / len(indices), label, index) for k, index in enumerate(indices)]
    return [index for _, _, index in sorted(keys)]


@checked
def classes_without_images(dataset: Dataset, limit: int) -> int:
    """Return the number of non-empty classes that are missing in the first ``limit`` images of :func:`stratified`."""
    labels = dataset.labels
    return len(set(labels)) - len({labels[index] for index in stratified_order(dataset)[:limit]})


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
