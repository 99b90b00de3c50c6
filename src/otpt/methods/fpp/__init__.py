"""FPP: a context made for a class list, without images, whose text features hardly change under noise."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
