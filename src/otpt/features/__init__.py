"""Images → views → image tower → features: one pipeline, and its cache on disk."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
