"""Run folders as results: a DataFrame of metrics and per-image rows. No model is needed.

>>> results = open_results([Path("runs/dtd"), Path("runs/pets")])                  # doctest: +SKIP
>>> results.frame.pivot_table("ece", "method", "dataset")                          # doctest: +SKIP
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from otpt.data.dataset import is_own
from otpt.errors import OtptError, unknown
from otpt.metrics.inputs import check_bins
from otpt.report.comparable import check_comparable, image_differences
from otpt.runs import CONFIG, ColumnConfig, DatasetConfig, Rows, Run, read_rows, results_frame

LEVEL = 0.95
"""Default confidence level of intervals."""
FEW = 500
"""Number of images below which most of an ECE may be bias."""

_CACHED = 16
"""Columns whose rows stay in memory, since several metrics need the same ones."""


class ResultKey(NamedTuple):
    """What a row of the frame and its images belong to."""

    dataset: str
    seed: int
    prompt: str
    method: str


class Results:
    """Several runs of one model; see :func:`open_results`.

    Attributes:
        runs: the opened run folders.
        n_bins, side: of the calibration errors.
        frame: a row per data set, seed, prompt and method with metric columns (:func:`otpt.runs.results_frame`), and
            ``partial``: images are still to be predicted.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        *,
        n_bins: int,
        side: str,
        seeds: Sequence[int] | None = None,
        methods: Sequence[str] | None = None,
    ) -> None:
        self.runs, self.n_bins, self.side = tuple(runs), n_bins, side
        self._seeds, self._methods = seeds, methods
        self._read = lru_cache(maxsize=_CACHED)(self._read_rows)

    @cached_property
    def frame(self) -> pd.DataFrame:
        frame = results_frame(self.runs, n_bins=self.n_bins, side=self.side)
        if self._seeds is not None:
            frame = frame[frame["seed"].isin(list(self._seeds))]
        if self._methods is not None:
            frame = frame[frame["method"].isin(list(self._methods))]
        frame = frame.reset_index(drop=True)
        frame["partial"] = frame["images"] + frame["unreadable"] < frame["planned"]
        return frame

    def __repr__(self) -> str:
        names = ", ".join(repr(str(run.folder)) for run in self.runs)
        return f"Results({names}: {len(self.datasets)} data sets, {len(self.methods)} methods, {len(self.seeds)} seeds)"

    @property
    def model(self) -> str:
        """Name of the backbone."""
        return str(self.runs[0].config["backbone"]["name"])

    @property
    def datasets(self) -> list[str]:
        """Data sets in order of first appearance, as are the following."""
        return _unique(self.frame, "dataset")

    @property
    def seeds(self) -> list[int]:
        """Seeds of the views."""
        return _unique(self.frame, "seed")

    @property
    def methods(self) -> list[str]:
        """Methods."""
        return _unique(self.frame, "method")

    @property
    def prompts(self) -> list[str]:
        """Prompts of all data sets."""
        return _unique(self.frame, "prompt")

    def select(self, **keys: Any) -> pd.DataFrame:
        """Rows of the frame with these values; None selects all: ``select(dataset="dtd", method=None)``."""
        chosen = np.ones(len(self.frame), dtype=bool)
        for name, value in keys.items():
            if value is not None:
                chosen &= self._columns[name] == value
        return self.frame[chosen]

    @cached_property
    def _columns(self) -> dict[str, Any]:
        return {name: self.frame[name].to_numpy(object) for name in ("dataset", "seed", "prompt", "method")}

    def prompts_of(self, dataset: str, method: str | None = None) -> list[str]:
        """Prompts of one data set, or of a method there: one that starts from a learned prompt has its own."""
        return _unique(self.select(dataset=dataset, method=method), "prompt")

    def seeds_of(self, dataset: str, method: str | None = None, prompt: str | None = None) -> list[int]:
        """Seeds of one data set, or of a method or prompt there; a run that has grown may have several for some."""
        return _unique(self.select(dataset=dataset, method=method, prompt=prompt), "seed")

    def images_of(self, dataset: str, method: str | None = None) -> int:
        """Number of images requested of a data set, for one method or at most."""
        return int(self.select(dataset=dataset, method=method)["planned"].max())

    def config_of(self, dataset: str) -> DatasetConfig:
        """Configuration of a data set: its classes, family, fingerprint."""
        return next(each for run in self.runs for each in run.datasets if each.base_name == dataset)

    def columns_of(self, dataset: str) -> Iterator[ColumnConfig]:
        """Configurations of a data set's columns: method, prompt, views, images by seed."""
        for run in self.runs:
            for each in run.datasets:
                if each.base_name == dataset:
                    yield from each["columns"]

    def is_own(self, dataset: str) -> bool:
        """Whether the data set is user-supplied; runs without a recorded source count as registered."""
        return any(
            is_own(each.get("source")) for run in self.runs for each in run.datasets if each.base_name == dataset
        )

    def score(self, key: ResultKey) -> Any:
        """The row of the frame, a Series; None if there is none, or not a single image of it was read."""
        found = self.select(**key._asdict())
        return None if found.empty or not found["images"].iloc[0] else found.iloc[0]

    def rows(self, key: ResultKey) -> Rows:
        """Readable images that were predicted so far."""
        return self._read(key)

    def _read_rows(self, key: ResultKey) -> Rows:
        found = self.select(**key._asdict())
        if found.empty:
            raise OtptError(
                f"The runs hold no {key.method!r} on {key.dataset!r} with seed {key.seed} and the prompt "
                f"{key.prompt!r}."
            )
        run = next(run for run in self.runs if str(run.folder) == found["run"].iloc[0])
        variant = found["variant"].iloc[0]
        name = f"{key.dataset}@{variant}" if variant else key.dataset
        rows = read_rows(run, name, key.seed, (key.prompt, key.method))
        if rows is None or not len(rows):
            raise OtptError(
                f"No image of {key.dataset!r} has been predicted by {key.method!r} with seed {key.seed} yet, or none "
                "could be read."
            )
        return rows

    @cached_property
    def progress(self) -> list[tuple[Run, int, int]]:
        """Runs in progress, each with the number of images done and in all."""
        found = [(run, *run.progress()) for run in self.runs]
        return [(run, done, total) for run, done, total in found if done < total]

    @property
    def partial(self) -> bool:
        """Whether a run is still in progress."""
        return bool(self.progress)


