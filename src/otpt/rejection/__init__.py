"""Whether an image fits any of the classes, asked without labels: ``Rejector(backbone, names, score="word-margin")``.

A score is a function of an image's cosines with the text features of classes, for some also of other words; high means
that the image is probably none of the classes. One short file each.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
