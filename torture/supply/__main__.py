"""``python -m torture.supply``: write docs/licences.md and constraints/sbom.cdx.json from the pins.

Run it in an environment that ``make setup`` has made, whose packages say their licences. ``--check`` only compares.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from torture.supply.licences import licence_page
from torture.supply.packages import pinned
from torture.supply.sbom import as_text, bill_of_materials

ROOT = Path(__file__).parent.parent.parent
PINS = ROOT / "constraints" / "python-3.11.txt"
BILL = ROOT / "constraints" / "sbom.cdx.json"
PAGE = ROOT / "docs" / "licences.md"


def made() -> dict[Path, str]:
    """The files and what belongs in them."""
    packages = pinned(PINS)
    return {BILL: as_text(bill_of_materials(packages)), PAGE: licence_page(packages)}


def main() -> int:
    """Write the files; with ``--check`` say which are out of date, and end with 1 if one is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    stale = 0
    for path, text in made().items():
        same = path.exists() and path.read_text(encoding="utf-8") == text
        stale += not same
        if not options.check:
            path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {'up to date' if same else 'out of date' if options.check else 'written'}")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
