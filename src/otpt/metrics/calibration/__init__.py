"""Calibration errors and the bins that they stand on."""
