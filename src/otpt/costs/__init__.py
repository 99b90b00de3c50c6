"""What a prediction costs, from shapes alone: operations, bytes, memory, synchronisations; and how long that takes.

The public names are listed in ``__init__.pyi``; each is imported when it is first used. No weights are loaded. The
formulas need no torch; it is imported by CLIP's tokenizer, which counts the tokens of class names, and for image towers
without a formula.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
