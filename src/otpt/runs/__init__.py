"""One run on disk: configuration, shards, locks, rows, scores; and reading it back. No model is needed."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
