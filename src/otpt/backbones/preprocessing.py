"""The preprocessing of an image tower as plain numbers, read from a configuration, a transform or a processor."""

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
_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
_HARMLESS = ("MaybeConvertMode", "MaybeToTensor", "ToTensor", "PILToTensor", "ToImage", "_convert_to_rgb")


@dataclass(frozen=True)
class Preprocessing:
    """How the clean view is made: resize, crop, (x − mean) / std on values in [0, 1].

    ``size`` is the square side in pixels, ``interpolation`` "bicubic" or "bilinear". ``resize_mode``: "shortest" (CLIP:
    shorter side to ``size``, then centre crop), "squash" (SigLIP: both sides to ``size``) or "longest" (longer side to
    ``size``, then padding).
    """

    size: int
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD
    interpolation: str = "bicubic"
    resize_mode: str = "shortest"


def read_preprocessing(source: Any, image_size: int | tuple[int, int]) -> Preprocessing:
    """``Preprocessing`` for a tower that takes images of ``image_size`` pixels.

    Args:
        source: a ``Preprocessing``; open_clip's ``preprocess_cfg`` (missing entries: CLIP's); the transform that
            open_clip makes for evaluation; or an image processor of transformers.
        image_size: of the image tower.

    >>> read_preprocessing({"resize_mode": "squash"}, 224).resize_mode
    'squash'
    """
    if isinstance(source, Preprocessing):
        return source
    size = _side(image_size)
    if hasattr(source, "to_dict"):
        source = _processor_config(source.to_dict(), size)
    elif not isinstance(source, Mapping):
        source = _transform_config(source, size)
    interpolation = source.get("interpolation", "bicubic")
    resize_mode = source.get("resize_mode", "shortest")
    if str(interpolation) not in _INTERPOLATIONS or resize_mode not in _RESIZE_MODES:
        raise OtptError(
            f"Unknown preprocessing (interpolation {interpolation!r}, resize mode {resize_mode!r}); expected "
            f"bicubic or bilinear, and one of {', '.join(_RESIZE_MODES)}."
        )
    return Preprocessing(
        size=size,
        mean=_triple("mean", source.get("mean") or CLIP_MEAN),
        std=_triple("std", source.get("std") or CLIP_STD),
        interpolation=_INTERPOLATIONS[interpolation],
        resize_mode=resize_mode,
    )


def _transform_config(transform: Any, image_size: int) -> dict[str, Any]:
    """A torchvision ``Compose`` for inference: resize, crop, tensor, normalise; other steps are refused by name."""
    steps = getattr(transform, "transforms", None)
    if steps is None:
        raise OtptError(
            f"preprocess is a {type(transform).__name__}; expected otpt.backbones.Preprocessing, the Compose that "
            "open_clip makes, or a processor of transformers."
        )
    found: dict[str, Any] = {}
    for step in steps:
        kind = getattr(step, "__name__", type(step).__name__)
        random = getattr(step, "random_scale_prob", 0) or getattr(step, "random_aspect_prob", 0)
        if kind in ("Resize", "ResizeKeepRatio") and not random:
            mode = "squash" if isinstance(step.size, (tuple, list)) and len(step.size) == 2 else "shortest"
            if kind == "ResizeKeepRatio":
                mode = "longest" if step.longest == 1 else "shortest"
            interpolation = str(getattr(step.interpolation, "value", step.interpolation))
            found |= {"resize": _side(step.size), "resize_mode": mode, "interpolation": interpolation}
        elif kind in ("CenterCrop", "CenterCropOrPad"):
            found["crop"] = _side(step.size)
        elif kind == "Normalize":
            found |= {"mean": [float(each) for each in step.mean], "std": [float(each) for each in step.std]}
        elif kind not in _HARMLESS and "convert" not in kind:
            raise OtptError(
                f"The transform has a step {kind}, which does not belong to inference; give the one that open_clip "
                "makes for evaluation (the last of create_model_and_transforms)."
            )
    missing = [what for name, what in (("resize", "Resize"), ("mean", "Normalize")) if name not in found]
    if missing:
        raise OtptError(f"The transform has no {missing[0]}; expected Resize, CenterCrop, ToTensor and Normalize.")
    return _checked(found, image_size, "transform")


def _processor_config(theirs: Mapping[str, Any], image_size: int) -> dict[str, Any]:
    """An image processor of transformers: resize, crop, rescale, normalise."""
    off = [name for name in ("do_resize", "do_rescale", "do_normalize") if not theirs.get(name, True)]
    if off or abs(theirs.get("rescale_factor", 1 / 255) * 255 - 1) > 1e-6:
        why = f"{off[0]} is off" if off else f"it rescales by {theirs['rescale_factor']}"
        raise OtptError(f"The image processor cannot be used: {why}; expected resize, rescale by 1/255 and normalise.")
    size = theirs.get("size") or {}
    shortest = size.get("shortest_edge")
    found = {
        "mean": theirs.get("image_mean"),
        "std": theirs.get("image_std"),
        "interpolation": _RESAMPLING.get(int(theirs.get("resample", 3)), "unknown"),
        "resize": _side((size.get("height"), size.get("width"))) if shortest is None else shortest,
        "resize_mode": "squash" if shortest is None else "shortest",
    }
    if theirs.get("do_center_crop", False):
        crop = theirs.get("crop_size") or {}
        found["crop"] = _side((crop.get("height"), crop.get("width")))
    return _checked(found, image_size, "image processor")


def _checked(found: dict[str, Any], image_size: int, what: str) -> dict[str, Any]:
    """Sizes must be the model's: views are made by a resize to the crop's size."""
    resize, crop = found.pop("resize"), found.pop("crop", None)
    needs_crop = found["resize_mode"] != "squash"
    if resize != image_size or (needs_crop and crop != image_size) or (not needs_crop and crop not in (None, resize)):
        shown = f"resizes to {resize} and {'does not crop' if crop is None else f'crops to {crop}'}"
        raise OtptError(
            f"The {what} {shown}, but the model takes images of {image_size} pixels; expected both to be that."
        )
    return found


def _side(size: Any) -> int:
    sides = {int(each) for each in (size if isinstance(size, (tuple, list)) else (size,)) if each is not None}
    if len(sides) != 1:
        raise OtptError(f"The model takes images of {size} pixels; only square ones are supported.")
    return sides.pop()


def _triple(what: str, values: Any) -> tuple[float, float, float]:
    """Red, green, blue; one number is used for all three."""
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
