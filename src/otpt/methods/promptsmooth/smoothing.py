"""PromptSmooth's numbers."""

from __future__ import annotations

from dataclasses import dataclass

from otpt.errors import OtptError


@dataclass(frozen=True)
class Smoothing:
    """PromptSmooth's numbers.

    Attributes:
        sigma: of the noise, on pixels in [0, 1]; published: 0.1, 0.25, 0.5 and 1 (which one Table 19 has is not said).
        copies: that a prompt is tuned on.
        selection: votes that choose the class (N₀); samples: votes that certify it (N).
        alpha: probability that a certificate is wrong.
        batch: copies encoded together.
    """

    sigma: float = 0.25
    copies: int = 100
    selection: int = 100
    samples: int = 10_000
    alpha: float = 0.001
    batch: int = 100

    def __post_init__(self) -> None:
        if not 0 < self.sigma < float("inf"):
            raise OtptError(f"The deviation sigma of the noise is {self.sigma}; expected a finite number above 0.")
        if not 0 < self.alpha < 1:
            raise OtptError(f"The error probability alpha is {self.alpha}; expected a number between 0 and 1.")
        for name in ("copies", "selection", "samples", "batch"):
            if getattr(self, name) < 1:
                raise OtptError(f"The number {name} is {getattr(self, name)}; expected 1 or more.")
