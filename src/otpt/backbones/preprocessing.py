"""Conversion of configurations, transforms and image processors to :class:`Preprocessing`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from otpt.errors import OtptError
from otpt.views.recipe import CLIP_MEAN, CLIP_STD, Preprocessing

_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
_HARMLESS = ("MaybeConvertMode", "MaybeToTensor", "ToTensor", "PILToTensor", "ToImage", "_convert_to_rgb")


def read_preprocessing(source: Any, image_size: int | tuple[int, int]) -> Preprocessing:
    """Return the ``Preprocessing`` of a tower with input size ``image_size``.

    ``source`` is a ``Preprocessing``, open_clip's ``preprocess_cfg`` (CLIP's values for missing entries), open_clip's
    transform for evaluation, or an image processor of transformers.

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
    interpolation = str(source.get("interpolation", "bicubic"))
    colours: Any = (source.get("mean") or CLIP_MEAN, source.get("std") or CLIP_STD)
    try:
        mean, std = (tuple(map(float, each)) for each in colours)
    except (TypeError, ValueError, OverflowError):
        raise OtptError(f"The preprocessing has mean and std {colours!r}; expected three numbers each.") from None
    return Preprocessing(
        size=size,
        mean=mean,  # type: ignore[arg-type]
        std=std,  # type: ignore[arg-type]
        interpolation="bicubic" if interpolation == "random" else interpolation,
        resize_mode=source.get("resize_mode", "shortest"),
    )


def _transform_config(transform: Any, image_size: int) -> dict[str, Any]:
    """Convert a torchvision ``Compose`` of resize, crop, to-tensor and normalise; reject other steps."""
    steps = getattr(transform, "transforms", None)
    if steps is None:
        raise OtptError(
            f"preprocess is a {type(transform).__name__}; expected otpt.backbones.Preprocessing, a transform of "
            "open_clip, or a processor of transformers."
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
                f"The transform has the step {kind}, which is not part of inference; pass open_clip's transform for "
                "evaluation, the last result of create_model_and_transforms."
            )
    missing = [what for name, what in (("resize", "Resize"), ("mean", "Normalize")) if name not in found]
    if missing:
        raise OtptError(f"The transform has no {missing[0]}; expected Resize, CenterCrop, ToTensor and Normalize.")
    return _checked(found, image_size, "transform")


def _processor_config(theirs: Mapping[str, Any], image_size: int) -> dict[str, Any]:
    """Convert the configuration of a transformers image processor: resize, crop, rescale, normalise."""
    off = [name for name in ("do_resize", "do_rescale", "do_normalize") if not theirs.get(name, True)]
    if off or abs(theirs.get("rescale_factor", 1 / 255) * 255 - 1) > 1e-6:
        why = f"{off[0]} is off" if off else f"it rescales by {theirs['rescale_factor']}"
        raise OtptError(f"Cannot use the image processor: {why}; expected resize, rescale by 1/255 and normalise.")
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
    """Return the configuration without its sizes, which must equal the model's input size."""
    resize, crop = found.pop("resize"), found.pop("crop", None)
    needs_crop = found["resize_mode"] != "squash"
    if resize != image_size or (needs_crop and crop != image_size) or (not needs_crop and crop not in (None, resize)):
        shown = f"resizes to {resize} and {'does not crop' if crop is None else f'crops to {crop}'}"
        raise OtptError(
            f"The {what} {shown}, but the input size of the model is {image_size} pixels; expected equal sizes."
        )
    return found


def _side(size: Any) -> int:
    sides = {int(each) for each in (size if isinstance(size, (tuple, list)) else (size,)) if each is not None}
    if len(sides) != 1:
        raise OtptError(f"The input size of the model is {size} pixels; expected square images.")
    return sides.pop()
