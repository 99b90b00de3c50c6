"""Views of an image, normalised for the image tower: the clean view, then augmented views.

    recipe = ViewRecipe()                                                     # 64 views with AugMix
    views = make_views(open_image("photo.jpg"), recipe, backbone.preprocessing, seed=0, image_id="photo")

Row 0 is the clean view, resized by the backbone's preprocessing. Rows 1 … n − 1 are random resized crops (bilinear) of
the original image, flipped with probability ½ and, by default, mixed by AugMix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Annotated

import numpy as np
import torch
from PIL import Image
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from torch import Tensor

from otpt.errors import OtptError
from otpt.views.augmix import Bytes, Floats, Triple, mix
from otpt.views.draws import CropBox, draw_view, noise_generator
from otpt.views.geometry import planar

# Part of every cache key; increment it when the views of a recipe, seed and image change.
_VERSION = 1
ROUNDS = (8, 32)
"""Numbers of views after which a method may stop."""

_INTERPOLATIONS = {
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "lanczos": Image.Resampling.LANCZOS,
}
_RESIZE_MODES = ("shortest", "squash", "longest")

# Without this limit, an image of 1 × 100,000 pixels would be resized to 224 × 22,400,000 before its centre crop.
_MAX_RESIZED_PIXELS = 32_000_000


CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class Preprocessing:
    """Preprocessing of the clean view: resize, crop, (x − mean) / std on values in [0, 1].

    Args:
        size: side of the square input in pixels.
        mean, std: per channel.
        interpolation: "bicubic", "bilinear" or "lanczos".
        resize_mode: "shortest" (shorter side to ``size``, then centre crop; CLIP), "squash" (both sides to ``size``;
            SigLIP) or "longest" (longer side to ``size``, with black borders).
        resize: side to resize to before the centre crop of ``size``, if it is larger (256 for 224); ``size`` if None.
    """

    size: int
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD
    interpolation: str = "bicubic"
    resize_mode: str = "shortest"
    resize: int | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.resize is not None and (self.resize < self.size or self.resize_mode == "longest"):
            raise OtptError(
                f"The preprocessing resizes to {self.resize} by {self.resize_mode!r} for inputs of {self.size} pixels; "
                "expected a larger side, and 'shortest' or 'squash'."
            )
        if self.interpolation not in _INTERPOLATIONS or self.resize_mode not in _RESIZE_MODES:
            raise OtptError(
                f"The preprocessing has interpolation {self.interpolation!r} and resize mode {self.resize_mode!r}; "
                f"expected one of {', '.join(_INTERPOLATIONS)}, and one of {', '.join(_RESIZE_MODES)}."
            )
        triples = len(self.mean) == len(self.std) == 3 and all(map(math.isfinite, (*self.mean, *self.std)))
        if not triples or min(self.std) <= 0:
            raise OtptError(
                f"The preprocessing has mean {self.mean} and std {self.std}; expected three numbers each (red, green, "
                "blue), with positive std."
            )

    @property
    def resized(self) -> int:
        """Side of the image before the centre crop."""
        return self.size if self.resize is None else self.resize

    def facts(self) -> dict[str, object]:
        """Return what determines the clean view, for cache keys and records; without ``resize`` if it is None."""
        values: dict[str, object] = asdict(self)
        return values if self.resize is not None else {name: values[name] for name in values if name != "resize"}


_Fraction = Annotated[float, Field(gt=0, le=1)]
_Positive = Annotated[float, Field(gt=0)]
_FINITE = ConfigDict(allow_inf_nan=False)
_TYPES: dict[str, TypeAdapter[object]] = {
    "n_views": TypeAdapter(Annotated[int, Field(ge=1)], config=_FINITE),
    "augmix": TypeAdapter(bool, config=_FINITE),
    "crop_scale": TypeAdapter(tuple[_Fraction, _Fraction], config=_FINITE),
    "crop_ratio": TypeAdapter(tuple[_Positive, _Positive], config=_FINITE),
    "flip": TypeAdapter(Annotated[float, Field(ge=0, le=1)], config=_FINITE),
    "noise": TypeAdapter(Annotated[float, Field(ge=0)], config=_FINITE),
    "rounds": TypeAdapter(tuple[int, ...], config=_FINITE),
}


@dataclass(frozen=True)
class ViewRecipe:
    """Number and distribution of the views of an image.

    Args:
        n_views: number of views, including the clean view.
        augmix: whether to mix views by AugMix.
        crop_scale, crop_ratio: ranges of the relative area and the aspect ratio of crops.
        flip: probability of a horizontal flip.
        noise: σ of Gaussian noise added to all views, on pixels in [0, 1], without clamping.
        rounds: numbers of views after which encoding may stop; see :func:`otpt.methods.path.is_enough`.

    >>> ViewRecipe(n_views=8, augmix=False).key
    'views-1 n=8 augmix=off scale=0.08:1.0 ratio=0.75:1.3333333333333333 flip=0.5'
    """

    n_views: int = 64
    augmix: bool = True
    crop_scale: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    noise: float = 0.0
    rounds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, adapter in _TYPES.items():
            value = getattr(self, name)
            try:
                adapter.validate_python(value, strict=True)
            except ValidationError as error:
                if name == "n_views":
                    raise OtptError(f"The number of views is {value!r}; expected a whole number from 1.") from None
                reason = error.errors()[0]["msg"].replace("Input should be ", "")
                raise OtptError(f"{name} of the views is {value!r}; expected {reason}.") from None
        for name, (low, high) in {"crop_scale": self.crop_scale, "crop_ratio": self.crop_ratio}.items():
            if low > high:
                raise OtptError(f"{name} of the views is {(low, high)}; expected increasing numbers.")
        if self.rounds and (self.noise or any(b <= a for a, b in pairwise((1, *self.rounds, self.n_views)))):
            raise OtptError(
                f"The rounds of {self.n_views} views are {self.rounds!r}; expected increasing numbers between 2 and "
                f"{self.n_views - 1}, and no noise."
            )

    @staticmethod
    def within(budget: int) -> ViewRecipe:
        """Return a recipe of at most ``budget`` views that may stop after 8 or 32 views.

        >>> ViewRecipe.within(64).rounds
        (8, 32)
        """
        return ViewRecipe(n_views=budget, rounds=tuple(views for views in ROUNDS if views < budget))

    def of(self, n_views: int) -> ViewRecipe:
        """Return a recipe of the first ``n_views`` views, without rounds."""
        return replace(self, n_views=n_views, rounds=())

    @cached_property
    def kind(self) -> str:
        """Key without the number of views and rounds, on which view v does not depend."""
        scale, ratio = (":".join(repr(float(v)) for v in pair) for pair in (self.crop_scale, self.crop_ratio))
        noise = f" noise={float(self.noise)!r}" if self.noise else ""
        augmix = "on" if self.augmix else "off"
        return f"views-{_VERSION} n=1 augmix={augmix} scale={scale} ratio={ratio} flip={float(self.flip)!r}{noise}"

    @property
    def key(self) -> str:
        """One-line description, which determines the views together with image, seed and preprocessing."""
        rounds = f" rounds={','.join(map(str, self.rounds))}" if self.rounds else ""
        return self.kind.replace(" n=1 ", f" n={self.n_views}{rounds} ", 1)


def make_views(
    image: Image.Image,
    recipe: ViewRecipe,
    preprocessing: Preprocessing,
    *,
    seed: int,
    image_id: str,
    dtype: type[np.float32] | type[np.float64] = np.float32,
    first: int = 0,
    last: int | None = None,
) -> Floats:
    """Return the normalised views (n_views, 3, S, S) of an RGB image, clean view first.

    View v depends only on the image, (seed, image_id, v), the recipe and the preprocessing, but not on the number of
    views or the order of images.

    Args:
        image: RGB image.
        recipe: number and distribution of the views.
        preprocessing: preprocessing of the backbone.
        seed, image_id: key of the random draws.
        dtype: float64 mixes and normalises in double precision, for tests; crops and chains have the same bytes.
        first, last: return only the views ``first`` … ``last`` − 1 of a recipe without noise.
    """
    if image.mode != "RGB":
        raise OtptError(f"The image has the mode {image.mode!r}; expected RGB: open it with open_image.")
    size, mean, std = preprocessing.size, preprocessing.mean, preprocessing.std
    count = (recipe.n_views if last is None else last) - first
    views = np.empty((count, 3, size, size), dtype)
    for v, out in enumerate(views, start=first):
        if v == 0:
            _normalise(planar(clean_image(image, preprocessing)), mean, std, out)
            continue
        draw = draw_view(
            seed,
            image_id,
            v,
            width=image.width,
            height=image.height,
            crop_scale=recipe.crop_scale,
            crop_ratio=recipe.crop_ratio,
            flip=recipe.flip,
        )
        pixels = planar(_resized_crop(image, draw.crop, size), flip=draw.flip)
        if recipe.augmix:
            mix(pixels, draw.augmix, mean, std, out)
        else:
            _normalise(pixels, mean, std, out)
    if recipe.noise:
        generator = noise_generator("views", seed=seed, image_id=image_id)
        spread = np.array([recipe.noise / deviation for deviation in std], dtype)[:, None, None]
        for v in range(len(views)):
            views[v] += spread * generator.standard_normal(views[v].shape, np.float32)
    return views


def _normalise(pixels: Bytes, mean: Triple, std: Triple, out: Floats) -> None:
    """Write (x/255 − mean)/std to ``out``, rounded as in torchvision's ToTensor and Normalize."""
    np.divide(pixels, 255, out=out, dtype=out.dtype)
    np.subtract(out, np.asarray(mean, out.dtype)[:, None, None], out=out)
    np.divide(out, np.asarray(std, out.dtype)[:, None, None], out=out)


