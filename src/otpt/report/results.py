"""Run folders as results: a DataFrame of metrics and per-image rows. No model is needed.

>>> results = open_results([Path("runs/dtd"), Path("runs/pets")])                  # doctest: +SKIP
>>> results.frame.pivot_table("ece", "method", "dataset")                          # doctest: +SKIP
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from otpt.data.dataset import is_own
from otpt.errors import OtptError, unknown
from otpt.metrics.inputs import check_bins
from otpt.runs import CONFIG, DatasetConfig, Rows, Run, read_rows, results_frame
from otpt.runs.config import differences

LEVEL = 0.95
"""Default confidence level of intervals."""
FEW = 500
"""Number of images below which most of an ECE may be bias."""
MAX_BINS = 100

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
        datasets, seeds, methods, prompts: in order of first appearance.
        model: name of the backbone.
        rows: function from a :class:`ResultKey` to the readable images that were predicted so far.
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
        frame = results_frame(runs, n_bins=n_bins, side=side)
        for name, chosen in (("seed", seeds), ("method", methods)):
            frame = frame if chosen is None else frame[frame[name].isin(list(chosen))]
        frame = frame.reset_index(drop=True)
        frame["partial"] = frame["images"] + frame["unreadable"] < frame["planned"]
        self.frame = frame
        self._keys = {name: frame[name].to_numpy(object) for name in ResultKey._fields}
        self.datasets: list[str] = _unique(frame, "dataset")
        self.seeds: list[int] = _unique(frame, "seed")
        self.methods: list[str] = _unique(frame, "method")
        self.prompts: list[str] = _unique(frame, "prompt")
        self.model = str(runs[0].config.backbone.name)
        self.rows = lru_cache(maxsize=_CACHED)(self._read_rows)

    def __repr__(self) -> str:
        names = ", ".join(repr(str(run.folder)) for run in self.runs)
        return f"Results({names}: {len(self.datasets)} data sets, {len(self.methods)} methods, {len(self.seeds)} seeds)"

    def select(self, **keys: Any) -> pd.DataFrame:
        """Rows of the frame with these values; None selects all: ``select(dataset="dtd", method=None)``."""
        chosen = np.ones(len(self.frame), dtype=bool)
        for name, value in keys.items():
            if value is not None:
                chosen &= self._keys[name] == value
        return self.frame[chosen]

    def prompts_of(self, dataset: str, method: str | None = None) -> list[str]:
        """Prompts of one data set, or of a method there: one that starts from a learned prompt has its own."""
        return _unique(self.select(dataset=dataset, method=method), "prompt")

    def keys_of(self, dataset: str, method: str, prompt: str) -> list[ResultKey]:
        """A key per seed; methods of a run that has grown may have different ones."""
        found = self.select(dataset=dataset, method=method, prompt=prompt)
        return [ResultKey(dataset, seed, prompt, method) for seed in _unique(found, "seed")]

    def images_of(self, dataset: str, method: str | None = None) -> int:
        """Number of images requested of a data set, for one method or at most."""
        return int(self.select(dataset=dataset, method=method)["planned"].max())

    def configs_of(self, dataset: str) -> list[DatasetConfig]:
        """Configurations of a data set in the runs that have it: its classes, family, fingerprint, columns."""
        return [each for run in self.runs for each in run.datasets if each.base_name == dataset]

    def config_of(self, dataset: str) -> DatasetConfig:
        """The first configuration of a data set."""
        return self.configs_of(dataset)[0]

    def is_own(self, dataset: str) -> bool:
        """Whether the data set is user-supplied; runs without a recorded source count as registered."""
        return any(is_own(each.source) for each in self.configs_of(dataset))

    def score(self, key: ResultKey) -> Any:
        """The row of the frame, a Series; None if there is none, or not a single image of it was read."""
        found = self.select(**key._asdict())
        return None if found.empty or not found["images"].iloc[0] else found.iloc[0]

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
    runs = _open_runs(folders)
    given = {name for name, value in (("bins", n_bins), ("side", side)) if value is not None}
    for first, second in combinations(runs, 2):
        for reason in _conflicts(first, second, seeds, given, one_backbone):
            raise OtptError(f"The runs {str(first.folder)!r} and {str(second.folder)!r} cannot be compared: {reason}.")
    check_names("seed of the runs", map(str, seeds or ()), [str(seed) for run in runs for seed in run.seeds])
    check_names("method of the runs", methods, _methods_of(runs))
    scoring = runs[0].config.scoring
    n_bins, side = scoring.bins if n_bins is None else n_bins, side or scoring.side
    check_bins(n_bins, side, most=MAX_BINS)
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
    runs = _open_runs(folders)
    for first, second in combinations(runs, 2):
        for reason in _image_conflicts(first, second, seeds):
            both = f"{str(first.folder)!r} and {str(second.folder)!r}"
            raise OtptError(f"The runs {both} cannot be shown side by side: {reason}.")
    check_names("method of the runs", methods, _methods_of(runs))
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.config.backbone.fingerprint, []).append(run)
    if len(groups) > 1:  # numbers side by side need the same bins
        scoring = runs[0].config.scoring
        n_bins, side = scoring.bins if n_bins is None else n_bins, side or scoring.side
    names = [str(own[0].config.backbone.name) for own in groups.values()]
    found = {}
    for name, (fingerprint, own) in zip(names, groups.items(), strict=True):
        known = [method for method in methods or () if method in _methods_of(own)] or methods
        title = name if names.count(name) == 1 else f"{name} ({fingerprint[:8]})"
        found[title] = open_results([run.folder for run in own], n_bins=n_bins, side=side, seeds=seeds, methods=known)
    return found


def check_names(kind: str, names: Iterable[str] | None, known: Collection[str]) -> None:
    """:class:`OtptError` for the first of the names that is unknown."""
    for name in names or ():
        if name not in known:
            raise unknown(kind, name, dict.fromkeys(known))


def _open_runs(folders: Sequence[Path]) -> list[Run]:
    if isinstance(folders, (str, Path)):
        raise OtptError(f"The run folders are the single path {str(folders)!r}; expected a list of paths.")
    if not folders:
        raise OtptError("No run was given; expected at least one run folder.")
    for folder in folders:
        if not os.path.isfile(Path(folder) / CONFIG):
            raise OtptError(f"There is no run in {str(folder)!r} ({CONFIG} is missing); check the path.")
    return [Run(folder) for folder in folders]


def _methods_of(runs: Sequence[Run]) -> list[str]:
    """Methods that the runs hold, finished or not."""
    return list(dict.fromkeys(method for run in runs for _, _, (_, method) in run.everything()))


def _unique(frame: pd.DataFrame, name: str) -> list[Any]:
    return list(frame[name].drop_duplicates().tolist())


def _shared(first: Run, second: Run) -> list[tuple[DatasetConfig, DatasetConfig]]:
    """Data sets that both runs have, as each of them configures it."""
    ours = {dataset.name: dataset for dataset in first.datasets}
    return [(ours[dataset.name], dataset) for dataset in second.datasets if dataset.name in ours]


def _image_conflicts(first: Run, second: Run, seeds: Sequence[int] | None) -> Iterator[str]:
    """Why the images of a data set that two runs have are not the same; None for all seeds."""
    for both in _shared(first, second):
        name = both[0].name
        if both[0].fingerprint != both[1].fingerprint:
            yield f"they saw different images or classes under the name {name!r}"
        counts = [
            {n for column in each.columns for seed, n in column.images.items() if seeds is None or seed in seeds}
            for each in both
        ]
        if all(counts) and counts[0] != counts[1]:
            words = " and ".join("/".join(map(str, sorted(each))) for each in counts)
            yield f"they saw different numbers of images of {name!r}, {words}"


def _conflicts(
    first: Run, second: Run, seeds: Sequence[int] | None, given: Collection[str], one_backbone: bool
) -> Iterator[str]:
    """Why two runs cannot be in one table; ``given`` of "bins" and "side" replace the runs' own."""
    yield from _image_conflicts(first, second, seeds)
    a, b, shared = first.config, second.config, _shared(first, second)
    together = one_backbone or shared
    if together and a.backbone.fingerprint != b.backbone.fingerprint:
        yield f"their models differ, {a.backbone.name!r} and {b.backbone.name!r}"
    for dataset, other in shared:
        for left, right in product(dataset.columns, other.columns):
            same_prompt = left.prompt["name"] == right.prompt["name"]
            common = {s for s in left.images if s in right.images and (seeds is None or s in seeds)}
            if common and left.key == right.key:
                where = f"{dataset.name!r} with the prompt {left.prompt['name']!r}"
                yield f"both hold {left.method!r} on {where}; leave one of them out"
            if same_prompt and left.prompt.get("fingerprint") != right.prompt.get("fingerprint"):
                yield f"they start from different learned prompts of {left.prompt['name']!r} on {dataset.name!r}"
            one, two = a.methods[left.method], b.methods[right.method]
            same_recipe = all(one.get(key) == two.get(key) for key in ("views", "augmix"))
            if same_recipe and one.get("objectives") and two.get("objectives") and left.views != right.views:
                yield f"their views of {dataset.name!r} differ, {left.views!r} and {right.views!r}"
    chosen = [[seed for seed in run.seeds if seeds is None or seed in seeds] for run in (first, second)]
    if together and set(chosen[0]) != set(chosen[1]):
        words = " and ".join(", ".join(map(str, each)) or "none" for each in chosen)
        yield f"their seeds differ, {words}; choose common ones with --seeds"
    for name in ("bins", "side"):
        if a.scoring[name] != b.scoring[name] and name not in given:
            yield f"their {name} differ, {a.scoring[name]} and {b.scoring[name]}; choose with --{name}"
    if a.numbers.get("official_precision") != b.numbers.get("official_precision"):
        yield "one rounds to float16 as the official scripts do (--official-precision), the other does not"
    for name, method in b.methods.items():
        if name in a.methods and (found := differences(a.methods[name], method, name)):
            yield f"they mean different things by {name!r}: {found[0]}"
