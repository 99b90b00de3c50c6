"""Run folders as results: the metrics and rows of every data set, seed, prompt and method. No model is needed.

results = open_results([Path("runs/dtd"), Path("runs/pets")])
for key in results.keys:
    print(key, results.score(key).metrics.ece, results.rows(key).confidences.mean())
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from otpt.data.dataset import is_own
from otpt.errors import OtptError
from otpt.report.comparable import check_comparable
from otpt.report.names import check_names
from otpt.runs import Rows, Run, Score, read_rows, score_run
from otpt.runs.format import check_bins
from otpt.runs.run import CONFIG

_KEPT = 16
"""Keys whose rows are kept in memory, since several metrics ask for the same ones."""

_T = TypeVar("_T")


class ResultKey(NamedTuple):
    """What a score or a set of rows belongs to."""

    dataset: str
    seed: int
    prompt: str
    method: str


class Progress(NamedTuple):
    """How far a run has come: images that are done, and all of them."""

    run: Run
    done: int
    all: int


class Results:
    """Several run folders seen as one; see :func:`open_results`."""

    def __init__(
        self,
        runs: Sequence[Run],
        *,
        bins: int,
        side: str,
        seeds: Sequence[int] | None = None,
        methods: Sequence[str] | None = None,
    ) -> None:
        self.runs = tuple(runs)
        self.bins = bins
        self.side = side
        self._runs: dict[ResultKey, Run] = {}
        for run in self.runs:
            for dataset in (str(each["name"]) for each in run.datasets):
                for seed in run.seeds_of(dataset):
                    if seeds is None or seed in seeds:
                        for prompt, method in run.columns(dataset, seed):
                            if methods is None or method in methods:
                                self._runs[ResultKey(dataset, seed, prompt, method)] = run
        self._rows = lru_cache(maxsize=_KEPT)(_read)

    @property
    def keys(self) -> tuple[ResultKey, ...]:
        """Everything that the runs hold or will hold, in the order of the runs."""
        return tuple(self._runs)

    @property
    def datasets(self) -> tuple[str, ...]:
        """Data sets in order of first appearance, as are the following."""
        return _once(key.dataset for key in self.keys)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the views."""
        return _once(key.seed for key in self.keys)

    def seeds_of(self, dataset: str, method: str | None = None, prompt: str | None = None) -> tuple[int, ...]:
        """Seeds of one data set, or of a method or prompt there; a run that has grown may have several for some."""
        return _once(key.seed for key in self._keys_of(dataset, method) if prompt in {None, key.prompt})

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods."""
        return _once(key.method for key in self.keys)

    @property
    def prompts(self) -> tuple[str, ...]:
        """Prompts, of all data sets."""
        return _once(key.prompt for key in self.keys)

    def prompts_of(self, dataset: str, method: str | None = None) -> tuple[str, ...]:
        """Prompts of one data set, or of a method there: one that starts from a learned prompt has its own."""
        return _once(key.prompt for key in self._keys_of(dataset, method))

    def config_of(self, dataset: str) -> dict[str, Any]:
        """The configuration of a data set: its classes, family, fingerprint."""
        run = next(run for key, run in self._runs.items() if key.dataset == dataset)
        return next(each for each in run.datasets if each["name"] == dataset)

    def is_own(self, dataset: str) -> bool:
        """Whether a data set is the user's own, whatever it is called; a run that does not say so is believed."""
        return any(is_own(each.get("source")) for run in self.runs for each in run.datasets if each["name"] == dataset)

    def images_of(self, dataset: str, method: str | None = None) -> int:
        """How many images of a data set are predicted, by one method or by that with the most."""
        counts = (
            count
            for column in self.columns_of(dataset)
            for seed, count in column["images"].items()
            if int(seed) in self.seeds and method in {None, column["method"]}
        )
        return max(counts, default=0)

    def columns_of(self, dataset: str) -> Iterator[dict[str, Any]]:
        """The configurations of a data set's columns: method, prompt, views, images by seed."""
        for run in self.runs:
            for each in run.datasets:
                if each["name"] == dataset:
                    yield from each["columns"]

    def run_of(self, key: ResultKey) -> Run:
        """The run that holds a key."""
        if key not in self._runs:
            raise OtptError(
                f"The runs hold no {key.method!r} on {key.dataset!r} with seed {key.seed} and the prompt "
                f"{key.prompt!r}."
            )
        return self._runs[key]

    @cached_property
    def _scores(self) -> dict[ResultKey, Score]:
        found = (score for run in self.runs for score in score_run(run, bins=self.bins, side=self.side))
        return {ResultKey(score.dataset, score.seed, score.prompt, score.method): score for score in found}

    def score(self, key: ResultKey) -> Score | None:
        """The metrics, those of ``otpt metrics`` to the bit; None if no run holds the key."""
        return self._scores[key] if key in self._runs else None

    def rows(self, key: ResultKey) -> Rows:
        """The readable images that are there so far."""
        run = self.run_of(key)
        found = self._rows(run, key)
        if found is None:
            raise OtptError(
                f"The run {str(run.folder)!r} has no rows of {key.method!r} on {key.dataset!r} with seed {key.seed} "
                "yet; wait for its first shard."
            )
        return found

    @cached_property
    def _missing(self) -> set[ResultKey]:
        return {
            ResultKey(item.dataset, item.seed, *column)
            for run in self.runs
            for item in run.missing()
            for column in item.columns
        }

    @cached_property
    def partial(self) -> list[Progress]:
        """Runs in progress."""
        found = (Progress(run, *run.progress()) for run in self.runs)
        return [each for each in found if each.done < each.all]

    def is_partial(self, key: ResultKey) -> bool:
        """Whether images of the key are still to be predicted."""
        self.run_of(key)
        return key in self._missing

    def _keys_of(self, dataset: str, method: str | None) -> Iterable[ResultKey]:
        return (key for key in self.keys if key.dataset == dataset and method in {None, key.method})


