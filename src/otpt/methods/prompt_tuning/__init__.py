"""Steps on the context: from image features and objectives to tuned contexts and logits."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
