"""What a method says of an image, and what an adaptation hands to calibration and aggregation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from otpt.calibration import probabilities
from otpt.transfers import to_device

KEPT_INIT = "init-kept"
"""Flag of an output whose gradient was not finite: the image was predicted with the initial prompt."""


@dataclass(frozen=True)
class Output:
    """A prediction of one image.

    Attributes:
        probabilities: (C,) float64, summing to one.
        index: the predicted class.
        flags: what was out of the ordinary (:data:`KEPT_INIT`); empty as a rule.
        extras: further numbers, which become columns of the results (``mean_cosine``, ``temperature`` …).
        logits: (C,) of the clean view before calibration; None where more than the clean view decides.
    """

    probabilities: npt.NDArray[np.float64]
    index: int
    flags: tuple[str, ...] = ()
    extras: Mapping[str, float] = field(default_factory=dict)
    logits: Tensor | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of_clean(
        cls, logits: Tensor, *, official: bool, flags: tuple[str, ...] = (), extras: Mapping[str, float] | None = None
    ) -> Output:
        """The softmax of the clean view's logits (1, C) on the host; ``official`` as in :func:`probabilities`."""
        distribution = probabilities(logits, official=official)[0].double().numpy()
        return cls(distribution, int(distribution.argmax()), flags, extras or {})

    @property
    def confidence(self) -> float:
        """The largest probability."""
        return float(self.probabilities.max())


@dataclass(frozen=True)
class Adapted:
    """Logits of B images as an adaptation, or the initial prompt, gives them.

    Attributes:
        logits: (B, C) of the clean view.
        rows: position in the batch → logits (V, C) of all views, computed when it is called; None if not kept.
        skipped: (B,) whether the gradient was not finite, so that the image kept the initial prompt.
        extras: (B,) each.
        texts: position in the batch → text features (C, D) that the logits come from; None if not kept.
        same_texts: whether these are the same for all images.
        features: position in the batch → features (V, D) of the views; None where they are those of the init.
    """

    logits: Tensor
    rows: Callable[[int], Tensor] | None
    skipped: Tensor
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    texts: Callable[[int], Tensor] | None = None
    same_texts: bool = False
    features: Callable[[int], Tensor] | None = None

    def view_logits(self, i: int) -> Tensor:
        """(V, C) of image ``i``."""
        assert self.rows is not None, "asked for all views of an adaptation that kept the clean one only"
        return self.rows(i)

    def text_features(self, i: int) -> Tensor:
        """(C, D) of image ``i``."""
        assert self.texts is not None, "asked for text features that were not kept"
        return self.texts(i)

    def view_features(self, i: int) -> Tensor:
        """(V, D) of image ``i``."""
        assert self.features is not None, "asked for features that were not kept"
        return self.features(i)

    def among(self, initial: Adapted, images: Sequence[int]) -> Adapted:
        """These as the ``images`` of a batch whose others stay as they are at the init."""
        if len(images) == len(initial.logits):
            return self
        at = {image: i for i, image in enumerate(images)}

        def spread(own: Tensor, others: Tensor) -> Tensor:
            where = to_device(torch.tensor(images), own.device)
            return to_device(others, own.device, own.dtype).index_copy(0, where, own)

        rows, texts = self.rows, self.texts
        return Adapted(
            spread(self.logits, initial.logits),
            None if rows is None else lambda i: rows(at[i]) if i in at else initial.view_logits(i),
            spread(self.skipped, initial.skipped),
            {name: spread(values, initial.extras[name]) for name, values in self.extras.items()},
            None if texts is None else lambda i: texts(at[i]) if i in at else initial.text_features(i),
        )
