"""The bench ``emoji/…`` as data sets; its packages are imported when it is used."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from otpt.data.dataset import DEFAULT_PROMPT, Dataset
from otpt.data.records import NoSuchSplit
from otpt.data.registered.entry import DatasetEntry
from otpt.errors import OtptError

if TYPE_CHECKING:
    from PIL import Image

    from otpt.data.emoji import EmojiSet


@dataclass(frozen=True)
class _Drawn:
    data: EmojiSet

    def __call__(self, index: int) -> Image.Image:
        return self.data.image(index)


def emoji_dataset(name: str, split: str = "test") -> Dataset:
    """One set of the bench; its images are drawn when a sample is asked for."""
    from otpt.data.emoji import load_emoji
    from otpt.data.emoji.sets import TRAIN_COMPOSITIONS, TRAIN_SEED

    if split not in {"test", "train"}:
        raise NoSuchSplit(f"{name} has no split {split!r}; expected test or train.")
    training = split == "train"
    data = load_emoji(name, seed=TRAIN_SEED, compositions=TRAIN_COMPOSITIONS) if training else load_emoji(name)
    indices = range(len(data))
    return Dataset(
        name,
        data.class_names,
        [f"train/{data.image_id(i)}" if training else data.image_id(i) for i in indices],
        [data.label(i) for i in indices],
        _Drawn(data),
        family=_family(name),
        augmix=True,
        prompt=data.template.removesuffix("{}.").strip(),
        origin=name,
    )


def emoji_entries() -> list[DatasetEntry]:
    """The registered entry of each set of the bench."""
    from otpt.data.emoji import EMOJI_SETS

    entries = []
    for name in EMOJI_SETS:
        classes, images = _size(name)
        title = f"Emoji bench: {name.removeprefix('emoji/')}"
        entries.append(DatasetEntry(name, title, classes, images, _family(name), augmix=True, prompt=DEFAULT_PROMPT))
    return entries


def _family(name: str) -> str:
    from otpt.data.emoji.sets import SHIFTS

    return "shift" if name.removeprefix("emoji/") in SHIFTS else "fine-grained"


def _size(name: str) -> tuple[int | None, int | None]:
    from otpt.data.emoji import load_emoji

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = load_emoji(name)
    except OtptError:  # a package is not installed
        return None, None
    return len(data.class_names), len(data)
