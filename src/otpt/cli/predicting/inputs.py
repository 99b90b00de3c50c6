"""The images that ``otpt predict`` is given: files, folders, addresses, standard input, and those that an option before
them swallowed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from otpt.cli.notes import tell
from otpt.data.dataset import IMAGE_SUFFIXES
from otpt.errors import OtptError, cannot_read
from otpt.images import is_url

_GREEDY = {
    "settings": "--set",
    **{name: f"--{name}" for name in ("classes", "methods", "context", "templates", "fpp", "plugin", "calibration")},
}
"""Options that take all words up to the next option: ``--classes cat dog *.jpg``."""

STANDARD_INPUT = "-"

Given = str | Path
"""A file; or an address, or standard input, as it was written."""


def collect_images(options: argparse.Namespace) -> list[Given]:
    """All images that were given, folders expanded; words that an option has taken by mistake are taken back."""
    given = [*options.images, *_swallowed(options)]
    if not given:
        raise OtptError("No IMAGE was given; expected image files, folders of them, http(s) addresses, or -.")
    if given.count(STANDARD_INPUT) > 1:
        raise OtptError("Standard input, -, was given twice; it holds one image.")
    return list(_expand(given))


def opened(given: Given) -> Given | IO[bytes]:
    """What the classifier takes in its place."""
    return sys.stdin.buffer if given == STANDARD_INPUT else given


def is_image(word: str) -> bool:
    """Whether a word is meant as an image: it ends like one, or is a folder with a slash at its end."""
    if word.endswith(("/", os.sep)):
        return os.path.isdir(word)
    return is_url(word) or Path(word).suffix.lower() in IMAGE_SUFFIXES


def _swallowed(options: argparse.Namespace) -> Iterator[str]:
    for name, option in _GREEDY.items():
        words: list[str | Path] = getattr(options, name) or []
        images = [str(word) for word in words if is_image(str(word))]
        if not images:
            continue
        setattr(options, name, [word for word in words if str(word) not in images])
        others = f" and {len(images) - 1} more" if len(images) > 1 else ""
        taken = "are taken as images" if others else "is taken as an image"
        tell(f"{images[0]!r}{others} after {option} {taken} to predict.")
        yield from images


def _expand(given: Sequence[str]) -> Iterator[Given]:
    """Files and addresses as they are, folders as the images in them (sorted, sub-folders included)."""
    for name in given:
        path = Path(name)
        if not os.path.isdir(path):
            yield name if name == STANDARD_INPUT or is_url(name) else path
            continue
        try:
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
        except OSError as error:
            raise cannot_read("folder", path, error) from None
        if not inside:
            raise OtptError(f"The folder {str(path)!r} holds no images ({', '.join(sorted(IMAGE_SUFFIXES))}).")
        yield from inside
