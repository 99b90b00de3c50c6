"""Runs of several models, each model's runs opened together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from otpt.report.comparable import check_side_by_side
from otpt.report.results import Results, check_chosen, methods_of, open_results, open_runs
from otpt.runs import Run


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
    runs = open_runs(folders)
    groups: dict[str, list[Run]] = {}
    names: dict[str, str] = {}
    for run in runs:
        backbone = run.config["backbone"]
        groups.setdefault(backbone["fingerprint"], []).append(run)
        names[backbone["fingerprint"]] = str(backbone["name"])
    check_side_by_side(runs, seeds=seeds)
    check_chosen(runs, seeds=None, methods=methods)
    if len(groups) > 1:  # numbers side by side need the same bins
        first = runs[0].config["scoring"]
        bins, side = first["bins"] if bins is None else bins, side or first["side"]
    alike = {name for name in names.values() if list(names.values()).count(name) > 1}
    return {
        f"{names[key]} ({key[:8]})" if names[key] in alike else names[key]: open_results(
            [run.folder for run in own], bins=bins, side=side, seeds=seeds, methods=_held(methods, own)
        )
        for key, own in groups.items()
    }


def _held(methods: Sequence[str] | None, runs: Sequence[Run]) -> Sequence[str] | None:
    """Those of the chosen methods that a model's runs have; all of them if it has none, which is refused."""
    if methods is None:
        return None
    known = methods_of(runs)
    return [name for name in methods if name in known] or methods
