"""A page's defaults. Light: the command line tells them before it reads a run."""

TITLE = "Calibration report"
PICTURES = 6
"""Pictures of each kind that are shown of a data set."""
