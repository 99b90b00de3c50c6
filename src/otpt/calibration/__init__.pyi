from .calibrated import Calibrated, CalibratedAnswer
from .cots import cor, cots_temperature
from .dac import BaseTexts, dac_factors, own_dac_factors
from .file import Calibration, read_calibration
from .fitting import fit_calibration
from .matching import matching_temperature
from .precision import probabilities
from .registry import CALIBRATIONS
from .rescaling import rescale_to_range, sals, zero_shot_range
from .risk import RiskThreshold, risk_threshold
from .temperature import FIXED, apply_temperature, fit_temperature, fixed_temperature

__all__ = [
    "CALIBRATIONS",
    "FIXED",
    "BaseTexts",
    "Calibrated",
    "CalibratedAnswer",
    "Calibration",
    "RiskThreshold",
    "apply_temperature",
    "cor",
    "cots_temperature",
    "dac_factors",
    "fit_calibration",
    "fit_temperature",
    "fixed_temperature",
    "matching_temperature",
    "own_dac_factors",
    "probabilities",
    "read_calibration",
    "rescale_to_range",
    "risk_threshold",
    "sals",
    "zero_shot_range",
]
