from .cots import cor, cots_temperature
from .dac import dac_factors, own_dac_factors
from .matching import matching_temperature
from .precision import probabilities
from .registry import CALIBRATIONS
from .rescaling import rescale_to_range, sals, zero_shot_range
from .temperature import FIXED, apply_temperature, fit_temperature, fixed_temperature

__all__ = [
    "CALIBRATIONS",
    "FIXED",
    "apply_temperature",
    "cor",
    "cots_temperature",
    "dac_factors",
    "fit_temperature",
    "fixed_temperature",
    "matching_temperature",
    "own_dac_factors",
    "probabilities",
    "rescale_to_range",
    "sals",
    "zero_shot_range",
]
