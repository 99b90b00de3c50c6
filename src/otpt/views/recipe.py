"""From an image to its views: the clean view first, then augmented ones, normalised for the image tower.

    recipe = ViewRecipe()                                                     # 64 views with AugMix
    views = make_views(open_image("photo.jpg"), recipe, backbone.preprocessing, seed=0, image_id="photo")

Row 0 is the clean view (resized as the backbone's preprocessing says); rows 1 … n − 1 are random resized
crops of the original-size image (bilinear), flipped with probability ½ and, unless switched off, mixed by
AugMix.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from otpt.errors import OtptError, unknown
from otpt.views.augmix import Floats, Mixer
from otpt.views.draws import AugMixDraw, CropBox, draw_view, noise_generator

# Part of every cache key; raise it whenever the same recipe, seed and image would give other views.
_VERSION = 1
ROUNDS = (8, 32)
"""Numbers of views after which a method is asked whether they are enough."""

_INTERPOLATIONS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
RESIZE_MODES = ("shortest", "squash", "longest")

# An image of 1 × 100,000 pixels would be enlarged to 224 × 22,400,000 only to crop its centre.
_MAX_RESIZED_PIXELS = 32_000_000


class PreprocessingLike(Protocol):
    """The attributes that views need of a backbone's preprocessing; ``backbones.Preprocessing`` has them."""

    @property
    def size(self) -> int: ...
    @property
    def mean(self) -> tuple[float, float, float]: ...
    @property
    def std(self) -> tuple[float, float, float]: ...
    @property
    def interpolation(self) -> str: ...
    @property
    def resize_mode(self) -> str: ...


