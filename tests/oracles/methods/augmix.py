"""Views the literal way: torchvision and Pillow, operation by operation, from the same draws.

Nothing of the fast way is used: only the drawn numbers (``otpt.views.draw_view``) are shared.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torchvision import transforms
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

from otpt.views import Operation, ViewRecipe, draw_view

_INTERPOLATIONS = {"bicubic": InterpolationMode.BICUBIC, "bilinear": InterpolationMode.BILINEAR}


def literal_operation(image: Image.Image, operation: Operation, size: int) -> Image.Image:
    """One AugMix operation with Pillow; parameters derived here from the table, independently."""
    name, s = operation.name, operation.level
    sign = -1 if operation.negative else 1
    if name == "autocontrast":
        return ImageOps.autocontrast(image)
    if name == "equalize":
        return ImageOps.equalize(image)
    if name == "posterize":
        return ImageOps.posterize(image, 4 - int(s * 4 / 10))
    if name == "solarize":
        return ImageOps.solarize(image, 256 - int(s * 256 / 10))
    if name == "rotate":
        return image.rotate(sign * int(s * 30 / 10), resample=Image.Resampling.BILINEAR)
    shear = sign * (s * 0.3 / 10)
    shift = sign * int(s * (size / 3) / 10)
    matrix = {
        "shear_x": (1, shear, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, shear, 1, 0),
        "translate_x": (1, 0, shift, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, shift),
    }[name]
    return image.transform((size, size), Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR)


def literal_chain(image: Image.Image, operations: tuple[Operation, ...], size: int) -> Image.Image:
    """A whole chain, each operation on the 8-bit result of the one before."""
    for operation in operations:
        image = literal_operation(image, operation, size)
    return image


def literal_views(
    image: Image.Image,
    recipe: ViewRecipe,
    preprocessing: Any,
    seed: int,
    image_id: str,
    dtype: torch.dtype = torch.float32,
) -> np.ndarray:
    """(n_views, 3, S, S): what ``otpt.views.make_views`` must give."""
    size = preprocessing.size
    to_tensor = transforms.ToTensor()
    normalise = transforms.Normalize(preprocessing.mean, preprocessing.std)

    def tensor(image: Image.Image) -> torch.Tensor:
        if dtype == torch.float32:
            return normalise(to_tensor(image))
        return normalise(transforms.PILToTensor()(image).to(dtype) / 255)  # ToTensor knows float32 only

    views = [tensor(_clean(image, preprocessing))]
    for v in range(1, recipe.n_views):
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
        crop = F.resized_crop(image, *draw.crop, [size, size], InterpolationMode.BILINEAR)
        if draw.flip:
            crop = F.hflip(crop)
        x = tensor(crop)
        if recipe.augmix:
            mixed = torch.zeros_like(x)
            for weight, chain in zip(draw.augmix.weights, draw.augmix.chains, strict=True):
                mixed += weight * tensor(literal_chain(crop, chain, size))
            rest = float(np.float32(1) - np.float32(draw.augmix.mix))
            x = draw.augmix.mix * x + rest * mixed
        views.append(x)
    return torch.stack(views).numpy()


def _clean(image: Image.Image, preprocessing: Any) -> Image.Image:
    size, interpolation = preprocessing.size, _INTERPOLATIONS[preprocessing.interpolation]
    if preprocessing.resize_mode == "squash":
        return transforms.Resize((size, size), interpolation)(image)
    if preprocessing.resize_mode == "longest":
        from open_clip.transform import CenterCropOrPad, ResizeKeepRatio

        keep_ratio = ResizeKeepRatio(size, interpolation=interpolation, longest=1)
        return CenterCropOrPad(size, fill=0)(keep_ratio(image))
    return transforms.CenterCrop(size)(transforms.Resize(size, interpolation)(image))
