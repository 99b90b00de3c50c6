"""One page to share: summary, sortable tables, reliability diagrams, images, settings, and how to make it again."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
