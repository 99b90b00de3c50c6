"""What is to be run for a paper's tables, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from otpt.costs import Device
from otpt.data import Dataset
from otpt.report.papers.paper import BACKBONES


@dataclass(frozen=True)
class PlannedRun:
    """One data set in one run folder.

    Attributes:
        make: opens the data set.
        images: of the data set, under each seed.
        left: images that are still to be predicted, over all seeds.
        seconds: estimated for what is left, None if there is no rate.
        measured: the rate was measured here, not predicted by the model of the cost.
        augmix: whether views are mixed, None for the data set's and the methods' own choice.
    """

    folder: Path
    dataset: str
    group: str
    methods: tuple[str, ...]
    prompts: tuple[str, ...] | None
    seeds: tuple[int, ...]
    make: Callable[[], Dataset]
    images: int
    left: int
    seconds: float | None
    measured: bool
    augmix: bool | None = None

    @property
    def state(self) -> str:
        """How far it is."""
        whole = self.images * len(self.seeds)
        return "finished" if self.left == 0 else "to do" if self.left == whole else f"{self.left} to do"


@dataclass(frozen=True)
class PlannedTable:
    """A table of the paper, and the runs that it is made of.

    Attributes:
        number: the paper's, or the name of a table of published numbers.
        datasets: all that the table has; those without a run are in ``missing``, with the reason.
        needs: what must be brought before it can be made at all.
    """

    number: int | str
    layout: str
    backbone: str
    prompt: str | None
    methods: tuple[str, ...]
    datasets: tuple[str, ...]
    runs: tuple[PlannedRun, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    needs: str | None = None


@dataclass(frozen=True)
class Conditions:
    """What a user may change.

    Attributes:
        data: the folder that holds the data sets, None for none.
        out: where the run folders go.
        tables, datasets, methods: only these; None for all.
        seeds: of all runs; None for those of the paper.
        limit: only so many images of each set, a stratified subset.
        device: "cpu", "cuda" …, under which measured rates are kept.
        machine: what times are predicted for, where none was measured; None predicts none.
    """

    data: Path | None = None
    out: Path = Path("runs/paper")
    backbones: Sequence[str] = BACKBONES
    tables: Sequence[int | str] | None = None
    datasets: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    seeds: Sequence[int] | None = None
    limit: int | None = None
    views: int = 64
    device: str = "cpu"
    machine: Device | None = None


@dataclass(frozen=True)
class Plan:
    """All tables.

    Attributes:
        bench: they are made on the emoji bench in place of the paper's data.
        missing: data sets of the paper that are not there, and why.
    """

    bench: bool
    tables: tuple[PlannedTable, ...]
    missing: Mapping[str, str]

    @property
    def runs(self) -> list[PlannedRun]:
        """Each run once, in the order of the tables."""
        return list({run.folder: run for table in self.tables for run in table.runs}.values())


def plan_data(plan: Plan) -> dict[str, Any]:
    """A plan as plain data."""
    return {
        "bench": plan.bench,
        "missing": dict(plan.missing),
        "tables": [
            {
                "table": table.number,
                "layout": table.layout,
                "backbone": table.backbone,
                "methods": list(table.methods),
                "needs": table.needs,
                "missing": dict(table.missing),
                "runs": [
                    {
                        "folder": str(run.folder),
                        "dataset": run.dataset,
                        "images": run.images,
                        "left": run.left,
                        "methods": list(run.methods),
                        "prompts": None if run.prompts is None else list(run.prompts),
                        "seeds": list(run.seeds),
                        "seconds": run.seconds,
                        "measured": run.measured,
                    }
                    for run in table.runs
                ],
            }
            for table in plan.tables
        ],
    }
