"""Plans for reproducing a paper's tables: required runs, data sets and missing data.

Every data set has a run folder of its own, OUT/BACKBONE/GROUP/DATASET, which several tables share. Making a plan needs
no data: sizes come from the registry. With ``bench`` the plan uses the emoji sets and the embedded
model, as a functional test without the paper's numbers.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from otpt.data import Dataset, load_dataset
from otpt.data.emoji import GROUPS, SHIFTS
from otpt.data.registered import find_entry
from otpt.errors import OtptError
from otpt.methods import get_method
from otpt.report.papers import BACKBONES, LAYOUTS, OTPT, Paper, get_paper, table_datasets
from otpt.report.results import check_names
from otpt.runs import Run
from otpt.runs.config import CONFIG

STUDIES = {"paper": OTPT, "cots": "cots"}
"""Names for ``otpt reproduce`` and their papers."""
MODELS = {"ViT-B/16": "ViT-B-16/openai", "RN50": "RN50/openai", "bench": "pocket"}
SEEDS = (0, 1, 2)
"""For tables over seeds; the paper does not name its own."""

_GROUP_OF = {
    "groups": "main", "main": "main", "sce": "main", "householder": "main", "combination": "main",
    "shifts": "shifts", "prompts": "prompts", "seeds": "seeds",
}  # fmt: skip
"""Layouts whose tables are made of the same runs."""
_NEEDS = {
    **{name: layout.needs for name, layout in LAYOUTS.items() if layout.needs},
    "siglip": "SigLIP's weights: 'otpt evaluate --backbone NAME/TAG --methods …'",
}
_BENCH = {"groups": 1, "combination": 3, "seeds": 5}
"""Number of emoji sets of the tables that do not have all."""


@dataclass
class PlannedRun:
    """One data set in one run folder.

    Attributes:
        model: specification of the backbone.
        images: of the data set, under each seed; None if unknown.
        missing: why it cannot be run; None if it can.
        data: folder with the data sets.
        left: images that are still to be predicted, over all seeds; None if unknown.
        seconds: estimated for what is left; None if unknown.
    """

    folder: Path
    dataset: str
    backbone: str
    model: str
    group: str
    methods: tuple[str, ...]
    prompts: tuple[str, ...] | None
    seeds: tuple[int, ...]
    augmix: bool | None
    images: int | None
    missing: str | None
    data: Path | None
    left: int | None = None
    seconds: float | None = None

    def make(self) -> Dataset:
        """Open the data set."""
        return _open(self.dataset, self.data)


@lru_cache(maxsize=32)
def _open(name: str, data: Path | None) -> Dataset:
    return load_dataset(name, root=data, official_names=True)


@dataclass(frozen=True)
class PlannedTable:
    """A table of the paper and the runs that it is made of; ``needs`` is what must be supplied before."""

    number: str
    layout: str
    backbone: str
    prompt: str | None
    methods: tuple[str, ...]
    runs: tuple[PlannedRun, ...] = ()
    needs: str | None = None


@dataclass(frozen=True)
class Plan:
    """All tables, and the methods of the paper that are left out, with the reason."""

    study: str
    tables: tuple[PlannedTable, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def runs(self) -> list[PlannedRun]:
        """Each run once, in the order of the tables."""
        return list({run.folder: run for table in self.tables for run in table.runs}.values())

    @property
    def missing(self) -> dict[str, str]:
        """Data sets that are not present, and why."""
        return {run.dataset: run.missing for run in self.runs if run.missing is not None}

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        tables = [asdict(table) for table in self.tables]
        for run in (run for table in tables for run in table["runs"]):
            run["folder"] = str(run["folder"])
            del run["data"]
        return {"study": self.study, "tables": tables, "missing": self.missing, "left_out": dict(self.left_out)}


def make_plan(
    study: str = "paper",
    *,
    data: Path | None = None,
    out: Path | None = None,
    backbones: Sequence[str] = BACKBONES,
    tables: Sequence[str] | None = None,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    limit: int | None = None,
    model: str | None = None,
    bench: bool = False,
    seconds: Callable[[PlannedRun], float | None] | None = None,
) -> Plan:
    """Plan the runs of a study, one of :data:`STUDIES`.

    Args:
        data: folder with the data sets; without it every registered set is missing.
        out: folder of the runs, "runs/STUDY" by default.
        backbones, tables, datasets, methods: only these of the paper.
        seeds: of all runs, in place of the paper's.
        limit: images of each set at most.
        model: weights in place of OpenAI's.
        bench: emoji sets and the embedded model in place of the paper's.
        seconds: estimates the time that a run still needs.
    """
    check_names("paper to reproduce", [study], STUDIES)
    check_names("backbone of the paper", backbones, BACKBONES)
    paper = get_paper(STUDIES[study])
    rows = paper.numbers[paper.numbers["layout"].isin([*_GROUP_OF, *_NEEDS])]
    rows = rows[rows["backbone"].isin(backbones[:1] if bench else backbones) | ~rows["backbone"].isin(BACKBONES)]
    tables = check_names("table of the paper", tables, rows["table"])
    check_names("method of the paper", methods, rows["method"])
    if limit is not None and limit < 1:
        raise OtptError(f"The limit is {limit}; expected 1 or more.")
    if data is not None and not data.expanduser().is_dir():
        raise OtptError(f"The data root {str(data)!r} is not a folder; give the one that holds the data sets.")
    left_out = _left_out(paper, rows) if methods is None else {}
    rows = rows[rows["method"].isin(methods) if methods is not None else ~rows["method"].isin(list(left_out))]
    if model is not None and not bench and len({b for b in rows["backbone"] if b in backbones}) > 1:
        raise OtptError("--backbone replaces one backbone of the paper; choose it with --paper-backbone.")
    planned = []
    for (number, backbone), printed in rows.groupby(["table", "backbone"], sort=False):
        if number not in tables:
            continue
        layout, prompt = printed["layout"].iloc[0], printed["prompt"].iloc[0]
        prompt = prompt if layout == "prompts" else None
        where, own = "bench" if bench else backbone, tuple(dict.fromkeys(printed["method"]))
        if layout in _NEEDS:
            planned.append(PlannedTable(number, layout, backbone, prompt, own, needs=_NEEDS[layout]))
            continue
        group = _GROUP_OF[layout]
        shared = rows[(rows["layout"].map(_GROUP_OF) == group) & (rows["backbone"] == backbone)]
        names = [name.partition(":")[0] for name in table_datasets(printed)]
        if bench:
            names = [f"emoji/{name}" for name in (SHIFTS if layout == "shifts" else GROUPS)][: _BENCH.get(layout)]
        runs = []
        for name in (each for each in dict.fromkeys(names) if datasets is None or each in datasets):
            images, missing = _look(name, data, limit)
            run = PlannedRun(
                folder=(out or Path("runs") / study) / where.replace("/", "-") / group / name.replace("/", "-"),
                dataset=name,
                backbone=where,
                model=model or MODELS[where],
                group=group,
                methods=tuple(dict.fromkeys(shared["method"])),
                prompts=tuple(dict.fromkeys(shared["prompt"])) if group == "prompts" else None,
                seeds=tuple(seeds or SEEDS[: paper.seeds or (3 if group == "seeds" else 1)]),
                augmix=paper.augmix.get("shift") if group == "shifts" else None,
                images=images,
                missing=missing,
                data=data,
            )
            run.left = _left(run)
            run.seconds = None if seconds is None else seconds(run)
            runs.append(run)
        if runs:
            planned.append(PlannedTable(number, layout, where, prompt, own, tuple(runs)))
    if datasets is not None and not any(table.runs for table in planned):
        known = dict.fromkeys(name.partition(":")[0] for name in table_datasets(rows))
        raise OtptError(f"None of {', '.join(datasets)} is in the plan; the tables have {', '.join(known)}.")
    return Plan(study, tuple(planned), left_out)


def evaluate_commands(plan: Plan, *, data: Path | None, views: int = 64, limit: int | None = None) -> list[str]:
    """Return the plan's runs as shell loops over ``otpt evaluate``, grouped by equal options."""
    loops: dict[str, list[str]] = {}
    for run in plan.runs:
        entry = find_entry(run.dataset)
        words = ["otpt", "evaluate", "$set", "--data", str(data or "DATA")]
        words += ["--official-names"] if entry is not None and entry.official_swap is not None else []
        words += ["--backbone", run.model, "--methods", *run.methods, "--seeds", *map(str, run.seeds)]
        words += ["--official-precision", "--views", str(views)]
        words += [] if run.augmix is None else ["--augmix" if run.augmix else "--no-augmix"]
        words += [] if limit is None else ["--limit", str(limit)]
        words += ["--out", f"{run.folder.parent}/$set"]
        command = " ".join(f'"{word}"' if "$set" in word else shlex.quote(word) for word in words)
        loops.setdefault(command, []).append(run.dataset)
    return [f"for set in {' '.join(names)}; do {command}; done" for command, names in loops.items()]


