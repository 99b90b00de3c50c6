"""Prompts that were learned before: of CoOp, CoCoOp and MaPLe, and the files they come in."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
