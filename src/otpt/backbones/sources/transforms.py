"""The preprocessing of a model in memory, read from its transform or processor, in the words of ``preprocess_cfg``."""

from __future__ import annotations

from typing import Any

from otpt.errors import OtptError

_HARMLESS = ("MaybeConvertMode", "MaybeToTensor", "ToTensor", "PILToTensor", "ToImage", "_convert_to_rgb")
_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


def transform_config(transform: Any, image_size: int) -> dict[str, Any]:
    """What a Compose does that open_clip made for inference: resize, crop, tensor, normalise.

    Its size must be the model's; random transforms, and any that is not known, are refused by name.
    """
    found: dict[str, Any] = {}
    for step in _steps(transform):
        kind = getattr(step, "__name__", type(step).__name__)
        if kind in ("Resize", "ResizeKeepRatio"):
            found |= _resize(step, kind)
        elif kind in ("CenterCrop", "CenterCropOrPad"):
            found["crop"] = _side(step.size)
        elif kind == "Normalize":
            found |= {"mean": [float(each) for each in step.mean], "std": [float(each) for each in step.std]}
        elif kind not in _HARMLESS and "convert" not in kind:
            raise OtptError(
                f"The transform has a step {kind}, which does not belong to the inference of a CLIP; give the one that "
                "open_clip makes for evaluation (preprocess_val, the last of create_model_and_transforms)."
            )
    missing = [name for name in ("resize", "mean") if name not in found]
    if missing:
        what = {"resize": "Resize", "mean": "Normalize"}[missing[0]]
        raise OtptError(f"The transform has no {what}; expected Resize, CenterCrop, ToTensor and Normalize.")
    return _checked(found, image_size, "transform")


def processor_config(processor: Any, image_size: int) -> dict[str, Any]:
    """What an image processor of transformers does: resize, crop, rescale, normalise."""
    theirs = processor.to_dict()
    off = [name for name in ("do_resize", "do_rescale", "do_normalize") if not theirs.get(name, True)]
    if off or abs(theirs.get("rescale_factor", 1 / 255) * 255 - 1) > 1e-6:
        why = f"{off[0]} is off" if off else f"it rescales by {theirs['rescale_factor']}"
        raise OtptError(f"The image processor cannot be used: {why}; expected resize, rescale by 1/255 and normalise.")
    size = theirs.get("size") or {}
    crops = bool(theirs.get("do_center_crop", False))
    shortest = size.get("shortest_edge")
    found = {
        "mean": theirs.get("image_mean"),
        "std": theirs.get("image_std"),
        "interpolation": _RESAMPLING.get(int(theirs.get("resample", 3)), "unknown"),
        "resize": _side((size.get("height"), size.get("width"))) if shortest is None else shortest,
        "resize_mode": "squash" if shortest is None else "shortest",
    }
    if crops:
        crop = theirs.get("crop_size") or {}
        found["crop"] = _side((crop.get("height"), crop.get("width")))
    return _checked(found, image_size, "image processor")


def _steps(transform: Any) -> list[Any]:
    steps = getattr(transform, "transforms", None)
    if steps is None:
        raise OtptError(
            f"preprocess is a {type(transform).__name__}; expected the Compose that open_clip makes, or a processor of "
            "transformers."
        )
    return list(steps)


def _resize(step: Any, kind: str) -> dict[str, Any]:
    interpolation = getattr(step.interpolation, "value", step.interpolation)
    if getattr(step, "random_scale_prob", 0) or getattr(step, "random_aspect_prob", 0):
        raise OtptError("The transform resizes at random; give the one that is made for evaluation.")
    mode = "squash" if isinstance(step.size, (tuple, list)) and len(step.size) == 2 else "shortest"
    if kind == "ResizeKeepRatio":
        mode = "longest" if step.longest == 1 else "shortest"
    return {"resize": _side(step.size), "resize_mode": mode, "interpolation": str(interpolation)}


def _side(size: Any) -> int:
    sides = {int(each) for each in (size if isinstance(size, (tuple, list)) else (size,)) if each is not None}
    if len(sides) != 1:
        raise OtptError(f"The preprocessing makes images of {size} pixels; only square ones are supported.")
    return sides.pop()


def _checked(found: dict[str, Any], image_size: int, what: str) -> dict[str, Any]:
    """Sizes must be the model's own: a resize to more than the crop is not what the views are made with."""
    resize, crop = found.pop("resize"), found.pop("crop", None)
    needs_crop = found["resize_mode"] != "squash"
    if resize != image_size or (needs_crop and crop != image_size) or (not needs_crop and crop not in (None, resize)):
        shown = f"resizes to {resize} and {'does not crop' if crop is None else f'crops to {crop}'}"
        raise OtptError(
            f"The {what} {shown}, but the model takes images of {image_size} pixels; expected both to be that."
        )
    return found
