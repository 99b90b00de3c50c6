"""The preprocessing of an image tower, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from otpt.errors import OtptError

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

_INTERPOLATIONS = {"bicubic": "bicubic", "bilinear": "bilinear", "random": "bicubic"}
_RESIZE_MODES = ("shortest", "squash", "longest")


@dataclass(frozen=True)
class Preprocessing:
    """How the clean view is made: resize, crop, (x − mean) / std on values in [0, 1].

    ``size`` is the square side in pixels, ``interpolation`` "bicubic" or "bilinear". ``resize_mode``:
    "shortest" (CLIP: shorter side to ``size``, then centre crop), "squash" (SigLIP: both sides to ``size``)
    or "longest" (longer side to ``size``, then padding).
    """

    size: int
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD
    interpolation: str = "bicubic"
    resize_mode: str = "shortest"


def preprocessing_from_config(config: Mapping[str, Any], image_size: int | tuple[int, int]) -> Preprocessing:
    """``Preprocessing`` from open_clip's ``preprocess_cfg`` (absent entries: CLIP's own) and the tower's
    image size.

    >>> preprocessing_from_config({"resize_mode": "squash"}, 224).resize_mode
    'squash'
    """
    height, width = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if height != width:
        raise OtptError(f"The model takes images of {height}×{width} pixels; only square ones are supported.")
    interpolation = config.get("interpolation", "bicubic")
    resize_mode = config.get("resize_mode", "shortest")
    if not isinstance(interpolation, str) or interpolation not in _INTERPOLATIONS or resize_mode not in _RESIZE_MODES:
        raise OtptError(
            f"Unknown preprocessing (interpolation {interpolation!r}, resize mode {resize_mode!r}); expected "
            f"bicubic or bilinear, and one of {', '.join(_RESIZE_MODES)}."
        )
    return Preprocessing(
        size=height,
        mean=_triple("mean", config.get("mean") or CLIP_MEAN),
        std=_triple("std", config.get("std") or CLIP_STD),
        interpolation=_INTERPOLATIONS[interpolation],
        resize_mode=resize_mode,
    )


def _triple(what: str, values: Any) -> tuple[float, float, float]:
    """Red, green, blue; one number stands for all three."""
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError, OverflowError):
        numbers = []
    if len(numbers) == 1:
        numbers = numbers * 3
    if len(numbers) != 3 or not all(map(math.isfinite, numbers)) or (what == "std" and min(numbers) <= 0):
        expected = "three positive numbers" if what == "std" else "three numbers"
        raise OtptError(f"The preprocessing has {what} = {values!r}; expected {expected} (red, green, blue).")
    red, green, blue = numbers
    return red, green, blue
