"""Loading models, and the interface that the rest of the package uses.

The public names are listed in ``__init__.pyi``; each is imported when it is first used.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
