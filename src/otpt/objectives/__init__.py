"""Objectives of context steps: pure functions of logits or of text features, one idea per file.

*View objectives* see the logits of one image's selected views, ``(…, k, C)``; *text objectives* see the text features
alone, ``(…, C, D)``, and therefore have the same gradient for every image at the shared init.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
