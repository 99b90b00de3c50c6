"""The bins of calibration errors that are computed again from stored rows."""

from __future__ import annotations

import argparse

from otpt.runs.format import SIDES


def add_bins_options(parser: argparse.ArgumentParser) -> None:
    """``--bins`` and ``--side``; by default they are those of the runs."""
    words = "bins of the calibration errors, at most 100 (default: as in the runs)"
    parser.add_argument("--bins", type=int, metavar="M", help=words)
    parser.add_argument("--side", choices=SIDES, help="right for bins (lo, hi], left for [lo, hi)")
