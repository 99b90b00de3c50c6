"""What is done to logits afterwards: temperature (published, fitted), SaLS, precision of the soft-max.

Pure functions of logits (..., C), torch tensors or numpy arrays; the result is a torch tensor. None of them
changes the arg max.
"""

from otpt.calibration.precision import probabilities
from otpt.calibration.sals import rescale_to_range, sals, zero_shot_range
from otpt.calibration.temperature import FIXED, apply_temperature, fit_temperature, fixed_temperature

__all__ = [
    "FIXED",
    "apply_temperature",
    "fit_temperature",
    "fixed_temperature",
    "probabilities",
    "rescale_to_range",
    "sals",
    "zero_shot_range",
]