def _resized_crop(image: Image.Image, box: CropBox, size: int) -> Image.Image:
    corners = (box.left, box.top, box.left + box.width, box.top + box.height)
    if box.width * box.height > (Image.MAX_IMAGE_PIXELS or math.inf):
        # the same pixels without Pillow's warning; open_image has checked the size
        crop = image.transform((box.width, box.height), Image.Transform.EXTENT, corners)
    else:
        crop = image.crop(corners)
    return crop.resize((size, size), Image.Resampling.BILINEAR)


def clean_image(image: Image.Image, preprocessing: Preprocessing) -> Image.Image:
    """Return the square RGB image of a :class:`Preprocessing`, resized by Pillow with antialiasing.

    Of extremely long images, for which "shortest" would require more than 32 million intermediate pixels, only the
    centre is resized, which may change values by one level.
    """
    size, resample = preprocessing.size, _INTERPOLATIONS[preprocessing.interpolation]
    side = preprocessing.resized
    width, height = image.size
    if preprocessing.resize_mode == "squash":
        margin = round((side - size) / 2.0)
        square = image.resize((side, side), resample)
        return square if side == size else square.crop((margin, margin, margin + size, margin + size))
    if preprocessing.resize_mode == "longest":
        ratio = max(width / size, height / size)
        width, height = (min(size, max(1, round(length / ratio))) for length in image.size)
        square = Image.new("RGB", (size, size))
        square.paste(image.resize((width, height), resample), ((size - width) // 2, (size - height) // 2))
        return square
    new = (max(side, int(side * width / height)), max(side, int(side * height / width)))
    left, top = (round((length - size) / 2.0) for length in new)
    if new[0] * new[1] > _MAX_RESIZED_PIXELS:
        x, y = width / new[0], height / new[1]
        box = (left * x, top * y, min((left + size) * x, width), min((top + size) * y, height))
        return image.resize((size, size), resample, box=box)
    return image.resize(new, resample).crop((left, top, left + size, top + size))


def unit_pixels(image: Image.Image, size: int, *, resize_mode: str = "shortest") -> Tensor:
    """Return the clean view (bicubic) before normalisation, (3, size, size) in [0, 1]."""
    clean = clean_image(image, Preprocessing(size, resize_mode=resize_mode))
    return torch.from_numpy(planar(clean).astype(np.float32) / 255)


def normalised(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return (x − mean)/std of pixels (…, 3, S, S)."""
    m, s = (pixels.new_tensor(values)[:, None, None] for values in (mean, std))
    return (pixels - m) / s
