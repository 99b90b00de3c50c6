"""A cache: a few entries for each class, those of smallest rank."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class Entries:
    """Up to ``capacity`` entries for each class, sorted by rank; all classes in one tensor, so that nothing loops.

    A new entry is appended, the entries are sorted, and those beyond the capacity are dropped: a full class takes an
    entry only if its rank is smaller than some other's. The rank is the entropy, or for first in, first out the
    negative of a counter.

    Args:
        shapes: of the tensors that an entry holds, such as [(D,)] for a feature.
        like: a tensor of the type and on the device to use.
    """

    def __init__(self, classes: int, capacity: int, shapes: Sequence[tuple[int, ...]], *, like: Tensor) -> None:
        self._capacity = capacity
        self._filled = 0
        self._ranks = like.new_full((classes, capacity), math.inf)
        self._values = [like.new_zeros(classes, capacity, *shape) for shape in shapes]

    def insert(self, label: int, rank: Tensor, *values: Tensor) -> None:
        """One more entry of a class."""
        ranks = torch.cat([self._ranks[label], rank[None]])
        order = ranks.argsort(stable=True)[: self._capacity]
        self._ranks[label] = ranks[order]
        for held, value in zip(self._values, values, strict=True):
            held[label] = torch.cat([held[label], value[None]])[order]
        self._filled = max(self._filled, int(self._ranks[label].isfinite().sum()))

    @property
    def ranks(self) -> Tensor:
        """(C, n), where n is the largest number of entries that a class has; infinite where there is none."""
        return self._ranks[:, : self._filled]

    @property
    def present(self) -> Tensor:
        """(C, n) whether there is an entry."""
        return self.ranks.isfinite()

    def values(self, position: int = 0) -> Tensor:
        """(C, n, …) what entries hold; 0 where there is none."""
        return self._values[position][:, : self._filled]

    def affinities(self, features: Tensor, beta: float) -> Tensor:
        """exp(−β(1 − f·g)) of (V, D) to all features g that are kept: (V, C, n), 0 where there is none."""
        return affinity(features, self.values(), beta) * self.present


def affinity(features: Tensor, others: Tensor, beta: float) -> Tensor:
    """exp(−β(1 − f·g)) of each f of (V, D) to each g of (…, D): (V, …)."""
    cosines = features @ others.flatten(end_dim=-2).mT
    return (beta * (cosines - 1)).exp().unflatten(1, others.shape[:-1])
