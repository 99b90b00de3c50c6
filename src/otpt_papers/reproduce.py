"""Plans for reproducing a paper's tables: required runs, data sets and missing data.

Every data set has a run folder of its own, OUT/BACKBONE/GROUP/DATASET, which several tables share. Making a plan needs
no data: sizes come from the registry. With ``bench`` the plan uses the emoji sets and the embedded model, as a
functional test without the paper's numbers.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TypedDict, Unpack

import pandas as pd

from otpt.data import Dataset, find_entry, load_dataset
from otpt.data.emoji import GROUPS, SHIFTS
from otpt.errors import OtptError
from otpt.files import Json
from otpt.methods import get_method
from otpt.report.results import check_names
from otpt.runs import Run
from otpt.runs.config import CONFIG
from otpt_papers.layouts import LAYOUTS
from otpt_papers.papers import BACKBONES, OTPT, Paper, get_paper, table_datasets

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
        folder: run folder.
        dataset: name of the data set.
        backbone: the paper's name of the backbone, or "bench".
        model: specification of the backbone.
        group: name of the group of tables that share the run.
        methods: names of the methods.
        prompts: prompts; None for that of the data set.
        seeds: seeds of the views.
        augmix: whether views are mixed; None for the data set's choice.
        images: number of images of the data set, under each seed; None if unknown.
        missing: why it cannot be run; None if it can.
        data: folder with the data sets.
        left: number of images that are still to be predicted, over all seeds; None if unknown.
        seconds: estimated time for what is left; None if unknown.
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

    def open_dataset(self) -> Dataset:
        """Open the data set."""
        return _open_dataset(self.dataset, self.data)


@lru_cache(maxsize=32)
def _open_dataset(name: str, data: Path | None) -> Dataset:
    return load_dataset(name, root=data, official_names=True)


@dataclass(frozen=True)
class PlannedTable:
    """A table of the paper and the runs that it is made of.

    Attributes:
        number: number or name of the table.
        layout: name of its layout.
        backbone: the paper's name of the backbone, or "bench".
        prompt: prompt of the table; None for that of the data sets.
        methods: names of the methods.
        runs: runs that it is made of.
        needs: what must be supplied before; None if it can be planned.
    """

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

    def to_dict(self) -> dict[str, Json]:
        """Return plain data."""
        tables = [asdict(table) for table in self.tables]
        for run in (run for table in tables for run in table["runs"]):
            run["folder"] = str(run["folder"])
            del run["data"]
        return {"study": self.study, "tables": tables, "missing": self.missing, "left_out": dict(self.left_out)}


class Choice(TypedDict, total=False):
    """Part of a paper that is planned.

    Attributes:
        backbones, tables, datasets, methods: names of the paper's; all by default.
        seeds: seeds of all runs, in place of the paper's.
        limit: largest number of images of each set.
    """

    backbones: Sequence[str]
    tables: Sequence[str] | None
    datasets: Sequence[str] | None
    methods: Sequence[str] | None
    seeds: Sequence[int] | None
    limit: int | None


@dataclass(frozen=True)
class _Study:
    """A paper that is planned, the chosen rows of its numbers, and how its runs are made."""

    paper: Paper
    rows: pd.DataFrame
    choice: Choice
    data: Path | None
    out: Path
    model: str | None
    bench: bool

    def datasets_of(self, printed: pd.DataFrame, layout: str) -> list[str]:
        """Return the chosen data sets of a table."""
        names = [name.partition(":")[0] for name in table_datasets(printed)]
        if self.bench:
            names = [f"emoji/{name}" for name in (SHIFTS if layout == "shifts" else GROUPS)][: _BENCH.get(layout)]
        datasets = self.choice.get("datasets")
        return [name for name in dict.fromkeys(names) if datasets is None or name in datasets]

    def run(self, dataset: str, group: str, backbone: str) -> PlannedRun:
        """Plan the run of a data set, which the tables of a group share."""
        where = "bench" if self.bench else backbone
        shared = self.rows[(self.rows["layout"].map(_GROUP_OF) == group) & (self.rows["backbone"] == backbone)]
        images, missing = _count_images(dataset, self.data, self.choice.get("limit"))
        seeds = self.choice.get("seeds") or SEEDS[: self.paper.seeds or (3 if group == "seeds" else 1)]
        run = PlannedRun(
            folder=self.out / where.replace("/", "-") / group / dataset.replace("/", "-"),
            dataset=dataset,
            backbone=where,
            model=self.model or MODELS[where],
            group=group,
            methods=tuple(dict.fromkeys(shared["method"])),
            prompts=tuple(dict.fromkeys(shared["prompt"])) if group == "prompts" else None,
            seeds=tuple(seeds),
            augmix=self.paper.augmix.get("shift") if group == "shifts" else None,
            images=images,
            missing=missing,
            data=self.data,
        )
        run.left = _left(run)
        return run


def make_plan(
    study: str = "paper",
    *,
    data: Path | None = None,
    out: Path | None = None,
    model: str | None = None,
    bench: bool = False,
    seconds: Callable[[PlannedRun], float | None] | None = None,
    **choice: Unpack[Choice],
) -> Plan:
    """Plan the runs of a study, one of :data:`STUDIES`.

    Args:
        study: name of the study.
        data: folder with the data sets; without it every registered set is missing.
        out: folder of the runs, "runs/STUDY" by default.
        model: weights in place of OpenAI's.
        bench: emoji sets and the embedded model in place of the paper's.
        seconds: function that estimates the time that a run still needs.
        choice: part of the paper, see :class:`Choice`.
    """
    check_names("paper to reproduce", [study], STUDIES)
    paper = get_paper(STUDIES[study])
    rows, tables, left_out = _chosen_rows(paper, choice, bench=bench)
    if data is not None and not data.expanduser().is_dir():
        raise OtptError(f"The data root {str(data)!r} is not a folder; give the one that holds the data sets.")
    backbones = choice.get("backbones", BACKBONES)
    if model is not None and not bench and len({name for name in rows["backbone"] if name in backbones}) > 1:
        raise OtptError("--backbone replaces one backbone of the paper; choose it with --paper-backbone.")
    plan = _Study(paper, rows, choice, data, out or Path("runs") / study, model, bench)
    planned = []
    for (number, backbone), printed in rows.groupby(["table", "backbone"], sort=False):
        if number not in tables:
            continue
        layout = printed["layout"].iloc[0]
        prompt = printed["prompt"].iloc[0] if layout == "prompts" else None
        methods = tuple(dict.fromkeys(printed["method"]))
        if layout in _NEEDS:
            planned.append(PlannedTable(number, layout, backbone, prompt, methods, needs=_NEEDS[layout]))
            continue
        runs = [plan.run(name, _GROUP_OF[layout], backbone) for name in plan.datasets_of(printed, layout)]
        for run in runs:
            run.seconds = None if seconds is None else seconds(run)
        if runs:
            where = "bench" if bench else backbone
            planned.append(PlannedTable(number, layout, where, prompt, methods, tuple(runs)))
    datasets = choice.get("datasets")
    if datasets is not None and not any(table.runs for table in planned):
        names = dict.fromkeys(name.partition(":")[0] for name in table_datasets(rows))
        raise OtptError(f"None of {', '.join(datasets)} is in the plan; the tables have {', '.join(names)}.")
    return Plan(study, tuple(planned), left_out)


def _chosen_rows(paper: Paper, choice: Choice, *, bench: bool) -> tuple[pd.DataFrame, Sequence[str], Mapping[str, str]]:
    """Return the numbers of the chosen backbones and methods, the chosen tables, and the methods that are left out."""
    backbones = choice.get("backbones", BACKBONES)
    check_names("backbone of the paper", backbones, BACKBONES)
    rows = paper.numbers[paper.numbers["layout"].isin([*_GROUP_OF, *_NEEDS])]
    rows = rows[rows["backbone"].isin(backbones[:1] if bench else backbones) | ~rows["backbone"].isin(BACKBONES)]
    tables = check_names("table of the paper", choice.get("tables"), rows["table"])
    methods = choice.get("methods")
    check_names("method of the paper", methods, rows["method"])
    limit = choice.get("limit")
    if limit is not None and limit < 1:
        raise OtptError(f"The limit is {limit}; expected 1 or more.")
    if methods is not None:
        return rows[rows["method"].isin(methods)], tables, {}
    left_out = _left_out(paper, rows)
    return rows[~rows["method"].isin(list(left_out))], tables, left_out


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


def _count_images(name: str, data: Path | None, limit: int | None) -> tuple[int | None, str | None]:
    """Return the number of images of a data set, and the reason if it is missing."""
    entry = find_entry(name)
    images = None if entry is None else entry.test_images
    missing: str | None = "no --data was given"
    if data is not None or name.startswith("emoji/"):
        try:
            images, missing = len(_open_dataset(name, data)), None
        except OtptError as error:
            missing = str(error)
    return (images if images is None or limit is None else min(images, limit)), missing


def _left_out(paper: Paper, rows: pd.DataFrame) -> dict[str, str]:
    """Return the methods of the paper that this package cannot run, with the reason."""
    left_out = {}
    for name in dict.fromkeys(rows.loc[rows["layout"].isin(list(_GROUP_OF)), "method"]):
        reasons = [paper.not_implemented[part] for part in (name, *name.split("+")) if part in paper.not_implemented]
        try:
            get_method(name)
        except OtptError as error:
            reasons.append(str(error).partition(". ")[0].rstrip("."))
        if reasons:
            left_out[name] = reasons[0]
    return left_out


def _left(run: PlannedRun) -> int | None:
    """Return the number of images that a run has yet to predict, over all seeds."""
    if run.images is None:
        return None
    whole = run.images * len(run.seeds)
    if not (run.folder / CONFIG).is_file():
        return whole
    opened = Run(run.folder)
    present = {(method, seed) for _, seed, (_, method) in opened.everything()}
    if not present.issuperset((method, seed) for method in run.methods for seed in run.seeds):
        return whole
    done, total = opened.progress()
    return total - done
