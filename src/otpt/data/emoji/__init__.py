"""The bench ``emoji``: pictures drawn by the OpenMoji artists, composed by us, in eight sets and five shifts.

>>> data = load_emoji("emoji/animals")                        # doctest: +SKIP
>>> data.class_names[data.label(0)], data.picture(0).size     # doctest: +SKIP
('monkey face', (128, 128))
"""

from __future__ import annotations

from .sets import EMOJI_SETS, EmojiSet, load_emoji

__all__ = ["EMOJI_SETS", "EmojiSet", "load_emoji"]
