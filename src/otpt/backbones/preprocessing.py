"""Conversion of configurations, transforms and image processors to :class:`Preprocessing`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypedDict, cast

from otpt.errors import OtptError
from otpt.views.recipe import CLIP_MEAN, CLIP_STD, Preprocessing

_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
_HARMLESS = ("MaybeConvertMode", "MaybeToTensor", "ToTensor", "PILToTensor", "ToImage", "_convert_to_rgb")


def read_preprocessing(source: object, image_size: int | tuple[int, int]) -> Preprocessing:
    """Return the ``Preprocessing`` of a tower with input size ``image_size``; 0 for a tower of images of any size.

    ``source`` is a ``Preprocessing``, open_clip's ``preprocess_cfg`` (CLIP's values for missing entries), open_clip's
    transform for evaluation, or an image processor of transformers.

    >>> read_preprocessing({"resize_mode": "squash"}, 224).resize_mode
    'squash'
    """
    if isinstance(source, Preprocessing):
        return source
    side = _side(image_size)
    config: Mapping[str, object]
    if hasattr(source, "to_dict"):
        config = _processor_config(source.to_dict(), side)
    elif isinstance(source, Mapping):
        config = source
    else:
        config = _transform_config(source, side)
    interpolation = str(config.get("interpolation", "bicubic"))
    size, resize = int(str(config.get("size", side))), config.get("resize")
    return Preprocessing(
        size=size,
        mean=_triple("mean", config.get("mean") or CLIP_MEAN),
        std=_triple("std", config.get("std") or CLIP_STD),
        interpolation="bicubic" if interpolation == "random" else interpolation,
        resize_mode=str(config.get("resize_mode", "shortest")),
        resize=None if resize in (None, size) else int(str(resize)),
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
    rescale_offset: bool
    include_top: bool
    size: dict[str, int]
    crop_size: dict[str, int]
    image_mean: list[float]
    image_std: list[float]
    resample: int
    max_num_patches: int


def _processor_config(processor: ProcessorConfig, image_size: int) -> dict[str, object]:
    """Convert the configuration of a transformers image processor: resize, crop, rescale, normalise."""
    off = [name for name in ("do_resize", "do_rescale") if not processor.get(name, True)]
    factor, offset = processor.get("rescale_factor", 1 / 255), processor.get("rescale_offset", False)
    if off or abs(factor * (127.5 if offset else 255) - 1) > 1e-6:
        why = f"{off[0]} is off" if off else f"it rescales by {factor}"
        raise OtptError(f"Cannot use the image processor: {why}; expected resize, rescale by 1/255 and normalise.")
    mean, std = _normalisation(processor)
    config: dict[str, object] = {
        "mean": mean,
        "std": std,
        "interpolation": _RESAMPLING.get(int(processor.get("resample", 3)), "unknown"),
    }
    if "max_num_patches" in processor:  # SigLIP 2 NaFlex: patches of a square image here
        return {**config, "resize_mode": "squash"}
    size = processor.get("size") or {}
    shortest = size.get("shortest_edge")
    config["resize"] = _side((size.get("height"), size.get("width"))) if shortest is None else shortest
    config["resize_mode"] = "squash" if shortest is None else "shortest"
    if processor.get("do_center_crop", False):
        crop = processor.get("crop_size") or {}
        config["crop"] = _side((crop.get("height"), crop.get("width")))
    return _checked(config, image_size, "image processor")


def _normalisation(processor: ProcessorConfig) -> tuple[object, object]:
    """Return mean and standard deviation on pixels in [0, 1]."""
    mean, std = processor.get("image_mean"), processor.get("image_std")
    if not processor.get("do_normalize", True):
        mean, std = [0.0] * 3, [1.0] * 3
    if processor.get("rescale_offset", False):  # EfficientNet: (2x − 1 − mean) / std
        means, stds = _triple("mean", mean or CLIP_MEAN), _triple("std", std or CLIP_STD)
        mean, std = [(1 + value) / 2 for value in means], [value / 2 for value in stds]
    return mean, std


def _checked(config: dict[str, object], image_size: int, what: str) -> dict[str, object]:
    """Return the configuration with the size of the result, which must equal the model's input size."""
    resize, crop = int(str(config["resize"])), config.pop("crop", None)
    size = resize if crop is None else int(str(crop))
    needs_crop = config["resize_mode"] != "squash"
    if (image_size and size != image_size) or (needs_crop and crop is None) or size > resize:
        shown = f"resizes to {resize} and {'does not crop' if crop is None else f'crops to {crop}'}"
        wanted = f"{image_size} pixels" if image_size else "that of the processor"
        raise OtptError(
            f"The {what} {shown}, but the input size of the model is {wanted}; expected a centre crop of that size "
            "from an image that is at least as large."
        )
    return {**config, "size": size}


def _side(size: int | Sequence[int | None]) -> int:
    sides = {int(side) for side in (size if isinstance(size, (tuple, list)) else (size,)) if side is not None}
    if len(sides) != 1:
        raise OtptError(f"The input size of the model is {size} pixels; expected square images.")
    return sides.pop()
