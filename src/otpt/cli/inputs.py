"""The images that ``otpt predict`` is given: files, folders, and those that an option before them swallowed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from otpt.cli.notes import tell
from otpt.data.dataset import IMAGE_SUFFIXES
from otpt.errors import OtptError

_GREEDY = {"classes": "--classes", "methods": "--methods", "settings": "--set", "context": "--context"}
"""Options that take all words up to the next option: ``--classes cat dog *.jpg``."""


def collect_images(options: argparse.Namespace) -> list[Path]:
    """All images that were given, folders expanded; words that an option has taken by mistake are taken back."""
    given = [Path(word) for word in (*options.images, *_swallowed(options))]
    if not given:
        raise OtptError("No IMAGE was given; expected image files, or folders of them.")
    return list(_expand(given))


def is_image(word: str) -> bool:
    """Whether a word is meant as an image: it ends like one, or is a folder with a slash at its end."""
    if word.endswith(("/", os.sep)):
        return Path(word).is_dir()
    return Path(word).suffix.lower() in IMAGE_SUFFIXES


def _swallowed(options: argparse.Namespace) -> Iterator[str]:
    for name, option in _GREEDY.items():
        words: list[str] = getattr(options, name) or []
        images = [word for word in words if is_image(word)]
        if not images:
            continue
        setattr(options, name, [word for word in words if word not in images])
        others = f" and {len(images) - 1} more" if len(images) > 1 else ""
        tell(f"{images[0]!r}{others} after {option} {'are' if others else 'is'} taken as images to predict.")
        yield from images


def _expand(given: Sequence[Path]) -> Iterator[Path]:
    """Files as they are, folders as the images in them (sorted, sub-folders included)."""
    for path in given:
        if not path.is_dir():
            yield path
            continue
        try:
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
        except OSError as error:
            raise OtptError(f"Cannot read the folder {str(path)!r}: {error.strerror or error}.") from None
        if not inside:
            raise OtptError(f"The folder {str(path)!r} holds no images ({', '.join(sorted(IMAGE_SUFFIXES))}).")
        yield from inside
