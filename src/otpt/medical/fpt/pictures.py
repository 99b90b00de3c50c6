"""What the two branches of FPT see of a picture, and a store for the frozen one's answers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image, ImageEnhance
from safetensors.torch import save
from torch import Tensor

from otpt.errors import OtptError
from otpt.evaluation.files import write_atomically
from otpt.medical.files import read_trained
from otpt.medical.fpt.frozen import ISIC_MEAN, ISIC_STD, FrozenViT
from otpt.medical.pictures import augmented, normalised, unit_pixels
from otpt.views.draws import view_uniforms

CROP_SCALE = (0.8, 1.0)
CROP_RATIO = (0.7, 1.3)
JITTER = 0.2


def side_pixels(picture: Image.Image, size: int) -> Tensor:
    """The side network's picture at test time: squashed to a square, normalised; (3, size, size)."""
    return normalised(unit_pixels(picture, size, resize_mode="squash"), ISIC_MEAN, ISIC_STD)


def augmented_side_pixels(picture: Image.Image, size: int, *, seed: int, picture_id: str, epoch: int) -> Tensor:
    """In training: crop, flips left-right and up-down, brightness and contrast within ±20 %."""
    vertical, brightness, contrast = view_uniforms(seed, f"fpt {picture_id}", epoch)[:3]
    picture = ImageEnhance.Brightness(picture).enhance(1 + JITTER * (2 * brightness - 1))
    picture = ImageEnhance.Contrast(picture).enhance(1 + JITTER * (2 * contrast - 1))
    pixels = augmented(picture, size, seed=seed, picture_id=picture_id, epoch=epoch, scale=CROP_SCALE, ratio=CROP_RATIO)
    return normalised(pixels.flip(-2) if vertical < 0.5 else pixels, ISIC_MEAN, ISIC_STD)


class KeysAndValues:
    """Keys and values of pictures, of the un-augmented picture always, so that they can be kept.

    Args:
        folder: one safetensors file a picture, made when first asked for; None to compute them each time. For ViT-B
            at 512 pixels a file takes 15 MB.
    """

    def __init__(self, frozen: FrozenViT, blocks: tuple[int, ...], folder: Path | None = None) -> None:
        self._frozen, self._blocks, self._folder = frozen, blocks, folder
        numbers = f"{frozen.fingerprint} {frozen.preprocessing} {blocks} {frozen.precision}"
        self._key = hashlib.sha256(numbers.encode()).hexdigest()[:16]

    def __call__(self, picture: Image.Image, digest: str) -> Tensor:
        """(L, 2, H, k, d) of a picture named by its content."""
        path = None if self._folder is None else self._folder / self._key / f"{digest}.safetensors"
        if path is not None and path.is_file():
            try:
                return read_trained(path).tensors["keys_values"].to(self._frozen.device)
            except (OtptError, KeyError):
                path.unlink(missing_ok=True)  # damaged: made again
        settings = self._frozen.preprocessing
        pixels = normalised(
            unit_pixels(picture, settings.size, resize_mode=settings.resize_mode), settings.mean, settings.std
        )
        found = self._frozen.keys_and_values(pixels[None], self._blocks)[0]
        if path is not None:
            write_atomically(path, save({"keys_values": found.cpu().contiguous()}), durable=False)
        return found


def stacked(pictures: Sequence[Tensor], like: FrozenViT) -> Tensor:
    """Pictures (3, S, S) as one batch on the frozen ViT's device."""
    return torch.stack(list(pictures)).to(like.device, like.dtype)
