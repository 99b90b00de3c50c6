"""Make the figure of README.md, light and dark: ``python docs/gallery.py``; an interrupted run resumes."""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

from otpt.cli import main as otpt

GALLERY = Path(__file__).parent / "gallery"
RUN = Path("runs/gallery")
SETS = ("emoji/animals", "emoji/food", "emoji/travel")


def main() -> None:
    """Evaluate the embedded model on a few images of the emoji bench, then draw."""
    _otpt("evaluate", *SETS, "--methods", "tpt", "o-tpt", "--backbone", "pocket", "--limit", "150", "--out", str(RUN))
    for theme, name in (("light", "reliability.png"), ("dark", "reliability-dark.png")):
        file = GALLERY / name
        _otpt("plot", "reliability", str(RUN), "--out", str(file), "--dpi", "110", "--theme", theme)
        with Image.open(file) as image:  # a palette has a third of the bytes, without visible loss
            small = image.convert("RGB").quantize(160, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        small.save(file, optimize=True)


def _otpt(*arguments: str) -> None:
    if code := otpt(list(arguments)):
        sys.exit(code)


if __name__ == "__main__":
    main()
