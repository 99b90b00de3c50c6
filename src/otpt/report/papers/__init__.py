"""What papers print, where that contradicts itself, and what it takes to reproduce it."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
