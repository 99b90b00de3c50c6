"""Split conformal prediction: sets of classes that hold the true one with a chosen probability; one score per file."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
