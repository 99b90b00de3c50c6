"""The bench ``emoji/…`` as data sets."""

from __future__ import annotations

import warnings

from otpt.data.dataset import DEFAULT_PROMPT, Dataset
from otpt.data.emoji.sets import EMOJI_SETS, SHIFTS, TRAIN_COMPOSITIONS, TRAIN_SEED, load_emoji
from otpt.data.records import NoSuchSplit
from otpt.data.registered.entry import DatasetEntry
from otpt.errors import OtptError


def emoji_dataset(name: str, split: str = "test") -> Dataset:
    """One set of the bench; its images are drawn when a sample is asked for."""
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
        data.image,
        family=_family(name),
        prompt=data.template.removesuffix("{}.").strip(),
        origin=name,
    )


def emoji_entries() -> list[DatasetEntry]:
    """The registered entry of each set of the bench."""
    entries = []
    for name in EMOJI_SETS:
        classes, images = _size(name)
        title = f"Emoji bench: {name.removeprefix('emoji/')}"
        entries.append(DatasetEntry(name, title, classes, images, _family(name), augmix=True, prompt=DEFAULT_PROMPT))
    return entries


def _family(name: str) -> str:
    return "shift" if name.removeprefix("emoji/") in SHIFTS else "fine-grained"


def _size(name: str) -> tuple[int | None, int | None]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = load_emoji(name)
    except OtptError:  # a package is not installed
        return None, None
    return len(data.class_names), len(data)