def open_results(
    folders: Sequence[Path],
    *,
    bins: int | None = None,
    side: str | None = None,
    seeds: Sequence[int] | None = None,
    methods: Sequence[str] | None = None,
    one_backbone: bool = True,
) -> Results:
    """The runs in ``folders``; :class:`OtptError` if one is not there or they cannot be compared.

    Args:
        bins, side: of the calibration errors, in place of the runs' own, which must otherwise agree.
        seeds, methods: only these.
        one_backbone: all runs must be of the same model and have the same seeds; else only those of the same data set.
    """
    runs = open_runs(folders)
    given = [name for name, value in (("bins", bins), ("side", side)) if value is not None]
    check_comparable(runs, seeds=seeds, given=given, one_backbone=one_backbone)
    check_chosen(runs, seeds=seeds, methods=methods)
    scoring = runs[0].config["scoring"]
    bins, side = scoring["bins"] if bins is None else bins, side or scoring["side"]
    check_bins(bins, side)
    return Results(runs, bins=bins, side=side, seeds=seeds, methods=methods)


def open_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs in ``folders``, at least one; :class:`OtptError` if one is not there."""
    if isinstance(folders, (str, Path)):
        raise OtptError(f"The run folders are the single path {str(folders)!r}; expected a list of paths.")
    if not folders:
        raise OtptError("No run was given; expected at least one run folder.")
    for folder in folders:
        if not os.path.isfile(Path(folder) / CONFIG):
            raise OtptError(f"There is no run in {str(folder)!r} ({CONFIG} is missing); check the path.")
    return [Run(folder) for folder in folders]


def check_chosen(runs: Sequence[Run], *, seeds: Sequence[int] | None, methods: Sequence[str] | None) -> None:
    """:class:`OtptError` for a seed or a method that is asked for and that no run has."""
    held = _once(seed for run in runs for seed in run.seeds)
    missing = [seed for seed in seeds or () if seed not in held]
    if missing:
        raise OtptError(f"No run has the seed {missing[0]}; there are {', '.join(map(str, held))}.")
    check_names("method of the runs", methods, methods_of(runs))


def methods_of(runs: Sequence[Run]) -> tuple[str, ...]:
    """The methods that runs hold or will hold."""
    return _once(method for run in runs for _, _, (_, method) in run.everything())


def _read(run: Run, key: ResultKey) -> Rows | None:
    return read_rows(run, key.dataset, key.seed, (key.prompt, key.method))


def _once(values: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(values))
