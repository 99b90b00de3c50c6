"""Run folders as results: a DataFrame of metrics and per-image rows. No model is needed.

>>> results = open_results([Path("runs/dtd"), Path("runs/pets")])                  # doctest: +SKIP
>>> results.frame.pivot_table("ece", "method", "dataset")                          # doctest: +SKIP
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations, starmap
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from otpt.data.dataset import is_own
from otpt.errors import OtptError, unknown
from otpt.report.side_by_side import display_names
from otpt.runs import DatasetConfig, Rows, Run, results_frame, short_table
from otpt.runs.config import differences

LEVEL = 0.95
"""Default confidence level of intervals."""
FEW = 500
"""Number of images below which most of an ECE may be bias."""

_CACHED = 16
"""Columns whose rows stay in memory, since several metrics need the same ones."""


class ResultKey(NamedTuple):
    """Key of a row of the frame and its images; ``variant`` is "" except for methods with several passes."""

    dataset: str
    seed: int
    prompt: str
    method: str
    variant: str = ""


class Results:
    """Runs of one model, all of their numbers or some; see :func:`open_results`.

    Attributes:
        runs: the opened run folders.
        n_bins, side: of the calibration errors.
        frame: a row per data set, variant, seed, prompt and method with metric columns
            (:func:`otpt.runs.results_frame`), and ``partial``: images are still to be predicted.
        datasets, seeds, methods, prompts: of the frame, in order of first appearance.
        model: name of the backbone.
        rows: function from a :class:`ResultKey` to the readable images that were predicted so far.
        whole: the results that these were selected from by :meth:`narrow`, else these.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        frame: pd.DataFrame,
        *,
        n_bins: int,
        side: str,
        stored: Mapping[tuple[str, str], str] | None = None,
    ) -> None:
        self.runs, self.n_bins, self.side = tuple(runs), n_bins, side
        self._stored = dict(stored or {})
        self.model = runs[0].config.backbone.name
        self.whole = self
        self.rows = lru_cache(maxsize=_CACHED)(self._read_rows)
        self._set_frame(frame)

    def _set_frame(self, frame: pd.DataFrame) -> None:
        self.frame = frame.reset_index(drop=True)
        self.datasets: list[str] = frame["dataset"].drop_duplicates().tolist()
        self.seeds: list[int] = frame["seed"].drop_duplicates().tolist()
        self.methods: list[str] = frame["method"].drop_duplicates().tolist()
        self.prompts: list[str] = frame["prompt"].drop_duplicates().tolist()

    def narrow(
        self, frame: pd.DataFrame, datasets: Sequence[str] | None = None, methods: Sequence[str] | None = None
    ) -> Results:
        """Return the results restricted to some rows; data sets and methods keep the given order."""
        results = copy.copy(self)
        results._set_frame(frame)
        results.datasets = list(datasets or (name for name in self.datasets if name in results.datasets))
        results.methods = list(methods or (name for name in self.methods if name in results.methods))
        return results

    def __getstate__(self) -> dict[str, object]:
        """Exclude the cache of rows, which are read again on demand."""
        return {name: value for name, value in vars(self).items() if name != "rows"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, rows=lru_cache(maxsize=_CACHED)(self._read_rows))

    def __repr__(self) -> str:
        names = ", ".join(repr(str(run.folder)) for run in self.runs)
        return f"Results({names}: {len(self.datasets)} data sets, {len(self.methods)} methods, {len(self.seeds)} seeds)"

    def _repr_html_(self) -> str:
        return str(short_table(self.frame).to_html(index=False))

    def select(self, **keys: str | int | None) -> pd.DataFrame:
        """Select rows of the frame with these values; None selects all: ``select(dataset="dtd", method=None)``."""
        frame = self.frame
        for name, value in keys.items():
            if value is not None:
                frame = frame[frame[name] == value]
        return frame

    def prompts_of(self, dataset: str, method: str | None = None) -> list[str]:
        """Return the prompts of a data set, or of one of its methods."""
        prompts: list[str] = self.select(dataset=dataset, method=method)["prompt"].drop_duplicates().tolist()
        return prompts

    def keys_of(self, dataset: str | None = None, method: str | None = None) -> list[ResultKey]:
        """Return the keys of the rows, optionally of one data set and method."""
        frame = self.select(dataset=dataset, method=method)
        return list(starmap(ResultKey, zip(*(frame[name] for name in ResultKey._fields), strict=True)))

    def first_key(self, dataset: str, method: str) -> ResultKey:
        """Return the key under the first seed, or raise :class:`OtptError`."""
        for key in self.keys_of(dataset, method):
            if key.seed == self.seeds[0]:
                return key
        raise OtptError(f"The runs hold no images of {method!r} on {dataset!r} with seed {self.seeds[0]}.")

    def images_of(self, dataset: str, method: str | None = None) -> int:
        """Return the number of requested images of a data set, for one method or the maximum."""
        return int(self.select(dataset=dataset, method=method)["planned"].max())

    def configs_of(self, dataset: str) -> list[DatasetConfig]:
        """Return the configurations of a data set in all runs that contain it."""
        return [config for run in self.runs for config in run.datasets if config.base_name == dataset]

    def is_own(self, dataset: str) -> bool:
        """Return whether the data set is user-supplied; runs without a recorded source count as registered."""
        return any(is_own(config.source) for config in self.configs_of(dataset))

    def score(self, key: ResultKey) -> pd.Series | None:
        """Return the row of the frame as a Series, or None if it has no readable images."""
        frame = self.select(**key._asdict())
        return None if frame.empty or not frame["images"].iloc[0] else frame.iloc[0]

    def require_score(self, key: ResultKey) -> pd.Series:
        """Return the row of the frame as a Series, or raise :class:`OtptError` if it has no readable images."""
        score = self.score(key)
        if score is None:
            raise OtptError(
                f"The runs hold no images of {key.method!r} on {key.dataset!r} with seed {key.seed} and the prompt "
                f"{key.prompt!r}."
            )
        return score

    def _read_rows(self, key: ResultKey) -> Rows:
        score = self.require_score(key)
        run = next(run for run in self.runs if str(run.folder) == score["run"])
        name = f"{key.dataset}@{key.variant}" if key.variant else key.dataset
        method = self._stored.get((str(run.folder), key.method), key.method)
        rows = run.rows(name, key.seed, (key.prompt, method))
        assert rows is not None  # the score counts its images
        return rows

    def definition_of(self, method: str) -> Mapping[str, object]:
        """Return the definition of a method in the configuration of a run."""
        for run in self.runs:
            stored = self._stored.get((str(run.folder), method), method)
            if stored in run.config.methods:
                return run.config.methods[stored]
        raise OtptError(f"The runs have no method {method!r}; they have {', '.join(self.methods)}.")

    @cached_property
    def progress(self) -> list[tuple[Run, int, int]]:
        """Runs in progress, each with the number of images done and in all."""
        progress = [(run, *run.progress()) for run in self.runs]
        return [(run, done, total) for run, done, total in progress if done < total]

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
    overridden = {name for name, value in (("bins", n_bins), ("side", side)) if value is not None}
    for first, second in combinations(runs, 2):
        ours, theirs = _keys(first, seeds), _keys(second, seeds)
        share_a_dataset = not {name for name, _, _ in ours}.isdisjoint(name for name, _, _ in theirs)
        may_differ = overridden if share_a_dataset or one_backbone else overridden | {"models", "seeds"}
        _check_equal(first, second, seeds, may_differ)
    all_seeds = [str(seed) for run in runs for seed in run.seeds]
    check_names("seed of the runs", map(str, seeds) if seeds else None, all_seeds)
    names = display_names(runs)
    check_names("method of the runs", methods, [*_methods_of(runs), *names.values()])
    scoring = runs[0].config.scoring
    n_bins = scoring.n_bins if n_bins is None else n_bins
    side = side or scoring.side
    frame = results_frame(runs, n_bins=n_bins, side=side)
    if seeds is not None:
        frame = frame[frame["seed"].isin(list(seeds))]
    shown = [names[key] for key in zip(frame["run"], frame["method"], strict=True)]
    if methods is not None:  # by the stored names, or those of the table
        wanted = pd.Series(shown, frame.index).isin(list(methods)) | frame["method"].isin(list(methods))
        frame, shown = frame[wanted], [name for name, is_wanted in zip(shown, wanted, strict=True) if is_wanted]
    stored = {(run, name): method for run, method, name in zip(frame["run"], frame["method"], shown, strict=True)}
    # what several runs have computed alike is shown once, from the run with the most images
    frame = frame.assign(method=shown, partial=frame["images"] + frame["unreadable"] < frame["planned"])
    best = frame.sort_values("images", ascending=False, kind="stable").drop_duplicates([*ResultKey._fields])
    return Results(runs, frame.loc[best.index.sort_values()], n_bins=n_bins, side=side, stored=stored)


