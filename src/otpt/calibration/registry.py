"""Registration of the functions that rescale logits."""

from __future__ import annotations

from otpt.calibration.cots import cor, cots
from otpt.calibration.dac import dac, dac_base
from otpt.calibration.rescaling import sals
from otpt.registry import CALIBRATIONS, calibrator

__all__ = ["CALIBRATIONS"]

# Robust-adapt's code has C-TPT's weight at 50 for all data sets.
calibrator(source="Murugesan et al., ECCV 2024 (Robust-adapt)", weights={"dispersion": 50.0})(sals)
calibrator(source="Liang et al., 2026 (CoTS)", views=True)(cots)
calibrator(source="Liang et al., 2026 (CoTS)")(cor)
# DAC is for learned prompts and their base classes; with all other classes as the base it needs no training.
calibrator(source="after Wang et al., ICML 2024 (DAC)", views=True)(dac)
calibrator(source="Wang et al., ICML 2024 (DAC)", only={"init": ("coop",)})(dac_base)
