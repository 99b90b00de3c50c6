"""A page's defaults. Light: the command line tells them before it reads a run."""

TITLE = "Calibration report"
"""The heading of a page that was given none."""
IMAGES = 6
"""Images of each kind that are shown of a data set."""
