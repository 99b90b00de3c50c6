"""What the two branches of FPT see of an image, and a store for the frozen one's answers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import save
from torch import Tensor

from otpt.errors import OtptError
from otpt.files import write_atomically
from otpt.methods.fpt.frozen import ISIC_MEAN, ISIC_STD, FrozenViT
from otpt.methods.inits.trained_files import read_trained
from otpt.transfers import to_device
from otpt.views import normalised, unit_pixels


def side_pixels(image: Image.Image, size: int) -> Tensor:
    """The side network's image at test time: squashed to a square, normalised; (3, size, size)."""
    return normalised(unit_pixels(image, size, resize_mode="squash"), ISIC_MEAN, ISIC_STD)


class KeysAndValues:
    """Keys and values of images, of the un-augmented image always, so that they can be kept.

    Args:
        folder: one safetensors file per image, made when first asked for; None to compute them each time. For ViT-B
            at 512 pixels a file takes 15 MB.
    """

    def __init__(self, frozen: FrozenViT, blocks: tuple[int, ...], folder: Path | None = None) -> None:
        self._frozen, self._blocks, self._folder = frozen, blocks, folder
        numbers = f"{frozen.fingerprint} {frozen.preprocessing} {blocks} {frozen.precision}"
        self._key = hashlib.sha256(numbers.encode()).hexdigest()[:16]

    def __call__(self, image: Image.Image, digest: str) -> Tensor:
        """(L, 2, H, k, d) of an image named by its content."""
        path = None if self._folder is None else self._folder / self._key / f"{digest}.safetensors"
        if path is not None and path.is_file():
            try:
                return to_device(read_trained(path).tensors["keys_values"], self._frozen.device)
            except (OtptError, KeyError):
                path.unlink(missing_ok=True)  # damaged: computed anew
        settings = self._frozen.preprocessing
        pixels = normalised(
            unit_pixels(image, settings.size, resize_mode=settings.resize_mode), settings.mean, settings.std
        )
        found = self._frozen.keys_and_values(pixels[None], self._blocks)[0]
        if path is not None:
            write_atomically(path, save({"keys_values": found.cpu().contiguous()}), durable=False)
        return found


def stacked(images: Sequence[Tensor], like: FrozenViT) -> Tensor:
    """Images (3, S, S) as one batch on the frozen ViT's device."""
    return to_device(torch.stack(list(images)), like.device, like.dtype)
