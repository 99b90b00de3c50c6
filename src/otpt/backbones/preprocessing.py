"""Conversion of configurations, transforms and image processors to :class:`Preprocessing`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypedDict, cast

from otpt.errors import OtptError
from otpt.views.recipe import CLIP_MEAN, CLIP_STD, Preprocessing

_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
_HARMLESS = ("MaybeConvertMode", "MaybeToTensor", "ToTensor", "PILToTensor", "ToImage", "_convert_to_rgb")


def read_preprocessing(source: object, image_size: int | tuple[int, int]) -> Preprocessing:
    """Return the ``Preprocessing`` of a tower with input size ``image_size``.

    ``source`` is a ``Preprocessing``, open_clip's ``preprocess_cfg`` (CLIP's values for missing entries), open_clip's
    transform for evaluation, or an image processor of transformers.

    >>> read_preprocessing({"resize_mode": "squash"}, 224).resize_mode
    'squash'
    """
    if isinstance(source, Preprocessing):
        return source
    size = _side(image_size)
    config: Mapping[str, object]
    if hasattr(source, "to_dict"):
        config = _processor_config(source.to_dict(), size)
    elif isinstance(source, Mapping):
        config = source
    else:
        config = _transform_config(source, size)
    interpolation = str(config.get("interpolation", "bicubic"))
    return Preprocessing(
        size=size,
        mean=_triple("mean", config.get("mean") or CLIP_MEAN),
        std=_triple("std", config.get("std") or CLIP_STD),
        interpolation="bicubic" if interpolation == "random" else interpolation,
        resize_mode=str(config.get("resize_mode", "shortest")),
    )


def _triple(name: str, values: object) -> tuple[float, float, float]:
    """Return the mean or standard deviation of red, green and blue."""
    try:
        red, green, blue = (float(value) for value in cast(Iterable[float], values))
    except (TypeError, ValueError, OverflowError):
        raise OtptError(f"The preprocessing has the {name} {values!r}; expected three numbers.") from None
    return red, green, blue


class _Step(Protocol):
    """Step of a torchvision transform, with the attributes of its kind."""

    size: int | Sequence[int]
    interpolation: object
    longest: float
    mean: Iterable[float]
    std: Iterable[float]


def _transform_config(transform: object, image_size: int) -> dict[str, object]:
    """Convert a torchvision ``Compose`` of resize, crop, to-tensor and normalise; reject other steps."""
    if not hasattr(transform, "transforms"):
        raise OtptError(
            f"preprocess is a {type(transform).__name__}; expected otpt.backbones.Preprocessing, a transform of "
            "open_clip, or a processor of transformers."
        )
    config: dict[str, object] = {}
    steps: Iterable[_Step] = transform.transforms
    for step in steps:
        kind = getattr(step, "__name__", type(step).__name__)
        random = getattr(step, "random_scale_prob", 0) or getattr(step, "random_aspect_prob", 0)
        if kind in ("Resize", "ResizeKeepRatio") and not random:
            mode = "squash" if isinstance(step.size, (tuple, list)) and len(step.size) == 2 else "shortest"
            if kind == "ResizeKeepRatio":
                mode = "longest" if step.longest == 1 else "shortest"
            interpolation = str(getattr(step.interpolation, "value", step.interpolation))
            config |= {"resize": _side(step.size), "resize_mode": mode, "interpolation": interpolation}
        elif kind in ("CenterCrop", "CenterCropOrPad"):
            config["crop"] = _side(step.size)
        elif kind == "Normalize":
            config |= {"mean": [float(value) for value in step.mean], "std": [float(value) for value in step.std]}
        elif kind not in _HARMLESS and "convert" not in kind:
            raise OtptError(
                f"The transform has the step {kind}, which is not part of inference; pass open_clip's transform for "
                "evaluation, the last result of create_model_and_transforms."
            )
    missing = [what for name, what in (("resize", "Resize"), ("mean", "Normalize")) if name not in config]
    if missing:
        raise OtptError(f"The transform has no {missing[0]}; expected Resize, CenterCrop, ToTensor and Normalize.")
    return _checked(config, image_size, "transform")


class ProcessorConfig(TypedDict, total=False):
    """Configuration of an image processor of transformers; other keys are possible."""

    do_resize: bool
    do_rescale: bool
    do_normalize: bool
    do_center_crop: bool
    rescale_factor: float
    size: dict[str, int]
    crop_size: dict[str, int]
    image_mean: list[float]
    image_std: list[float]
    resample: int


def _processor_config(processor: ProcessorConfig, image_size: int) -> dict[str, object]:
    """Convert the configuration of a transformers image processor: resize, crop, rescale, normalise."""
    off = [name for name in ("do_resize", "do_rescale", "do_normalize") if not processor.get(name, True)]
    factor = processor.get("rescale_factor", 1 / 255)
    if off or abs(factor * 255 - 1) > 1e-6:
        why = f"{off[0]} is off" if off else f"it rescales by {factor}"
        raise OtptError(f"Cannot use the image processor: {why}; expected resize, rescale by 1/255 and normalise.")
    size = processor.get("size") or {}
    shortest = size.get("shortest_edge")
    config: dict[str, object] = {
        "mean": processor.get("image_mean"),
        "std": processor.get("image_std"),
        "interpolation": _RESAMPLING.get(int(processor.get("resample", 3)), "unknown"),
        "resize": _side((size.get("height"), size.get("width"))) if shortest is None else shortest,
        "resize_mode": "squash" if shortest is None else "shortest",
    }
    if processor.get("do_center_crop", False):
        crop = processor.get("crop_size") or {}
        config["crop"] = _side((crop.get("height"), crop.get("width")))
    return _checked(config, image_size, "image processor")


def _checked(config: dict[str, object], image_size: int, what: str) -> dict[str, object]:
    """Return the configuration without its sizes, which must equal the model's input size."""
    resize, crop = config.pop("resize"), config.pop("crop", None)
    needs_crop = config["resize_mode"] != "squash"
    if resize != image_size or (needs_crop and crop != image_size) or (not needs_crop and crop not in (None, resize)):
        shown = f"resizes to {resize} and {'does not crop' if crop is None else f'crops to {crop}'}"
        raise OtptError(
            f"The {what} {shown}, but the input size of the model is {image_size} pixels; expected equal sizes."
        )
    return config


def _side(size: int | Sequence[int | None]) -> int:
    sides = {int(side) for side in (size if isinstance(size, (tuple, list)) else (size,)) if side is not None}
    if len(sides) != 1:
        raise OtptError(f"The input size of the model is {size} pixels; expected square images.")
    return sides.pop()
