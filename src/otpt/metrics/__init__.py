"""Metrics of predictions: pure functions of (probabilities, labels), or of (confidence, correct).

Inputs are numpy arrays or torch tensors. Values are Python floats; fractions lie between 0 and 1 and
are not percentages: ``percent`` and ``Metrics.as_percent`` print them as published tables do.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
