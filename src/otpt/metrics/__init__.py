"""Metrics of predictions: pure functions of (probabilities, labels), or of (confidence, correct).

Numpy arrays and torch tensors are accepted alike. Values are Python floats; shares lie between 0 and 1 and
are not percentages: ``percent`` and ``Metrics.as_percent`` print them as published tables do.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
