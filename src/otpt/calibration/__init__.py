"""Calibration of logits and probabilities.

Logit rescaling (temperature, SaLS, CoTS, DAC) and the precision of the softmax are pure functions of logits (..., C),
torch tensors or numpy arrays; the result is a torch tensor, and none of them changes the argmax. With labelled images,
``fit_calibration`` fits a map of probabilities, conformal prediction sets and risk thresholds.
``@otpt.calibrator`` registers a function of logits.
"""

from otpt.calibration.conformal import RiskThreshold, risk_threshold
from otpt.calibration.fitted import (
    Calibrated,
    CalibratedAnswer,
    Calibration,
    Estimate,
    HeldOutMetric,
    fit_calibration,
    fit_label_calibration,
    read_calibration,
)
from otpt.calibration.logits import (
    BaseTexts,
    apply_temperature,
    cor,
    cots_temperature,
    dac_factors,
    fit_temperature,
    fixed_temperature,
    matching_temperature,
    own_dac_factors,
    probabilities,
    sals,
)
from otpt.calibration.operating_points import OperatingPoint, Point, operating_points

__all__ = [
    "BaseTexts",
    "Calibrated",
    "CalibratedAnswer",
    "Calibration",
    "Estimate",
    "HeldOutMetric",
    "OperatingPoint",
    "Point",
    "RiskThreshold",
    "apply_temperature",
    "cor",
    "cots_temperature",
    "dac_factors",
    "fit_calibration",
    "fit_label_calibration",
    "fit_temperature",
    "fixed_temperature",
    "matching_temperature",
    "operating_points",
    "own_dac_factors",
    "probabilities",
    "read_calibration",
    "risk_threshold",
    "sals",
]
