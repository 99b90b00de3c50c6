"""``python -m torture PART [--cases N] [--seed S] [--minutes M]``: run a part of the reliability campaign.

The counts go to ``torture/results/PART.json`` (or ``--out``); ``--add`` adds them to those of earlier runs.
``python -m torture page`` puts all counts into ``docs/reliability.md``. One case again: ``--seed SEED --cases 1``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

from torture.campaign import run_part
from torture.page import PAGE, write_page
from torture.parts import PARTS, part_named
from torture.records import PartOptions
from torture.results import RESULTS, Tally, read


def main() -> int:
    """Run what the command line asks for; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "page"], metavar="PART", help=", ".join([*PARTS, "page"]))
    parser.add_argument("--cases", type=int, help="at most so many")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the next ones follow")
    parser.add_argument("--minutes", type=float, help="no case begins later")
    parser.add_argument("--kind", help="only cases of this kind")
    parser.add_argument("--images", type=int, help="of the soak")
    parser.add_argument("--out", type=Path, help="the file with the counts")
    parser.add_argument("--add", action="store_true", help="to the counts that are in the file")
    options = parser.parse_args()
    if options.part == "page":
        write_page()
        print(f"Written: {PAGE}")
        return 0
    out = options.out or RESULTS / f"{options.part}.json"
    before = read(out) if options.add and out.exists() else None
    with tempfile.TemporaryDirectory(prefix="otpt-torture-") as folder:
        given = PartOptions(Path(folder), options.cases, options.seed, options.minutes, options.kind, options.images)
        say, save = partial(print, flush=True), partial(Tally.write, path=out)
        tally = run_part(options.part, part_named(options.part), given, say, before, save)
    tally.write(out)
    print(f"{tally.cases} cases, {tally.failing.total()} failing, {tally.seconds:.0f} s: {out}")
    return 1 if tally.failing.total() else 0


if __name__ == "__main__":
    sys.exit(main())
