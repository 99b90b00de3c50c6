"""The sets of the bench ``emoji`` and how their images are made.

| set | what |
|---|---|
| ``emoji/animals`` … ``emoji/flags`` | eight fine-grained sets, one per group of Unicode's emoji, without skin tones |
| ``emoji/line`` | shift of ``emoji/objects``: only the black outlines |
| ``emoji/grey``, ``emoji/noise``, ``emoji/blur`` | shifts of ``emoji/objects``: the same images, corrupted |
| ``emoji/small`` | shift of ``emoji/objects``: small |

The shifts are made from ``objects``, the largest set that can be recognised without colour (a flag's outline is
a rectangle). All classes have the same number of images, at least three, and a set has at least 500.
Image ``i`` shows class ``i mod C`` in composition ``i div C``.

The training split has sixteen other compositions of the same drawings, from another seed.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from otpt.errors import OtptError, unknown

from .composition import SIDE, compose, compose_small, keyed_random
from .drawings import check_packages, drawing, rasterise

if TYPE_CHECKING:
    from PIL import Image

GROUPS = ("animals", "food", "travel", "objects", "activities", "symbols", "smileys", "flags")
SHIFTS = ("line", "grey", "noise", "blur", "small")
SHIFTED = "objects"
EMOJI_SETS: tuple[str, ...] = tuple(f"emoji/{name}" for name in GROUPS + SHIFTS)
TEMPLATE = "a photo of a {}."
MIN_IMAGES, MIN_COMPOSITIONS = 500, 3
TRAIN_SEED, TRAIN_COMPOSITIONS = 1, 16


@dataclass(frozen=True)
class EmojiSet:
    """One set: ``len(data)`` images, ``data.image(i)`` of class ``data.class_names[data.label(i)]``."""

    name: str
    codes: tuple[str, ...]  # (C,) code points of each class, OpenMoji's file names
    class_names: tuple[str, ...]  # (C,)
    compositions: int  # images per class
    seed: int
    template: str = TEMPLATE

    def __len__(self) -> int:
        return len(self.codes) * self.compositions

    def label(self, index: int) -> int:
        """The class of image ``index``, in 0 … C − 1."""
        return self._where(index)[0]

    def image_id(self, index: int) -> str:
        """A stable name: set, code points and number of the composition, e.g. ``emoji/food/1F34E-2``."""
        label, composition = self._where(index)
        return f"{self.name}/{self.codes[label]}-{composition}"

    def image(self, index: int) -> Image.Image:
        """Image ``index``, RGB, 128 × 128 pixels."""
        from . import shifts

        label, composition = self._where(index)
        kind, code = self.name.removeprefix("emoji/"), self.codes[label]
        # A shift uses the same composition as the set it shifts, so that only the shift differs.
        rng = keyed_random(self.seed, SHIFTED if kind in SHIFTS else kind, code, composition)
        body = drawing(code, lines_only=kind == "line")
        image = rasterise(compose_small(body, rng) if kind == "small" else compose(body, rng), SIDE)
        if kind == "grey":
            return shifts.grey(image)
        if kind == "blur":
            return shifts.blur(image)
        if kind == "noise":
            return shifts.noise(image, f"{self.seed}/{self.image_id(index)}")
        return image

    def _where(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise OtptError(f"{self.name} has {len(self)} images, so image {index} does not exist.")
        return index % len(self.codes), index // len(self.codes)


def load_emoji(name: str, *, seed: int = 0, compositions: int | None = None) -> EmojiSet:
    """The set called ``name`` (one of ``EMOJI_SETS``); ``seed`` draws other compositions of the same drawings.

    ``compositions``: images per class, instead of the default number of the set.
    """
    if name not in EMOJI_SETS:
        raise unknown("data set", name, EMOJI_SETS)
    check_packages()
    kind = name.removeprefix("emoji/")
    classes = _classes()[SHIFTED if kind in SHIFTS else kind]
    compositions = compositions or max(MIN_COMPOSITIONS, -(-MIN_IMAGES // len(classes)))
    return EmojiSet(name, tuple(classes), tuple(classes.values()), compositions, seed)


@functools.cache
def _classes() -> dict[str, dict[str, str]]:
    """Group → code points → class name, in Unicode's order."""
    text = resources.files(__package__).joinpath("classes.json").read_text(encoding="utf-8")
    groups: dict[str, dict[str, str]] = json.loads(text)["groups"]
    return groups
