"""MaPLe: prompts in both towers, tuned through the image tower."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