def _keys(run: Run, seeds: Sequence[int] | None) -> set[tuple[str, int, tuple[str, str]]]:
    """Return data set, seed and column of the rows of a run, optionally of some seeds."""
    return {key for key in run.everything() if not seeds or key[1] in seeds}


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
        _check_equal(first, second, seeds, images_only=True)
    check_names("method of the runs", methods, _methods_of(runs))
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.config.backbone.fingerprint, []).append(run)
    if len(groups) > 1:  # numbers side by side need the same bins
        scoring = runs[0].config.scoring
        n_bins = scoring.n_bins if n_bins is None else n_bins
        side = side or scoring.side
    names = [runs_of_model[0].config.backbone.name for runs_of_model in groups.values()]
    models = {}
    for name, (fingerprint, runs_of_model) in zip(names, groups.items(), strict=True):
        folders = [run.folder for run in runs_of_model]
        of_model = [method for method in methods or () if method in _methods_of(runs_of_model)] or methods
        title = name if names.count(name) == 1 else f"{name} ({fingerprint[:8]})"
        models[title] = open_results(folders, n_bins=n_bins, side=side, seeds=seeds, methods=of_model)
    return models


def check_names(kind: str, names: Iterable[str] | None, known: Iterable[str]) -> list[str]:
    """Return the distinct names, or all known ones if None; raise :class:`OtptError` for unknown or no names."""
    available = list(dict.fromkeys(known))
    if names is None:
        return available
    chosen = list(dict.fromkeys(names))
    for name in chosen:
        if name not in available:
            if kind in ("method", "data set"):
                raise OtptError(f"The runs have no {kind} {name!r}; they have {', '.join(available)}.")
            raise unknown(kind, name, available)
    if not chosen:
        raise OtptError(f"No {kind} was chosen; the runs hold {', '.join(available)}.")
    return chosen


