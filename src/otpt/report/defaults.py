"""The bootstrap's defaults. Light: the command line tells them before it reads a run."""

RESAMPLES = 1000
LEVEL = 0.95
