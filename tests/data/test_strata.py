"""The order of evaluation: every beginning is a stratified sample, whatever order the images came in."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from otpt.data import Dataset, stratified
from otpt.data.dataset import FilesBelow
from otpt.learning import few_shots


def make(counts: list[int], seed: int = 0) -> Dataset:
    samples = [(f"{label}/{k}.png", label) for label, n in enumerate(counts) for k in range(n)]
    random.Random(seed).shuffle(samples)
    ids = [name for name, _ in samples]
    names = [f"class {i}" for i in range(len(counts))]
    return Dataset("own", names, ids, [label for _, label in samples], lambda i: ids[i].encode())


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(0, 5))
@settings(deadline=None, max_examples=60)
def test_every_beginning_holds_each_class_in_proportion(counts: list[int], seed: int) -> None:
    data = stratified(make(counts, seed))
    total = sum(counts)
    assert len(data) == total
    for n in range(1, total + 1):
        first = Counter(data.labels[:n])
        fractions = [first[label] / count for label, count in enumerate(counts)]
        # all classes lie within one image of a common fraction
        assert max((first[c] - 1) / counts[c] for c in range(len(counts))) <= min(
            (first[c] + 1) / counts[c] for c in range(len(counts))
        ), fractions


def test_only_ids_and_labels_decide() -> None:
    orders = [stratified(make([5, 3, 9], seed)) for seed in range(4)]
    assert len({each.ids for each in orders}) == 1
    assert len({each.fingerprint for each in orders}) == 1
    again = stratified(orders[0])
    assert again.ids == orders[0].ids


def test_labels_may_be_an_array_or_a_tensor() -> None:
    plain = make([3, 2])
    for labels in (np.array(plain.labels), torch.tensor(plain.labels)):
        data = Dataset("own", plain.class_names, plain.ids, labels, lambda i: b"")
        assert data.labels == plain.labels
        assert data.fingerprint == plain.fingerprint
        assert stratified(data).ids == stratified(plain).ids


def test_the_order_is_the_documented_one() -> None:
    # from sha256sum: u_0 = 0.374, u_1 = 0.419, and 0/1.png before 0/0.png; keys 0.187, 0.419, 0.687
    assert stratified(make([2, 1])).ids == ("0/1.png", "1/0.png", "0/0.png")


def test_images_and_kind_follow(tmp_path: Path) -> None:
    data = make([4, 2])
    for sample in stratified(data):
        assert sample.source == sample.id.encode()
    files = Dataset("files", ["a", "b"], ["x", "y"], [0, 1], FilesBelow(tmp_path, ("x", "y")))
    (tmp_path / "x").touch()
    missing = {stratified(files).ids[i]: stratified(files).is_file_missing(i) for i in range(2)}
    assert missing == {"x": False, "y": True}


def test_a_file_has_the_same_key_in_every_set_that_shows_it(tmp_path: Path) -> None:
    names = [f"{label}/{k}.png" for label in "ab" for k in range(3)]
    files = Dataset("files", ["a", "b"], names, [0, 0, 0, 1, 1, 1], FilesBelow(tmp_path, tuple(names)))
    keys = dict(zip(files.ids, files.image_keys(), strict=True))
    for found in (stratified(few_shots(files, 2)), files.renamed("other"), stratified(files.as_variant("x", {}))):
        assert found.image_keys() == tuple(keys[name] for name in found.ids)
        assert [found.source(i) for i in range(len(found))] == [tmp_path / name for name in found.ids]
        assert all(found.is_file_missing(i) for i in range(len(found)))
