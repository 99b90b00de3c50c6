"""The pinned packages, with what their own metadata say of their licence and of what they need."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

UNKNOWN = "not read: it is not installed with this version of Python"
_LONGEST = 60
_SHORT = {
    "MIT License": "MIT", "The MIT License": "MIT", "MIT license": "MIT", "Apache Software License": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0", "Apache License 2.0": "Apache-2.0", "Apache 2.0": "Apache-2.0",
    "Apache 2": "Apache-2.0", "Apache Software License 2.0": "Apache-2.0", "Apache-2": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0", "BSD License": "BSD", "Python Software Foundation License": "PSF-2.0",
    "ISC License (ISCL)": "ISC", "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0", "Apache": "Apache-2.0",
    "BSD 3-Clause License": "BSD-3-Clause", "The Unlicense (Unlicense)": "Unlicense",
    "Apache License Version 2.0": "Apache-2.0", "BSD-3": "BSD-3-Clause", }  # fmt: skip
"""Words of packages as SPDX writes them."""


@dataclass(frozen=True)
class Package:
    """A pinned package.

    Attributes:
        licence: as its metadata say it, in SPDX's words where they are known; :data:`UNKNOWN` without metadata.
        needs: names of other pinned packages that it requires, without extras.
    """

    name: str
    version: str
    licence: str
    needs: tuple[str, ...]


def pinned(file: Path) -> list[Package]:
    """The packages of a list of pins, by name."""
    pins = dict(line.strip().split("==") for line in file.read_text(encoding="utf-8").splitlines() if "==" in line)
    names = {str(canonicalize_name(name)) for name in pins}
    return [_package(name, version, names) for name, version in sorted(pins.items())]


def _package(name: str, version: str, names: set[str]) -> Package:
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return Package(name, version, UNKNOWN, ())
    needs = set()
    for line in found.requires or ():
        try:
            wanted = Requirement(line)
        except InvalidRequirement:
            continue
        key = canonicalize_name(wanted.name)
        if key in names and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            needs.add(key)
    return Package(name, version, _licence(found), tuple(sorted(needs)))


def _licence(found: metadata.Distribution) -> str:
    about: Any = found.metadata
    expression = about.get("License-Expression")
    if expression:
        return str(expression)
    classified = [
        line.rpartition(" :: ")[2]
        for line in about.get_all("Classifier") or ()
        if line.startswith("License :: OSI Approved ::")
    ]
    free = " ".join(str(about.get("License") or "").split())
    if free and len(free) <= _LONGEST and free.upper() not in ("UNKNOWN", "DUAL LICENSE"):
        return _SHORT.get(free, free)
    if classified:
        return " AND ".join(dict.fromkeys(_SHORT.get(each, each) for each in classified))
    first = re.split(r"(?<=license)\b|,|\.", free, maxsplit=1, flags=re.IGNORECASE)[0][:_LONGEST]
    return _SHORT.get(first, first) or "see the package"