def _look(name: str, data: Path | None, limit: int | None) -> tuple[int | None, str | None]:
    """Return the number of images of a data set, and the reason if it is missing."""
    entry = find_entry(name)
    images = None if entry is None else entry.test_images
    missing: str | None = "no --data was given"
    if data is not None or name.startswith("emoji/"):
        try:
            images, missing = len(_open(name, data)), None
        except OtptError as error:
            missing = str(error)
    return (images if images is None or limit is None else min(images, limit)), missing


def _left_out(paper: Paper, rows: pd.DataFrame) -> dict[str, str]:
    """Return the methods of the paper that this package cannot run, with the reason."""
    found = {}
    for name in dict.fromkeys(rows.loc[rows["layout"].isin(list(_GROUP_OF)), "method"]):
        reasons = [paper.not_implemented[part] for part in (name, *name.split("+")) if part in paper.not_implemented]
        try:
            get_method(name)
        except OtptError as error:
            reasons.append(str(error).partition(". ")[0].rstrip("."))
        if reasons:
            found[name] = reasons[0]
    return found


def _left(run: PlannedRun) -> int | None:
    """Return the number of images that a run has yet to predict, over all seeds."""
    if run.images is None:
        return None
    whole = run.images * len(run.seeds)
    if not (run.folder / CONFIG).is_file():
        return whole
    opened = Run(run.folder)
    held = {(method, seed) for _, seed, (_, method) in opened.everything()}
    if not held.issuperset((method, seed) for method in run.methods for seed in run.seeds):
        return whole
    done, total = opened.progress()
    return total - done
