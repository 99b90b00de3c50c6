"""Options that ask something of a calibration file: ``--calibration cal.json --coverage 0.9 --risk 0.05``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otpt.cli.notes import tell
from otpt.errors import OtptError

if TYPE_CHECKING:
    from otpt.calibration import Calibrated

SETS = ("lac", "aps", "raps")


def add_calibration_options(parser: Any) -> None:
    """Calibration files, and what is asked of them."""
    group = parser.add_argument_group("calibration")
    group.add_argument(
        "--calibration",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="files of 'otpt calibrate', at most one per method",
    )
    group.add_argument(
        "--coverage", type=float, metavar="P", help="answer with the set of classes that holds the true one so often"
    )
    group.add_argument("--sets", choices=SETS, default="aps", help="how sets are made (default: %(default)s)")
    group.add_argument("--mondrian", action="store_true", help="that coverage for each class by itself")
    group.add_argument(
        "--risk", type=float, metavar="R", help="abstain where needed for at most this fraction of errors"
    )
    group.add_argument(
        "--guarantee",
        type=float,
        default=0.95,
        metavar="P",
        help="probability with which the risk is held (default: %(default)s)",
    )


def chosen_calibrations(options: argparse.Namespace) -> list[Calibrated]:
    """The calibrations of the options, each with what is asked of it."""
    from otpt.calibration import Calibrated, read_calibration

    if not options.calibration:
        for name in ("coverage", "mondrian", "risk"):
            if getattr(options, name):
                raise OtptError(
                    f"--{name} was given without --calibration; expected a file of labelled images' scores, which "
                    "'otpt calibrate' makes."
                )
        return []
    found = []
    for path in options.calibration:
        own = Calibrated(
            read_calibration(path),
            coverage=options.coverage,
            sets=options.sets,
            mondrian=options.mondrian,
            risk=options.risk,
            guarantee=options.guarantee,
        )
        _tell(own, path)
        found.append(own)
    return found


def _tell(calibrated: Calibrated, path: Path) -> None:
    """What a threshold promises, and which classes have too few labels."""
    threshold, found = calibrated.threshold, calibrated.calibration
    if threshold is not None:
        tell(
            f"{path}: answers above a confidence of {max(threshold.threshold, 0.0):.4f} before calibration are wrong "
            f"at most {threshold.risk:g} of the time, with probability {threshold.guarantee:g}; of the "
            f"{threshold.labels} labelled images {threshold.answered} are answered, {threshold.wrong} of them wrong"
        )
    if calibrated.mondrian and calibrated.always_in:
        tell(
            f"{path}: {calibrated.always_in} of {len(found.class_names)} classes have too few labels for a coverage of "
            f"{calibrated.coverage:g}, so they are in every set"
        )
