"""A paper's tables as a plan: which runs they need, on which data, and how long that takes.

Every data set has a run folder of its own, OUT/BACKBONE/GROUP/DATASET, which several tables share and which stays the
same when more data sets are found later. Where none of the paper's data sets is present, the plan is the same one on
the emoji bench with the embedded model: it shows that everything works, and says nothing about the paper's numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from otpt.costs import plan_dataset, read_architecture, texts_of
from otpt.data import Dataset, load_dataset
from otpt.data.emoji.sets import GROUPS, SHIFTS
from otpt.errors import OtptError, unknown
from otpt.methods import get_methods
from otpt.report.names import check_names
from otpt.report.papers.paper import BACKBONES, PaperTable, paper_tables
from otpt.report.papers.plans import Conditions, Plan, PlannedRun, PlannedTable
from otpt.report.papers.published import Paper, get_paper
from otpt.report.papers.rates import Rates
from otpt.runs import Run
from otpt.runs.run import CONFIG

STUDIES = ("paper", "cots")
"""What can be reproduced: the O-TPT paper, and papers of :data:`otpt.report.papers.published.PAPERS`."""

MODELS = {"ViT-B/16": "ViT-B-16/openai", "RN50": "RN50/openai"}
BENCH_MODEL = "pocket"
SEEDS = (0, 1, 2)
"""For Table 5; the paper does not name its own."""

_GROUP_OF = {
    "groups": "main",
    "main": "main",
    "sce": "main",
    "householder": "main",
    "combination": "main",
    "shifts": "shifts",
    "prompts": "prompts",
    "seeds": "seeds",
}
"""Layouts whose tables are made of the same runs."""

_NEEDS = {
    "coop": "CoOp's checkpoint: 'otpt evaluate --methods coop+tpt coop+c-tpt coop+o-tpt --context FILE'",
    "maple": "MaPLe's checkpoint: 'otpt evaluate --methods maple+tpt maple+o-tpt --context FILE'",
    "medical": "medical data and models: 'otpt train baple' and 'otpt train fpt', then 'otpt evaluate --methods baple "
    "baple+o-tpt --trained FILE …'; 'otpt evaluate --methods promptsmooth promptsmooth+o-tpt'",
}
_COTS_NEEDS = {
    "coop": "CoOp's checkpoint: 'otpt evaluate --methods coop+tpt coop+tpt+cots coop+o-tpt … --context FILE'",
    "siglip": "SigLIP's weights, of a size that is not known here: 'otpt evaluate --backbone NAME/TAG --methods …'",
}
_LEFT_OUT = "left out by --datasets"
_BENCH_SETS = tuple(f"emoji/{name}" for name in GROUPS)
_BENCH_SHIFTS = tuple(f"emoji/{name}" for name in SHIFTS)
_BENCH_COUNTS = {"groups": 1, "combination": 3, "seeds": 5}


@dataclass(frozen=True)
class Study:
    """What is reproduced.

    Attributes:
        tables: of the paper.
        seeds: of all runs; None takes one, and three for tables over seeds.
        augmix: whether views are mixed, by group of runs; those without keep the data set's and the methods' choice.
        needs: by layout, what must be brought before its tables can be made.
    """

    tables: tuple[PaperTable, ...]
    needs: Mapping[str, str]
    seeds: tuple[int, ...] | None = None
    augmix: Mapping[str, bool] = field(default_factory=dict)


def get_study(name: str) -> Study:
    """A study by name, one of :data:`STUDIES`."""
    check_names("paper to reproduce", [name], STUDIES)
    if name == "paper":
        return Study(paper_tables(), _NEEDS)
    paper = get_paper(name)
    tables = [_without(table, paper) for table in paper.tables if table.layout in {*_GROUP_OF, *_COTS_NEEDS}]
    augmix = {"shifts": mixed} if (mixed := paper.protocol.augmix["shift"]) is not None else {}
    return Study(tuple(tables), _COTS_NEEDS, SEEDS[: paper.protocol.seeds], augmix)


def _without(table: PaperTable, paper: Paper) -> PaperTable:
    """The table without methods that this package does not have."""
    return replace(table, rows={name: row for name, row in table.rows.items() if paper.lacks(name) is None})


def make_plan(conditions: Conditions, study: Study | None = None) -> Plan:
    """The plan for what is found under ``conditions.data``, or for the bench if nothing is; of the O-TPT paper, or of
    another study."""
    study = study or get_study("paper")
    check_names("backbone of the paper", conditions.backbones, BACKBONES)
    numbers = [table.number for table in study.tables]
    for number in conditions.tables or ():
        if number not in numbers:
            raise unknown("table of the paper", str(number), map(str, dict.fromkeys(numbers)))
    if conditions.limit is not None and conditions.limit < 1:
        raise OtptError(f"The limit is {conditions.limit}; expected 1 or more.")
    if conditions.data is not None and not conditions.data.expanduser().is_dir():
        raise OtptError(
            f"The data root {str(conditions.data)!r} is not a folder; give the one that holds the data sets."
        )
    tables = _of_methods(study.tables, conditions.methods)
    wanted = [t for t in tables if t.backbone in conditions.backbones or t.backbone not in BACKBONES]
    found = _found(wanted, conditions)
    bench = not any(isinstance(each, _Present) for each in found.values())
    missing = {name: why for name, why in found.items() if isinstance(why, str) and why != _LEFT_OUT}
    if bench:
        wanted = [
            _on_bench(table) for table in wanted if table.backbone != "RN50" or "ViT-B/16" not in conditions.backbones
        ]
        found = _found(wanted, conditions)
    if conditions.datasets is not None and not any(name in found for name in conditions.datasets):
        raise OtptError(f"None of {', '.join(conditions.datasets)} is in the plan; it has {', '.join(found)}.")
    rates = Rates(conditions.out)
    chosen = [table for table in wanted if conditions.tables is None or table.number in conditions.tables]
    planned = tuple(_planned(table, wanted, found, rates, conditions, study) for table in chosen)
    return Plan(bench, planned, missing)


def _of_methods(tables: Sequence[PaperTable], methods: Sequence[str] | None) -> list[PaperTable]:
    """The tables with these methods only; those that have none of them are left out."""
    if methods is None:
        return list(tables)
    check_names("method of the paper", methods, dict.fromkeys(name for table in tables for name in table.methods))
    cut = [replace(each, rows={name: row for name, row in each.rows.items() if name in methods}) for each in tables]
    return [table for table in cut if table.rows]


@dataclass(frozen=True)
class _Present:
    make: Callable[[], Dataset]
    images: int
    classes: tuple[str, ...]
    family: str
    augmix: bool


def _datasets(table: PaperTable) -> tuple[str, ...]:
    """The data sets of a table without their groups of images."""
    return tuple(dict.fromkeys(name.partition(":")[0] for name in table.datasets))


def _found(tables: Sequence[PaperTable], conditions: Conditions) -> dict[str, _Present | str]:
    """Of each data set: how to open it, or why it is not there."""
    names = dict.fromkeys(name for table in tables if table.layout in _GROUP_OF for name in _datasets(table))
    found: dict[str, _Present | str] = {}
    for name in names:
        if conditions.data is None and not name.startswith("emoji/"):
            found[name] = "no --data was given"
        elif conditions.datasets is not None and name not in conditions.datasets:
            found[name] = _LEFT_OUT
        else:
            make = partial(load_dataset, name, root=conditions.data, official_names=True)
            try:
                data = make()
            except OtptError as error:
                found[name] = str(error)
            else:
                images = min(len(data), conditions.limit or len(data))
                found[name] = _Present(make, images, tuple(data.class_names), data.family, data.augmix)
    return found


def _on_bench(table: PaperTable) -> PaperTable:
    """The same table with the bench's data sets."""
    if table.layout not in _GROUP_OF:
        return table
    names = _BENCH_SHIFTS if table.layout == "shifts" else _BENCH_SETS
    return replace(table, datasets=names[: _BENCH_COUNTS.get(table.layout)], backbone="bench")


