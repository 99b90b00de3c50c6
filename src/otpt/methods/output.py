"""What a method says of an image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor

from otpt.calibration import probabilities

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
