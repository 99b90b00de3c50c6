from .precision import probabilities
from .registry import CALIBRATIONS
from .rescaling import rescale_to_range, sals, zero_shot_range
from .temperature import FIXED, apply_temperature, fit_temperature, fixed_temperature

__all__ = [
    "CALIBRATIONS",
    "FIXED",
    "apply_temperature",
    "fit_temperature",
    "fixed_temperature",
    "probabilities",
    "rescale_to_range",
    "sals",
    "zero_shot_range",
]
