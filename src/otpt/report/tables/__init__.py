"""Tables of results: in the paper's layouts, beside its numbers, in five formats; and plain tables of scores."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
