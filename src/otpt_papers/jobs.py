"""Commands of a plan. What is printed and what ``otpt reproduce --go`` runs are the same words."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from otpt.data import Dataset, find_entry, load_dataset
from otpt.errors import OtptError
from otpt.runs import Run
from otpt.runs.config import CONFIG


@dataclass
class Job:
    """A command that computes a run folder or a file.

    Attributes:
        backbone: the paper's name of the model, or "bench".
        model: specification of the model.
        group: name of the group of runs.
        command: the command, such as ("evaluate",).
        datasets: names of the data sets.
        methods: names of the methods.
        options: words after the data sets.
        makes: the run folder or the file.
        data: folder with the data sets.
        seeds: seeds of the views.
        limit: largest number of images of each set.
        split: split of the data sets.
        columns: names of the methods in the run, if they are not ``methods``.
        missing: why a data set cannot be used, by name.
        needs: what must be given before the command can run; "" if nothing.
        images: number of images of each data set; None if unknown.
        error: why the command failed; "" if it did not.
        seconds: estimated time for what is left; None if unknown.
    """

    backbone: str
    model: str
    group: str
    command: tuple[str, ...]
    datasets: tuple[str, ...]
    methods: tuple[str, ...]
    options: tuple[str, ...]
    makes: Path
    data: Path | None = None
    seeds: tuple[int, ...] = (0,)
    limit: int | None = None
    split: str = "test"
    columns: tuple[str, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    needs: str = ""
    images: dict[str, int | None] = field(default_factory=dict)
    error: str = ""
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in self.datasets:
            self.images[name], reason = _count_images(name, self.data, self.limit, self.split)
            if reason is not None:
                self.missing[name] = reason

    @property
    def is_run(self) -> bool:
        """Whether it makes a run folder."""
        return not self.makes.suffix

    @property
    def present(self) -> tuple[str, ...]:
        """Data sets that can be used."""
        return tuple(name for name in self.datasets if name not in self.missing)

    @property
    def words(self) -> tuple[str, ...]:
        """Words of the command, for the data sets that are present, or for all if none is."""
        names = self.present or self.datasets
        swapped = any(entry is not None and entry.official_swap is not None for entry in map(find_entry, names))
        official = ("--official-names",) if swapped and self.command[0] != "train" else ()
        return (*self.command, *names, *official, *self.options)

    @property
    def line(self) -> str:
        """The command in the syntax of a shell."""
        return shlex.join(("otpt", *self.words))

    @property
    def can_run(self) -> bool:
        """Whether nothing that it needs is missing."""
        return bool(self.present) and not self.needs

    @property
    def left(self) -> int | None:
        """Number of images of present data sets that are still to be predicted, over all seeds; None if unknown."""
        if not self.is_run:
            return None
        counts = [_left(self, name) for name in self.present or self.datasets]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    @property
    def is_done(self) -> bool:
        """Whether its file exists, or its run is finished on all data sets that are present."""
        if not self.is_run:
            return self.makes.is_file()
        return bool(self.present) and self.left == 0

    def obstacles(self) -> Iterator[str]:
        """Yield what keeps it from being complete, in sentences."""
        if self.needs:
            yield f"{self.needs}."
            return
        if self.missing and self.data is None:
            yield "no folder of data sets was given: add --data DATA, and fill it with 'otpt datasets get'."
            return
        for name, reason in self.missing.items():
            hint = f"'otpt datasets get {name} --data {self.data}' fetches it, or says how"
            yield f"{name}: {reason.rstrip('.')}. {hint}."
        if self.error:
            yield f"'otpt {' '.join(self.command)}' failed: {self.error}"
        elif self.present and not self.is_done:
            yield f"not run yet: {self.line}"


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of a paper, the jobs that it is made of, and the commands that make it.

    Attributes:
        kind: "table" or "figure".
        number: its number or name in the paper.
        title: what it shows.
        backbone: the paper's name of the model, or "bench".
        jobs: the jobs that it is made of.
        words: words of the command that makes it, without run folders, selection and output.
        runs: run folders that it is made from.
        datasets: data sets that it shows.
        methods: methods that it shows, by their names in the runs.
        select: whether the command names data sets and methods.
        remarks: own readings and contradictions of the paper.
        suffixes: formats of the files.
        stem: path of the files without a suffix.
    """

    kind: str
    number: str
    title: str
    backbone: str
    jobs: tuple[Job, ...]
    words: tuple[str, ...]
    runs: tuple[Path, ...]
    datasets: tuple[str, ...]
    methods: tuple[str, ...]
    select: bool
    remarks: tuple[str, ...]
    suffixes: tuple[str, ...]
    stem: Path

    @property
    def name(self) -> str:
        """Its kind and number, such as "Table 4"."""
        return f"{self.kind.capitalize()} {self.number}"

    def commands(self) -> list[tuple[str, ...]]:
        """Return the words of the commands that make its files, with what its runs hold now."""
        runs = [run for run in self.runs if (run / CONFIG).is_file()]
        datasets, methods = _stored(runs)
        first = 1 if self.kind == "table" else 2  # "table", or "plot KIND", before the runs
        words = [*self.words[:first], *map(str, runs or self.runs), *self.words[first:]]
        if self.select:
            words += ["--datasets", *(name for name in self.datasets if name in datasets or not runs)]
            names = [name for name in self.methods if name in methods or not runs]
            words += ["--methods", *names] if names else []
        return [(*words, "--out", f"{self.stem}{suffix}") for suffix in self.suffixes]

    def absent_methods(self) -> list[str]:
        """Return the methods that no run of it holds."""
        methods = _stored([run for run in self.runs if (run / CONFIG).is_file()])[1]
        return [name for name in self.methods if name not in methods]

    def obstacles(self) -> list[str]:
        """Return what keeps it from being complete, in sentences."""
        return list(dict.fromkeys(sentence for job in self.jobs for sentence in job.obstacles()))


