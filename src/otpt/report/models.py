"""Runs of several models, each model's runs opened together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from otpt.report.comparable import check_side_by_side
from otpt.report.results import Results, check_chosen, methods_of, open_results
from otpt.runs import Run
from otpt.runs.run import CONFIG


def open_models(
    folders: Sequence[Path],
    *,
    bins: int | None = None,
    side: str | None = None,
    seeds: Sequence[int] | None = None,
    methods: Sequence[str] | None = None,
) -> dict[str, Results]:
    """The runs in ``folders`` by the name of their model, in order of first appearance.

    Runs of one model are opened by :func:`open_results`, which says what keeps them from being compared; all models
    must have seen the same images of a data set. Models of one name but different weights get the first letters of
    their fingerprints.
    """
    groups: dict[str, list[Path]] = {}
    names: dict[str, str] = {}
    for folder in folders:
        if not os.path.isfile(Path(folder) / CONFIG):
            open_results([folder])  # which says what is wrong
        backbone = Run(folder).config["backbone"]
        groups.setdefault(backbone["fingerprint"], []).append(folder)
        names[backbone["fingerprint"]] = str(backbone["name"])
    if not groups:
        open_results([])
    runs = [Run(folder) for folder in folders]
    check_side_by_side(runs, seeds=seeds)
    check_chosen(runs, seeds=None, methods=methods)
    if bins is None and side is None and len(groups) > 1:
        first = Run(folders[0]).config["scoring"]  # numbers side by side need the same bins
        bins, side = int(first["bins"]), str(first["side"])
    alike = {name for name in names.values() if list(names.values()).count(name) > 1}
    return {
        f"{names[key]} ({key[:8]})" if names[key] in alike else names[key]: open_results(
            own, bins=bins, side=side, seeds=seeds, methods=_held(methods, own)
        )
        for key, own in groups.items()
    }


def _held(methods: Sequence[str] | None, folders: Sequence[Path]) -> Sequence[str] | None:
    """Those of the chosen methods that a model's runs have; all of them if it has none, which is refused."""
    if methods is None:
        return None
    known = methods_of([Run(folder) for folder in folders])
    return [name for name in methods if name in known] or methods
