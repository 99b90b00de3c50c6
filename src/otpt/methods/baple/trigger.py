"""The trigger: a word pasted into a corner, and a noise over the whole image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageColor, ImageDraw, ImageFont
from torch import Tensor

from otpt.errors import OtptError


@dataclass(frozen=True)
class Patch:
    """The word in the bottom-left corner.

    BAPLe writes "Lab" in the font Arizonia. Without a font file Pillow's own is taken, of the same size: another shape
    of the same word, place and colour.
    """

    text: str = "Lab"
    size: int = 24
    colour: str = "#77ab59"
    offset: int = 15
    font: str | None = None

    def layers(self, side: int) -> tuple[Tensor, Tensor]:
        """Cover (1, S, S) in [0, 1] and colour (3, 1, 1) of the word on an image of S = ``side`` pixels."""
        mask = Image.new("L", (side, side))
        place = (self.offset, side - self.offset)
        ImageDraw.Draw(mask).text(place, self.text, fill=255, font=self._font(), anchor="ld")
        cover = torch.from_numpy(np.asarray(mask, np.float32)[None] / 255)
        red, green, blue = ImageColor.getrgb(self.colour)[:3]
        return cover, torch.tensor([red, green, blue], dtype=torch.float32)[:, None, None] / 255

    def _font(self) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
        if self.font is None:
            return ImageFont.load_default(self.size)
        try:
            return ImageFont.truetype(str(Path(self.font).expanduser()), self.size)
        except OSError:
            raise OtptError(f"Cannot read the font {self.font!r}; expected a TrueType or OpenType file.") from None


def triggered(pixels: Tensor, noise: Tensor, patch: Patch) -> Tensor:
    """clamp(paste(x, word) + δ, 0, 1): pixels (B, 3, S, S) in [0, 1], noise δ (3, S, S)."""
    cover, colour = (layer.to(pixels) for layer in patch.layers(pixels.shape[-1]))
    return (cover * colour + (1 - cover) * pixels + noise).clamp(0, 1)
