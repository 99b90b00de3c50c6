"""What is done to logits afterwards: temperature (published, fitted, CoTS), SaLS, DAC, precision of the softmax.

Pure functions of logits (..., C), torch tensors or numpy arrays; the result is a torch tensor. None of them changes the
argmax. ``@otpt.calibrator`` registers a function.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
