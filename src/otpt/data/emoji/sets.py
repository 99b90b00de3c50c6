"""The sets of the bench ``emoji`` and how their pictures are made.

| set | what |
|---|---|
| ``emoji/animals`` … ``emoji/flags`` | eight fine-grained sets, one a group of Unicode's emoji, without skin tones |
| ``emoji/line`` | shift of ``emoji/objects``: only the black outlines |
| ``emoji/grey``, ``emoji/noise``, ``emoji/blur`` | shifts of ``emoji/objects``: the same pictures, spoilt |
| ``emoji/small`` | shift of ``emoji/objects``: small |

The shifts are made of ``objects``, the largest set that is still itself without colour (a flag's outline is
a rectangle). Each class has the same number of pictures, at least three, so that a set has at least 500.
Picture ``i`` shows class ``i mod C`` in composition ``i div C``: any beginning of a set is balanced.

To learn from there is a training split: sixteen other compositions of the same drawings, by another seed.
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
MIN_PICTURES, MIN_COMPOSITIONS = 500, 3
TRAIN_SEED, TRAIN_COMPOSITIONS = 1, 16


@dataclass(frozen=True)
class EmojiSet:
    """One set: ``len(data)`` pictures, ``data.picture(i)`` of class ``data.class_names[data.label(i)]``."""

    name: str
    codes: tuple[str, ...]  # (C,) code points of each class, OpenMoji's file names
    class_names: tuple[str, ...]  # (C,)
    compositions: int  # pictures a class
    seed: int
    template: str = TEMPLATE

    def __len__(self) -> int:
        return len(self.codes) * self.compositions

    def label(self, index: int) -> int:
        """The class of picture ``index``, in 0 … C − 1."""
        return self._where(index)[0]

    def picture_id(self, index: int) -> str:
        """A name that stays: set, code points and number of the composition, e.g. ``emoji/food/1F34E-2``."""
        label, composition = self._where(index)
        return f"{self.name}/{self.codes[label]}-{composition}"

    def picture(self, index: int) -> Image.Image:
        """Picture ``index``, RGB, 128 × 128 pixels."""
        from . import shifts

        label, composition = self._where(index)
        kind, code = self.name.removeprefix("emoji/"), self.codes[label]
        # A shift uses the very composition of the set it shifts, so the two differ in the shift alone.
        rng = keyed_random(self.seed, SHIFTED if kind in SHIFTS else kind, code, composition)
        body = drawing(code, lines_only=kind == "line")
        picture = rasterise(compose_small(body, rng) if kind == "small" else compose(body, rng), SIDE)
        if kind == "grey":
            return shifts.grey(picture)
        if kind == "blur":
            return shifts.blur(picture)
        if kind == "noise":
            return shifts.noise(picture, f"{self.seed}/{self.picture_id(index)}")
        return picture

    def _where(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise OtptError(f"{self.name} has {len(self)} pictures, so picture {index} does not exist.")
        return index % len(self.codes), index // len(self.codes)


def load_emoji(name: str, *, seed: int = 0, compositions: int | None = None) -> EmojiSet:
    """The set called ``name`` (one of ``EMOJI_SETS``); ``seed`` draws other compositions of the same drawings.

    ``compositions``: pictures a class, in place of the set's own number.
    """
    if name not in EMOJI_SETS:
        raise unknown("data set", name, EMOJI_SETS)
    check_packages()
    kind = name.removeprefix("emoji/")
    classes = _classes()[SHIFTED if kind in SHIFTS else kind]
    compositions = compositions or max(MIN_COMPOSITIONS, -(-MIN_PICTURES // len(classes)))
    return EmojiSet(name, tuple(classes), tuple(classes.values()), compositions, seed)


@functools.cache
def _classes() -> dict[str, dict[str, str]]:
    """Group → code points → class name, in Unicode's order."""
    text = resources.files(__package__).joinpath("classes.json").read_text(encoding="utf-8")
    groups: dict[str, dict[str, str]] = json.loads(text)["groups"]
    return groups
