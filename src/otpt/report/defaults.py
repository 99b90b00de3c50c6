"""Defaults of the bootstrap, and of what is said of it. Light: the command line tells them before it reads a run."""

RESAMPLES = 1000
LEVEL = 0.95
FEW = 500
"""Images below which most of an ECE may be bias, which is then said."""