def _planned(
    table: PaperTable,
    tables: Sequence[PaperTable],
    found: Mapping[str, _Present | str],
    rates: Rates,
    conditions: Conditions,
    study: Study,
) -> PlannedTable:
    planned = PlannedTable(
        table.number,
        table.layout,
        table.backbone,
        table.prompt if table.layout == "prompts" else None,
        table.methods,
        _datasets(table),
        needs=study.needs.get(table.layout),
    )
    if planned.needs is not None:
        return planned
    group = _GROUP_OF[table.layout]
    shared = [each for each in tables if _GROUP_OF.get(each.layout) == group and each.backbone == table.backbone]
    methods = tuple(dict.fromkeys(method for each in shared for method in each.methods))
    prompts = tuple(dict.fromkeys(each.prompt for each in shared)) if group == "prompts" else None
    seeds = tuple(conditions.seeds or ()) or study.seeds or (SEEDS if group == "seeds" else SEEDS[:1])
    augmix = study.augmix.get(group)
    runs = []
    missing: dict[str, str] = {}
    rate = rates.seconds(table.backbone, group, conditions.device)
    for name in planned.datasets:
        data = found[name]
        if isinstance(data, str):
            missing[name] = data
            continue
        folder = conditions.out / table.backbone.replace("/", "-") / group / name.replace("/", "-")
        left = _left(folder, name, methods, prompts, seeds, data.images)
        own = _predicted(table, name, data, methods, prompts, augmix, conditions) if rate is None else rate
        run = PlannedRun(
            folder,
            name,
            group,
            methods,
            prompts,
            seeds,
            data.make,
            data.images,
            left,
            seconds=None if own is None else own * left,
            measured=rate is not None,
            augmix=augmix,
        )
        runs.append(run)
    return replace(planned, runs=tuple(runs), missing=missing)


