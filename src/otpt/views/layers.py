"""Views as bytes and look-up tables, to be put together on a device.

Of a crop, of its point operations and of the normalisation only the level of a pixel matters, so each is a table of 256
floats per channel; so is the part of a chain with geometric operations in an AugMix view, once its pixels have moved.
A view is then a sum over its layers, Σ_l table_l[planes_l]: one layer as a rule, at most four. Bytes and tables are a
quarter to a half of the floats that they stand for, and the sum has the bits of :func:`otpt.views.make_views`, whose
tables they are and in whose order it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Layer = tuple[NDArray[np.uint8], NDArray[np.floating[Any]]]
"""Planes (3, S, S) and table (3, 256)."""


@dataclass(frozen=True)
class ViewLayers:
    """Views of an image; ``layers`` has those of each view, in the order in which they are added."""

    layers: Sequence[Sequence[Layer]]

    def __len__(self) -> int:
        return len(self.layers)

    def on(self, device: torch.device) -> Tensor:
        """(V, 3, S, S) normalised pixels, put together on a device, without synchronising."""
        import torch

        from otpt.transfers import to_device

        # first layers of all views, then second layers of those that have one …
        rounds = [
            [v for v, own in enumerate(self.layers) if len(own) > depth]
            for depth in range(max(len(own) for own in self.layers))
        ]
        ordered = [self.layers[v][depth] for depth, views in enumerate(rounds) for v in views]
        planes, tables = (to_device(torch.from_numpy(np.stack(each)), device) for each in zip(*ordered, strict=True))
        found = tables.gather(2, planes.flatten(2).long()).view(planes.shape)
        views, *further = found.split([len(each) for each in rounds])
        for rows, values in zip(rounds[1:], further, strict=True):
            views = views.index_add(0, to_device(torch.tensor(rows), device), values)
        return views
