"""Methods as points on axes: init, adapt, calibrate, aggregate, gate; their registries and names."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