def _predicted(
    table: PaperTable,
    name: str,
    data: _Present,
    methods: Sequence[str],
    prompts: Sequence[str] | None,
    augmix: bool | None,
    conditions: Conditions,
) -> float | None:
    """Seconds per image by the model of the cost; None without a machine to predict for."""
    if conditions.machine is None:
        return None
    return plan_dataset(
        read_architecture(MODELS.get(table.backbone, BENCH_MODEL)),
        texts_of(data.classes),
        get_methods(list(methods)),
        conditions.machine,
        dataset=name,
        images=data.images,
        views=conditions.views,
        augmix=data.augmix if augmix is None else augmix,
        family=data.family,
        prompts=len(prompts or ("",)),
    ).seconds


def _left(
    folder: Path,
    dataset: str,
    methods: Sequence[str],
    prompts: Sequence[str] | None,
    seeds: Sequence[int],
    images: int,
) -> int:
    """Images that a run has still to predict for a plan, over all seeds; it may have been made for fewer methods."""
    whole = images * len(seeds)
    if not (folder / CONFIG).is_file():
        return whole
    run = Run(folder)
    config = next((each for each in run.datasets if each["name"] == dataset), None)
    if config is None:
        return whole
    own = [column for column in config["columns"] if column["method"] in methods]
    if prompts is not None:
        own = [column for column in own if column["prompt"]["name"] in prompts]
    if len(own) < len(methods) * len(prompts or ("",)):
        return whole
    asked = [{**column, "images": {str(seed): images for seed in seeds}} for column in own]
    missing = [run.missing([{**config, "columns": [column]}]) for column in asked]
    return sum(max(sum(item.images for item in items if item.seed == seed) for items in missing) for seed in seeds)
