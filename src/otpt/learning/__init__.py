"""Training from labelled images: prompts (CoOp, MaPLe) and medical networks (BAPLe, FPT), by published recipes."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
