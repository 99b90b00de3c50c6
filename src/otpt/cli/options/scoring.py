"""How stored rows are scored again: bins of the calibration errors, and intervals."""

from __future__ import annotations

import argparse

from otpt.runs.format import SIDES

LEVEL = 0.95


def add_bins_options(parser: argparse.ArgumentParser) -> None:
    """``--bins`` and ``--side``; by default they are those of the runs."""
    words = "bins of the calibration errors, at most 100 (default: as in the runs)"
    parser.add_argument("--bins", type=int, metavar="M", help=words)
    parser.add_argument("--side", choices=SIDES, help="right for bins (lo, hi], left for [lo, hi)")


def add_intervals_option(parser: argparse.ArgumentParser) -> None:
    """Intervals beside the numbers of a run."""
    parser.add_argument(
        "--intervals",
        nargs="?",
        type=float,
        const=LEVEL,
        metavar="LEVEL",
        help=f"bootstrap intervals over images, of {100 * LEVEL:g} %% by default",
    )
