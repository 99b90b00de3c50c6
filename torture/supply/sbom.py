"""A bill of materials in CycloneDX's JSON: every pinned package, its licence, and what it needs.

It holds neither a time nor a random number, so that the same pins give the same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from otpt._version import __version__
from torture.supply.packages import UNKNOWN, Package

_SPDX = re.compile(r"[A-Za-z0-9.+-]+( (AND|OR|WITH) [A-Za-z0-9.+-]+)*")


def bill_of_materials(packages: Sequence[Package]) -> dict[str, Any]:
    """Plain data of the form of CycloneDX 1.5."""
    own = f"pkg:pypi/otpt@{__version__}"
    references = {package.name: _reference(package) for package in packages}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": "otpt",
                "version": __version__,
                "purl": own,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": [_component(package) for package in packages],
        "dependencies": [
            {
                "ref": references[package.name],
                "dependsOn": [references[name] for name in package.needs if name in references],
            }
            for package in packages
        ],
    }


def as_text(bill: dict[str, Any]) -> str:
    """The bytes of the file, as text."""
    return json.dumps(bill, indent=1, ensure_ascii=False) + "\n"


def _reference(package: Package) -> str:
    return f"pkg:pypi/{package.name}@{package.version}"


def _component(package: Package) -> dict[str, Any]:
    reference = _reference(package)
    found = {
        "type": "library",
        "bom-ref": reference,
        "name": package.name,
        "version": package.version,
        "purl": reference,
    }
    if package.licence == UNKNOWN:
        return found
    if _SPDX.fullmatch(package.licence):
        return {**found, "licenses": [{"expression": package.licence}]}
    return {**found, "licenses": [{"license": {"name": package.licence}}]}