def _open_runs(folders: Sequence[Path]) -> list[Run]:
    if isinstance(folders, (str, Path)):
        raise OtptError(f"The run folders are the path {str(folders)!r}; expected a list of paths.")
    if not folders:
        raise OtptError("No runs were given; expected at least one run folder.")
    runs = [Run(folder) for folder in folders]
    for run in runs:
        if run.multi_label:
            raise OtptError(
                f"The run {str(run.folder)!r} has several labels per image; 'otpt metrics', 'otpt table' and 'otpt "
                "report' read such runs, without others."
            )
    return runs


def _methods_of(runs: Sequence[Run]) -> list[str]:
    """Return all methods of the runs, including unfinished ones."""
    return [method for run in runs for _, _, (_, method) in run.everything()]


@dataclass(frozen=True)
class _Shared:
    """What runs in one table must share, by description; a description that only one of them has is no conflict.

    Attributes:
        images: of data sets, which runs of different models must share, too.
        settings: all others.
    """

    images: Mapping[str, object]
    settings: Mapping[str, object]


def _shared(run: Run, seeds: Sequence[int] | None) -> _Shared:
    config = run.config
    images: dict[str, object] = {}
    settings: dict[str, object] = {
        "models": config.backbone.fingerprint,
        "seeds": sorted(seed for seed in run.seeds if seeds is None or seed in seeds),
        "bins": config.scoring.n_bins,
        "side": config.scoring.side,
    }
    for dataset in run.datasets:
        images[f"images or classes of {dataset.name!r}"] = dataset.fingerprint
        counts: set[int] = set()
        for column in dataset.columns:
            counts.update(count for seed, count in column.images.items() if seeds is None or seed in seeds)
            prompt = f"learned prompts {column.prompt['name']!r} on {dataset.name!r}"
            settings[prompt] = column.prompt.get("fingerprint")
        if counts:
            images[f"numbers of images of {dataset.name!r}"] = sorted(counts)
    return _Shared(images, settings)


def _check_equal(
    first: Run, second: Run, seeds: Sequence[int] | None, may_differ: Collection[str] = (), *, images_only: bool = False
) -> None:
    """Raise for the first fact that differs; ``images_only`` for runs of different models."""
    ours, theirs = _shared(first, seeds), _shared(second, seeds)
    expected = {**ours.images} if images_only else {**ours.images, **ours.settings}
    actual = {**theirs.images, **theirs.settings}
    for key, value in expected.items():
        if key not in actual or key in may_differ or value == actual[key]:
            continue
        if key == "models":
            words = f"{first.config.backbone.name!r} and {second.config.backbone.name!r}"
        elif isinstance(value, Mapping):
            words = "; ".join(differences(value, actual[key]))
        else:
            words = f"{value!r} and {actual[key]!r}"
        hint = f"; choose with --{key}" if key in {"seeds", "bins", "side"} else ""
        raise _conflict(first, second, f"their {key} differ, {words}{hint}")


def _conflict(first: Run, second: Run, reason: str) -> OtptError:
    return OtptError(f"The runs {str(first.folder)!r} and {str(second.folder)!r} cannot be compared: {reason}.")
