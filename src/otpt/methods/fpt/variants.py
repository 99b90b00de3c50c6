"""Sizes and variants of FPT. Light: the command line lists them."""

from __future__ import annotations

FROZEN_SIZE = 512
"""Pixels a side of the images that the frozen ViT sees."""

ROWS = ("classifier", "prompts")
"""What the orthogonality term can be laid on."""

VARIANTS = ("fpt", "fpt-plus")
"""``fpt``: all blocks, prompts of the side network's width, projected; images of 224. ``fpt-plus`` (the repository's
default): the second half of the blocks, prompts of the frozen width, normed, not projected; images of 128."""