def _stored(runs: Sequence[Path]) -> tuple[set[str], set[str]]:
    """Return the data sets and methods that runs hold; a damaged one is named by the command that reads it."""
    opened: list[Run] = []
    for folder in runs:
        with suppress(OtptError):
            opened.append(Run(folder))
    datasets = {dataset.base_name for run in opened for dataset in run.datasets}
    return datasets, {method for run in opened for method in run.config.methods}


@lru_cache(maxsize=64)
def open_dataset(name: str, data: Path | None, split: str = "test") -> Dataset:
    """Open a data set as ``otpt evaluate`` does."""
    return load_dataset(name, root=data, official_names=True, split=split)


def _count_images(name: str, data: Path | None, limit: int | None, split: str) -> tuple[int | None, str | None]:
    """Return the number of images of a data set, and the reason if it is missing."""
    entry = find_entry(name)
    images = None if entry is None or split != "test" else entry.test_images
    missing: str | None = "no --data was given"
    if data is not None or name.startswith("emoji/"):
        try:
            images, missing = len(open_dataset(name, data, split)), None
        except OtptError as error:
            missing = str(error)
    return (images if images is None or limit is None else min(images, limit)), missing


def _left(job: Job, dataset: str) -> int | None:
    """Return the number of images of a data set that a run has yet to predict, over all seeds."""
    images = job.images[dataset]
    if images is None:
        return None
    whole = images * len(job.seeds)
    if not (job.makes / CONFIG).is_file():
        return whole
    try:
        run = Run(job.makes)
    except OtptError:  # a damaged configuration, which the command names
        return whole
    configs = [config for config in run.datasets if config.base_name.partition(":")[0] == dataset]
    stored = {
        (column.method, seed)
        for config in configs
        for column in config.columns
        for seed, count in column.images.items()
        if count >= images
    }
    wanted = {(method, seed) for method in job.columns or job.methods for seed in job.seeds}
    if not configs or not wanted <= stored:
        return whole
    done, total = run.progress(configs)
    return total - done
