"""The sizes of the image trunk of ``pocket``; apart from it, since they are needed where torch is not."""

from __future__ import annotations

SIZE = 64  # pixels
WIDTH = 192
DEPTH, HEADS = 2, 3
GRID = 4  # tokens a side
STEM = 32  # channels
#: EfficientNet-Lite0: blocks, kernel, stride of the first block, channels.
STAGES = (
    (1, 3, 1, 16),
    (2, 3, 2, 24),
    (2, 5, 2, 40),
    (3, 3, 2, 80),
    (3, 5, 1, 112),
    (4, 5, 2, 192),
    (1, 3, 1, 320),
)
EXPANSION = 6  # of every stage but the first
UNSTRIDED = 5  # at 64 pixels the ordinary stride of this stage would leave 2 × 2 places