@dataclass(frozen=True)
class ViewRecipe:
    """How many views, and how they are made. ``n_views`` includes the clean one.

    ``noise`` σ adds N(0, σ²) to all views, including the clean one, on pixels in [0, 1] and without clamping.
    ``rounds``: numbers of views that may be enough for an image (:func:`otpt.methods.path.is_enough` says when).

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
        if isinstance(self.n_views, bool) or not isinstance(self.n_views, int) or self.n_views < 1:
            raise OtptError(f"The number of views must be a whole number of at least 1, not {self.n_views!r}.")
        if not isinstance(self.augmix, bool):
            raise OtptError(f"augmix must be True or False, not {self.augmix!r}.")
        for name in ("crop_scale", "crop_ratio"):
            pair, most = getattr(self, name), 1 if name == "crop_scale" else math.inf
            if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and all(map(_is_number, pair))):
                raise OtptError(f"{name} must be two numbers (low, high), not {pair!r}.")
            if not 0 < pair[0] <= pair[1] <= most or math.isinf(pair[1]):
                of = "fractions of the image area, 0 < low ≤ high ≤ 1" if most == 1 else "ratios, 0 < low ≤ high"
                raise OtptError(f"{name} must be two {of}, not {pair!r}.")
        if not _is_number(self.flip) or not 0 <= self.flip <= 1:
            raise OtptError(f"flip must be a probability between 0 and 1, not {self.flip!r}.")
        if not _is_number(self.noise) or not 0 <= self.noise < math.inf:
            raise OtptError(f"The noise of the views must be a finite number, 0 or more, not {self.noise!r}.")
        steps = (1, *self.rounds, self.n_views)
        if self.rounds and (self.noise or any(b <= a for a, b in pairwise(steps))):
            raise OtptError(
                f"The rounds of {self.n_views} views must be increasing numbers between 2 and {self.n_views - 1}, of "
                f"views without noise, not {self.rounds!r}."
            )

    @staticmethod
    def within(budget: int) -> ViewRecipe:
        """At most ``budget`` views, fewer where the first 8, or 32, are enough.

        >>> ViewRecipe.within(64).rounds
        (8, 32)
        """
        return ViewRecipe(n_views=budget, rounds=tuple(each for each in ROUNDS if each < budget))

    def of(self, n_views: int) -> ViewRecipe:
        """The first ``n_views`` views of this recipe, without rounds."""
        return replace(self, n_views=n_views, rounds=())

    @property
    def key(self) -> str:
        """The recipe in one line: with image, seed and preprocessing it determines the views."""
        scale, ratio = (":".join(repr(float(v)) for v in pair) for pair in (self.crop_scale, self.crop_ratio))
        augmix = "on" if self.augmix else "off"
        noise = f" noise={float(self.noise)!r}" if self.noise else ""
        rounds = f" rounds={','.join(map(str, self.rounds))}" if self.rounds else ""
        return (
            f"views-{_VERSION} n={self.n_views}{rounds} augmix={augmix} scale={scale} ratio={ratio} "
            f"flip={float(self.flip)!r}{noise}"
        )

    @cached_property
    def kind(self) -> str:
        """:attr:`key` without the number of views: view v is the same however many there are, and in any round."""
        return self.of(1).key

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits of :attr:`key`, for file names."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:32]


def _is_number(given: object) -> bool:
    return isinstance(given, (int, float)) and not isinstance(given, bool)


def make_views(
    image: Image.Image,
    recipe: ViewRecipe,
    preprocessing: PreprocessingLike,
    *,
    seed: int,
    image_id: str,
    dtype: type[np.float32] | type[np.float64] = np.float32,
    first: int = 0,
) -> Floats:
    """The views of an opened image, (n_views, 3, S, S), normalised; row 0 is the clean view.

    With ``first`` only the views from there on, (n_views − first, 3, S, S), of a recipe without noise.

    View v depends on the image, (seed, image_id, v), the recipe's other settings and the preprocessing
    alone: the number of views and the order of images do not matter. float64 is for tests: the bytes
    of crops and chains are the same, mixing and normalising are done in double precision.
    """
    size = preprocessing.size
    mean, std = preprocessing.mean, preprocessing.std
    views = np.empty((recipe.n_views - first, 3, size, size), dtype)
    mix = Mixer(mean, std)
    for out, (pixels, draw) in zip(
        views, _crops(image, recipe, preprocessing, seed=seed, image_id=image_id, first=first), strict=True
    ):
        if draw is not None:
            mix(pixels, draw, out)
        else:
            # (x/255 − mean)/std, rounded in the order of torchvision's ToTensor and Normalize
            np.divide(pixels, 255, out=out, dtype=out.dtype)
            np.subtract(out, np.asarray(mean, out.dtype)[:, None, None], out=out)
            np.divide(out, np.asarray(std, out.dtype)[:, None, None], out=out)
    if recipe.noise:
        generator = noise_generator("views", seed=seed, image_id=image_id)
        spread = np.array([recipe.noise / each for each in std], dtype)[:, None, None]
        for v in range(recipe.n_views):
            views[v] += spread * generator.standard_normal(views[v].shape, np.float32)
    return views


def _crops(
    image: Image.Image,
    recipe: ViewRecipe,
    preprocessing: PreprocessingLike,
    *,
    seed: int,
    image_id: str,
    first: int,
) -> Iterator[tuple[NDArray[np.uint8], AugMixDraw | None]]:
    """Pixels (3, S, S) of each view before anything is mixed, and how AugMix mixes it; None for not at all."""
    if image.mode != "RGB":
        raise OtptError(f"make_views takes an RGB image, not mode {image.mode!r}; use open_image.")
    size = preprocessing.size
    if first == 0:
        clean = clean_image(
            image, size, interpolation=preprocessing.interpolation, resize_mode=preprocessing.resize_mode
        )
        yield planar(clean), None
    for v in range(max(first, 1), recipe.n_views):
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
        yield pixels, draw.augmix if recipe.augmix else None


def _resized_crop(image: Image.Image, box: CropBox, size: int) -> Image.Image:
    corners = (box.left, box.top, box.left + box.width, box.top + box.height)
    if box.width * box.height > (Image.MAX_IMAGE_PIXELS or math.inf):
        # The same pixels without Pillow's warning: this image's size has been checked when it was opened.
        crop = image.transform((box.width, box.height), Image.Transform.EXTENT, corners)
    else:
        crop = image.crop(corners)
    return crop.resize((size, size), Image.Resampling.BILINEAR)


def planar(image: Image.Image, *, flip: bool = False) -> NDArray[np.uint8]:
    """(3, S, S) uint8, contiguous, mirrored left to right if ``flip``."""
    width, height = image.size
    # Pillow extracts one band at a time faster than numpy de-interleaves pixels.
    planes = np.empty((3, height, width), np.uint8)
    for plane, band in zip(planes, "RGB", strict=True):
        pixels = np.frombuffer(image.tobytes("raw", band), np.uint8).reshape(height, width)
        plane[:] = pixels[:, ::-1] if flip else pixels
    return planes


def clean_image(image: Image.Image, size: int, *, interpolation: str, resize_mode: str) -> Image.Image:
    """A ``size`` × ``size`` RGB image.

    * ``shortest``: shorter side to ``size``, then the centre;
    * ``squash``: both sides to ``size``, ignoring the aspect ratio;
    * ``longest``: longer side to ``size``, then black borders, centred.

    All resizing is Pillow's, antialiased. Extremely long images (where ``shortest`` would need more than 32
    million pixels in between) are resized only where the centre needs it, which may change a value by one
    level.
    """
    if interpolation not in _INTERPOLATIONS:
        raise unknown("interpolation", interpolation, _INTERPOLATIONS)
    resample = _INTERPOLATIONS[interpolation]
    if resize_mode == "squash":
        return image.resize((size, size), resample)
    if resize_mode == "shortest":
        return _shortest(image, size, resample)
    if resize_mode == "longest":
        return _longest(image, size, resample)
    raise unknown("resize mode", resize_mode, RESIZE_MODES)


def _shortest(image: Image.Image, size: int, resample: Image.Resampling) -> Image.Image:
    width, height = image.size
    new = (max(size, int(size * width / height)), max(size, int(size * height / width)))
    left, top = (round((side - size) / 2.0) for side in new)
    if new[0] * new[1] > _MAX_RESIZED_PIXELS:
        x, y = width / new[0], height / new[1]
        box = (left * x, top * y, min((left + size) * x, width), min((top + size) * y, height))
        return image.resize((size, size), resample, box=box)
    return image.resize(new, resample).crop((left, top, left + size, top + size))


def _longest(image: Image.Image, size: int, resample: Image.Resampling) -> Image.Image:
    ratio = max(image.width / size, image.height / size)
    width, height = (min(size, max(1, round(side / ratio))) for side in image.size)
    resized = image.resize((width, height), resample)
    square = Image.new("RGB", (size, size))
    square.paste(resized, ((size - width) // 2, (size - height) // 2))
    return square


def unit_pixels(image: Image.Image, size: int, *, resize_mode: str = "shortest") -> Tensor:
    """The clean view (bicubic) before normalisation: (3, size, size) in [0, 1]."""
    clean = clean_image(image, size, interpolation="bicubic", resize_mode=resize_mode)
    return torch.from_numpy(planar(clean).astype(np.float32) / 255)


def normalised(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x − mean)/std of (…, 3, S, S)."""
    m, s = (pixels.new_tensor(values)[:, None, None] for values in (mean, std))
    return (pixels - m) / s
