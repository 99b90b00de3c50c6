"""The order in which a data set is evaluated: every prefix of it is a stratified sample."""

from __future__ import annotations

import hashlib
from collections import defaultdict

from otpt.data.dataset import Dataset

_UNIT = 2.0**-64


def stratified(dataset: Dataset) -> Dataset:
    """The same images in the order of :func:`stratified_order`, in which applying it again changes nothing."""
    return dataset.in_order(stratified_order(dataset))


def stratified_order(dataset: Dataset) -> list[int]:
    """Indices (N,) of the images, such that the first n hold each class in proportion, to within one image.

    Image k of the n_c images of class c, sorted by the digest of their ids, gets the key (k + u_c)/n_c, with u_c in
    [0, 1) drawn from the class's number; the keys are sorted. So each class has one image in every n_c-th of the order
    (systematic sampling). Where the classes have the same number of images, the first C images show each class once.
    Only ids and labels decide, not the order in which they are given.
    """
    members = defaultdict(list)
    for index, label in enumerate(dataset.labels):
        members[label].append(index)
    keys = []
    for label, indices in members.items():
        offset = int(_digest(str(label))[:16], 16) * _UNIT
        indices.sort(key=lambda index: _digest(dataset.ids[index]))
        keys += [((k + offset) / len(indices), label, index) for k, index in enumerate(indices)]
    return [index for _, _, index in sorted(keys)]


def classes_without_images(dataset: Dataset, limit: int) -> int:
    """How many classes that have images have none among the first ``limit`` of :func:`stratified`."""
    labels = dataset.labels
    return len(set(labels)) - len({labels[index] for index in stratified_order(dataset)[:limit]})


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
