"""A page's defaults. Light: the command line tells them before it reads a run."""

TITLE = "Calibration report"
IMAGES = 6
"""Images of each kind that are shown of a data set."""
