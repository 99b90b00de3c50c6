"""Maps of probabilities that are fitted on labelled images, one file each; and the choice among them."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