def open_results(
    folders: Sequence[Path],
    *,
    n_bins: int | None = None,
    side: str | None = None,
    seeds: Sequence[int] | None = None,
    methods: Sequence[str] | None = None,
    one_backbone: bool = True,
) -> Results:
    """Open the runs in ``folders``; :class:`OtptError` if one does not exist or they cannot be compared.

    Args:
        n_bins, side: of the calibration errors, in place of the runs' own, which must otherwise agree.
        seeds, methods: only these.
        one_backbone: all runs must be of the same model and have the same seeds; else only those of the same data set.
    """
    runs = open_runs(folders)
    given = [name for name, value in (("bins", n_bins), ("side", side)) if value is not None]
    check_comparable(runs, seeds=seeds, given=given, one_backbone=one_backbone)
    _check_selection(runs, seeds=seeds, methods=methods)
    scoring = runs[0].config["scoring"]
    n_bins, side = scoring["bins"] if n_bins is None else n_bins, side or scoring["side"]
    check_bins(n_bins, side, most=100)
    return Results(runs, n_bins=n_bins, side=side, seeds=seeds, methods=methods)


def open_models(
    folders: Sequence[Path],
    *,
    n_bins: int | None = None,
    side: str | None = None,
    seeds: Sequence[int] | None = None,
    methods: Sequence[str] | None = None,
) -> dict[str, Results]:
    """Open runs of several models, by the name of their model in order of first appearance.

    All models must have seen the same images of a data set. Models of one name but different weights get the first
    letters of their fingerprints.
    """
    runs = open_runs(folders)
    for first, second in combinations(runs, 2):
        for reason in image_differences(first, second, seeds):
            both = f"{str(first.folder)!r} and {str(second.folder)!r}"
            raise OtptError(f"The runs {both} cannot be shown side by side: {reason}.")
    _check_selection(runs, seeds=None, methods=methods)
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.config["backbone"]["fingerprint"], []).append(run)
    if len(groups) > 1:  # numbers side by side need the same bins
        scoring = runs[0].config["scoring"]
        n_bins, side = scoring["bins"] if n_bins is None else n_bins, side or scoring["side"]
    names = {key: str(own[0].config["backbone"]["name"]) for key, own in groups.items()}
    found = {}
    for key, own in groups.items():
        known = [name for name in methods or () if name in methods_of(own)] or methods
        title = names[key] if list(names.values()).count(names[key]) == 1 else f"{names[key]} ({key[:8]})"
        found[title] = open_results([run.folder for run in own], n_bins=n_bins, side=side, seeds=seeds, methods=known)
    return found


def open_runs(folders: Sequence[Path]) -> list[Run]:
    """Open the runs in ``folders``, at least one; :class:`OtptError` if one does not exist."""
    if isinstance(folders, (str, Path)):
        raise OtptError(f"The run folders are the single path {str(folders)!r}; expected a list of paths.")
    if not folders:
        raise OtptError("No run was given; expected at least one run folder.")
    for folder in folders:
        if not os.path.isfile(Path(folder) / CONFIG):
            raise OtptError(f"There is no run in {str(folder)!r} ({CONFIG} is missing); check the path.")
    return [Run(folder) for folder in folders]


def methods_of(runs: Sequence[Run]) -> list[str]:
    """Methods that the runs hold, finished or not."""
    return list(dict.fromkeys(method for run in runs for _, _, (_, method) in run.everything()))


def check_names(kind: str, names: Iterable[str] | None, known: Collection[str]) -> None:
    """:class:`OtptError` for the first of the names that is unknown."""
    for name in names or ():
        if name not in known:
            raise unknown(kind, name, known)


def _unique(frame: pd.DataFrame, name: str) -> list[Any]:
    return list(frame[name].drop_duplicates().tolist())


def _check_selection(runs: Sequence[Run], *, seeds: Sequence[int] | None, methods: Sequence[str] | None) -> None:
    held = list(dict.fromkeys(str(seed) for run in runs for seed in run.seeds))
    check_names("seed of the runs", map(str, seeds or ()), held)
    check_names("method of the runs", methods, methods_of(runs))
