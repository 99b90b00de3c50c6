"""Learning prompts from a few labelled pictures a class: CoOp and MaPLe, by their published recipes."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
