"""Opening an image: a path, URL, bytes, file object, PIL image, array or tensor → RGB, and a digest of its content."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
