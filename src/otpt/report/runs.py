"""Run folders as results: the metrics and rows of every data set, seed, prompt and method. No model is needed.

results = open_results([Path("runs/dtd"), Path("runs/pets")])
for cell in results.cells:
    print(cell, results.score(cell).metrics.ece, results.rows(cell).confidences.mean())
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from otpt.errors import OtptError
from otpt.evaluation import Part, Run, Score, score_run
from otpt.evaluation.format import check_bins
from otpt.evaluation.parts import SUM_UNIT
from otpt.evaluation.run import CONFIG
from otpt.report.comparable import check_comparable
from otpt.report.rows import Floats, Rows, rows_of

__all__ = ["Cell", "Floats", "Progress", "Results", "Rows", "open_results"]

_KEPT = 4
"""Data sets and seeds whose parts are kept in memory, since their prompts and methods are asked for together."""

_T = TypeVar("_T")


class Cell(NamedTuple):
    """What a score or a set of rows belongs to."""

    dataset: str
    seed: int
    prompt: str
    method: str


class Progress(NamedTuple):
    """A run in progress: how many of its parts are done."""

    run: Run
    done: int
    all: int


class Results:
    """Several run folders seen as one; see :func:`open_results`."""

    def __init__(self, runs: Sequence[Run], *, bins: int, side: str, seeds: Sequence[int] | None = None) -> None:
        self.runs = tuple(runs)
        self.bins = bins
        self.side = side
        self._places: dict[Cell, tuple[Run, int, int]] = {}
        for run in self.runs:
            for position, dataset in enumerate(run.datasets):
                for seed in run.config["seeds"]:
                    for k, column in enumerate(run.columns(position)):
                        if seeds is None or seed in seeds:
                            self._places[Cell(dataset["name"], seed, *column)] = (run, position, k)
        self._parts = lru_cache(maxsize=_KEPT)(_read_parts)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Everything that the runs hold or will hold, in the order of the runs."""
        return tuple(self._places)

    @property
    def datasets(self) -> tuple[str, ...]:
        """Data sets in order of first appearance, as are the following."""
        return _once(cell.dataset for cell in self.cells)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the views."""
        return _once(cell.seed for cell in self.cells)

    def seeds_of(self, dataset: str) -> tuple[int, ...]:
        """Seeds of one data set; all have the same but in runs of different models (medical systems)."""
        return _once(cell.seed for cell in self.cells if cell.dataset == dataset)

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods."""
        return _once(cell.method for cell in self.cells)

    @property
    def prompts(self) -> tuple[str, ...]:
        """Prompts, of all data sets."""
        return _once(cell.prompt for cell in self.cells)

    def prompts_of(self, dataset: str, method: str | None = None) -> tuple[str, ...]:
        """Prompts of one data set, or of a method there: one that starts from a learned prompt has its own."""
        own = (cell for cell in self.cells if cell.dataset == dataset and method in {None, cell.method})
        return _once(cell.prompt for cell in own)

    def config_of(self, dataset: str) -> dict[str, Any]:
        """The configuration of a data set: its classes, number of pictures, views, prompts."""
        run, position, _ = next(place for cell, place in self._places.items() if cell.dataset == dataset)
        return run.datasets[position]

    def run_of(self, cell: Cell) -> Run:
        """The run that holds a cell."""
        return self._places[cell][0]

    @cached_property
    def _scores(self) -> dict[Cell, Score]:
        found = (score for run in self.runs for score in score_run(run, bins=self.bins, side=self.side))
        return {Cell(score.dataset, score.seed, score.prompt, score.method): score for score in found}

    def score(self, cell: Cell) -> Score | None:
        """The metrics, those of ``otpt metrics`` to the bit; None if no run holds the cell."""
        return self._scores[cell] if cell in self._places else None

    def rows(self, cell: Cell) -> Rows:
        """The readable pictures that are there so far."""
        run, position, k = self._place(cell)
        parts = self._parts(run, position, cell.seed)
        if not parts:
            raise OtptError(
                f"The run {str(run.folder)!r} has no rows of {cell.dataset!r} with seed {cell.seed} yet; wait for its "
                "first part."
            )
        step = len(run.columns(position))
        table = pa.concat_tables([part.table.take(np.arange(k, part.table.num_rows, step)) for part in parts])
        sums = SUM_UNIT * np.sum([part.class_sums[k] for part in parts], axis=0)
        return rows_of(table.filter(table["error"].is_null()).combine_chunks(), sums)

    @cached_property
    def _missing(self) -> list[tuple[Run, set[tuple[int, int]], int]]:
        """Of each run: the data sets and seeds with parts that are still to be done, and the number of such parts."""
        found = ((run, run.missing()) for run in self.runs)
        return [(run, {(item.dataset, item.seed) for item in items}, len(items)) for run, items in found]

    @property
    def partial(self) -> list[Progress]:
        """Runs in progress."""
        return [Progress(run, len(run.items) - count, len(run.items)) for run, _, count in self._missing if count]

    def is_partial(self, cell: Cell) -> bool:
        """Whether pictures of the cell are still to be judged."""
        run, position, _ = self._place(cell)
        return any(other is run and (position, cell.seed) in unfinished for other, unfinished, _ in self._missing)

    def _place(self, cell: Cell) -> tuple[Run, int, int]:
        if cell not in self._places:
            raise OtptError(
                f"The runs hold no {cell.method!r} on {cell.dataset!r} with seed {cell.seed} and the prompt "
                f"{cell.prompt!r}."
            )
        return self._places[cell]


def open_results(
    folders: Sequence[Path],
    *,
    bins: int | None = None,
    side: str | None = None,
    seeds: Sequence[int] | None = None,
    one_backbone: bool = True,
) -> Results:
    """The runs in ``folders``; :class:`OtptError` if one is not there or they cannot be compared.

    Args:
        bins, side: of the calibration errors, in place of the runs' own, which must otherwise agree.
        seeds: only these.
        one_backbone: all runs must be of the same model and have the same seeds; else only those of the same data set.
    """
    if not folders:
        raise OtptError("No run was given; expected at least one run folder.")
    runs = []
    for folder in folders:
        if not (Path(folder) / CONFIG).is_file():
            raise OtptError(f"There is no run in {str(folder)!r} ({CONFIG} is missing); check the path.")
        runs.append(Run(folder))
    given = [name for name, value in (("bins", bins), ("side", side)) if value is not None]
    check_comparable(runs, seeds=seeds, given=given, one_backbone=one_backbone)
    config = runs[0].config
    if seeds is not None:
        held = _once(seed for run in runs for seed in run.config["seeds"])
        missing = [seed for seed in seeds if seed not in held]
        if missing:
            raise OtptError(f"No run has the seed {missing[0]}; there are {', '.join(map(str, held))}.")
    bins, side = config["bins"] if bins is None else bins, side or config["side"]
    check_bins(bins, side)
    return Results(runs, bins=bins, side=side, seeds=seeds)


def _read_parts(run: Run, position: int, seed: int) -> list[Part]:
    items = (item for item in run.items if (item.dataset, item.seed) == (position, seed))
    return [part for item in items if (part := run.read(item)) is not None]


def _once(values: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(values))
