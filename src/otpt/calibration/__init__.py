"""What is done to logits afterwards: temperature (published, fitted, CoTS), SaLS, DAC, precision of the softmax.

Pure functions of logits (..., C), torch tensors or numpy arrays; the result is a torch tensor. None of them changes the
argmax. ``@otpt.calibration`` registers a function of the user's own.
"""

import sys
from types import ModuleType
from typing import Any

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)


class _CallableModule(ModuleType):
    """The room has the name of its decorator: ``otpt.calibration.sals`` and ``@otpt.calibration`` both work."""

    def __call__(self, *function: Any, **options: Any) -> Any:
        from otpt.calibration.registry import calibration

        return calibration(*function, **options)


sys.modules[__name__].__class__ = _CallableModule
