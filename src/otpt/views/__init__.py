"""One image → its clean view and n augmented views, reproducible from (seed, image id) alone."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
