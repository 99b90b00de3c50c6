"""FPT: a side network on the keys and values of a frozen ViT, no texts."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
