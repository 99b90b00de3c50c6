"""Plans for reproducing a paper: its tables and figures, the jobs that they need, and what is missing.

A group of runs has one folder per backbone, OUT/BACKBONE/GROUP, which several tables and figures share. Making a plan
needs no data: sizes come from the registry. With ``bench`` the plan uses the emoji sets and the embedded model, as a
functional test without the paper's numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd

from otpt.data.emoji import GROUPS as EMOJI_GROUPS
from otpt.data.emoji import SHIFTS as EMOJI_SHIFTS
from otpt.errors import OtptError
from otpt.files import Json
from otpt.methods import get_method
from otpt.report.results import check_names
from otpt_papers.exhibits import CHECKPOINTS, FIGURES, GROUPS, FigureSpec, group_of
from otpt_papers.jobs import Exhibit, Job
from otpt_papers.layouts import LAYOUTS
from otpt_papers.papers import BACKBONES, OTPT, Paper, get_paper, table_datasets

STUDIES = {"paper": OTPT, "cots": "cots"}
"""Names for ``otpt reproduce`` and their papers."""
MODELS = {
    "ViT-B/16": "ViT-B-16/openai",
    "RN50": "RN50/openai",
    "MedCLIP": "",
    "PLIP": "hf:vinid/plip",
    "FPT": "hf:google/vit-base-patch16-384",
}
"""Weights by the paper's name of the model; MedCLIP's must be given."""
BENCH = "bench"
TRAINED = ("baple", "fpt")
"""Systems whose networks are trained first, unless their files are given."""
VALIDATION_IMAGES = 1000
"""Images of a validation split that a temperature is fitted on."""
FEWEST = 60
"""Validation images with a --limit below; a temperature needs some."""
TABLE_SUFFIXES = (".md", ".tex", ".csv")
FIGURE_SUFFIXES = (".png", ".pdf")
_SIGLIP = "SigLIP's weights: 'otpt evaluate --backbone NAME/TAG --methods …'"


@dataclass(frozen=True)
class Choice:
    """Part of a paper that is planned, and how it is run.

    Attributes:
        backbones, tables, figures, datasets, methods: names of the paper's; all by default. If only tables or only
            figures are chosen, the others are left out.
        seeds: seeds of all runs, in place of the paper's.
        limit: largest number of images of each set.
        views: number of views of an image.
        models: weights by the paper's name of the model, in place of :data:`MODELS`.
        context: files of CoOp ("coop") and MaPLe ("maple").
        trained: files of BAPLe ("baple") and FPT ("fpt"), separated by semicolons.
        epochs, shots: of the training of BAPLe and FPT; the published ones by default.
        run_options, model_options: further words of the commands that evaluate, and of those that load a model.
    """

    backbones: Sequence[str] = BACKBONES
    tables: Sequence[str] | None = None
    figures: Sequence[str] | None = None
    datasets: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    seeds: Sequence[int] | None = None
    limit: int | None = None
    views: int = 64
    models: Mapping[str, str] = field(default_factory=dict)
    context: Mapping[str, str] = field(default_factory=dict)
    trained: Mapping[str, str] = field(default_factory=dict)
    epochs: int | None = None
    shots: int | None = None
    run_options: tuple[str, ...] = ()
    model_options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """All chosen tables and figures, and the methods of the paper that are left out, with the reason."""

    study: str
    exhibits: tuple[Exhibit, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    unplanned: Mapping[str, str] = field(default_factory=dict)

    @property
    def jobs(self) -> list[Job]:
        """Each job once, in the order of the exhibits."""
        return list({id(job): job for exhibit in self.exhibits for job in exhibit.jobs}.values())

    def missing(self) -> dict[str, list[str]]:
        """Return what keeps exhibits from being complete, by exhibit."""
        missing: dict[str, list[str]] = {}
        for exhibit in self.exhibits:
            missing.setdefault(exhibit.name, []).extend(exhibit.obstacles())
        for name, reason in self.unplanned.items():
            missing.setdefault(name, []).append(reason)
        return {name: list(dict.fromkeys(reasons)) for name, reasons in missing.items() if reasons}

    def to_dict(self) -> dict[str, Json]:
        """Return plain data."""
        jobs = self.jobs
        place = {id(job): index for index, job in enumerate(jobs)}
        return {
            "study": self.study,
            "jobs": [
                {
                    "command": job.line,
                    "backbone": job.backbone,
                    "group": job.group,
                    "datasets": list(job.datasets),
                    "methods": list(job.methods),
                    "seeds": list(job.seeds),
                    "images": dict(job.images),
                    "left": job.left,
                    "seconds": job.seconds,
                    "makes": str(job.makes),
                    "needs": job.needs,
                    "missing": dict(job.missing),
                }
                for job in jobs
            ],
            "exhibits": [
                {
                    "name": exhibit.name,
                    "title": exhibit.title,
                    "backbone": exhibit.backbone,
                    "jobs": [place[id(job)] for job in exhibit.jobs],
                    "files": [f"{exhibit.stem}{suffix}" for suffix in exhibit.suffixes],
                    "remarks": list(exhibit.remarks),
                }
                for exhibit in self.exhibits
            ],
            "missing": {name: list(reasons) for name, reasons in self.missing().items()},
            "left_out": dict(self.left_out),
        }


@dataclass(frozen=True)
class _Wanted:
    """A table or figure before its jobs are known: methods by group, and data sets of the paper."""

    kind: str
    number: str
    title: str
    backbone: str
    needs: Mapping[str, tuple[str, ...]]
    datasets: tuple[str, ...]
    methods: tuple[str, ...]
    words: tuple[str, ...]
    select: bool
    remarks: tuple[str, ...]


def make_plan(
    study: str = "paper",
    *,
    data: Path | None = None,
    out: Path | None = None,
    bench: bool = False,
    choice: Choice | None = None,
    seconds: Callable[[Job], float | None] | None = None,
) -> Plan:
    """Plan the tables and figures of a study, one of :data:`STUDIES`.

    Args:
        study: name of the study.
        data: folder with the data sets; without it every registered set is missing.
        out: folder of the runs, tables and figures, "runs/STUDY" by default.
        bench: emoji sets and the embedded model in place of the paper's.
        choice: part of the paper, and how it is run.
        seconds: function that estimates the time that a job still needs.
    """
    check_names("paper to reproduce", [study], STUDIES)
    if data is not None and not data.expanduser().is_dir():
        raise OtptError(f"The data root {str(data)!r} is not a folder; give the one that holds the data sets.")
    planner = _Planner(study, get_paper(STUDIES[study]), choice or Choice(), data, out or Path("runs") / study, bench)
    planner.check()
    plan = planner.plan()
    if seconds is not None:
        for job in plan.jobs:
            job.seconds = seconds(job)
    return plan


@dataclass(frozen=True)
class _Planner:
    study: str
    paper: Paper
    choice: Choice
    data: Path | None
    out: Path
    bench: bool

    def check(self) -> None:
        """Raise for names that the paper does not have."""
        choice, numbers = self.choice, self.paper.numbers
        check_names("backbone of the paper", choice.backbones, BACKBONES)
        check_names("table of the paper", choice.tables, numbers["table"])
        check_names("figure of the paper", choice.figures, FIGURES)
        check_names("method of the paper", choice.methods, numbers["method"])
        check_names("model of the paper", list(choice.models) or None, MODELS)
        if choice.limit is not None and choice.limit < 1:
            raise OtptError(f"The limit is {choice.limit}; expected 1 or more.")
        for option, files, names in (
            ("--context", choice.context, ("coop", "maple")),
            ("--trained", choice.trained, TRAINED),
        ):
            for name in files:
                if name not in names:
                    raise OtptError(
                        f"{option} was given {name!r}; expected {' or '.join(names)}, as in {names[0]}=FILE."
                    )
        known = {name.partition(":")[0] for name in table_datasets(numbers)}
        known.update(f"emoji/{name}" for name in (*EMOJI_GROUPS, *EMOJI_SHIFTS))
        check_names("data set of the paper", choice.datasets, known)

    def plan(self) -> Plan:
        """Return the plan."""
        left_out = {} if self.choice.methods is not None else self._left_out()
        wanted, unplanned = self._wanted(left_out)
        jobs = self._jobs(wanted)
        exhibits = [self._exhibit(item, jobs) for item in wanted]
        if not exhibits:
            raise OtptError("No table or figure has these data sets and methods; leave some of the options out.")
        return Plan(self.study, tuple(exhibits), left_out, unplanned)

    # What is wanted

    def _wanted(self, left_out: Mapping[str, str]) -> tuple[list[_Wanted], dict[str, str]]:
        choice, rows = self.choice, self.paper.numbers
        wanted: list[_Wanted] = []
        unplanned: dict[str, str] = {}
        with_tables = choice.tables is not None or choice.figures is None
        with_figures = choice.figures is not None or (choice.tables is None and self.paper.name == OTPT)
        for (number, backbone), printed in rows.groupby(["table", "backbone"], sort=False) if with_tables else ():
            if choice.tables is not None and number not in choice.tables:
                continue
            if backbone in BACKBONES and backbone not in self._backbones:
                continue
            methods = self._methods(tuple(name for name in dict.fromkeys(printed["method"]) if name not in left_out))
            layout, prompt = str(printed["layout"].iloc[0]), str(printed["prompt"].iloc[0])
            group = group_of(layout, prompt, methods) if methods else None
            if layout == "siglip":
                unplanned[f"Table {number}"] = f"needs {_SIGLIP}."
            datasets = self._datasets(table_datasets(printed))
            if group is not None and datasets and not (self.bench and group in CHECKPOINTS | {"promptsmooth": ""}):
                wanted.append(self._table(str(number), str(backbone), printed, group, methods))
        for number, figure in FIGURES.items() if with_figures else ():
            if choice.figures is not None and number not in choice.figures:
                continue
            has_methods = any(self._methods(methods) for methods in figure.needs.values())
            if figure.backbone in self._backbones and self._datasets(figure.datasets) and has_methods:
                wanted.append(self._figure(number, figure))
        return wanted, unplanned

    def _table(
        self, number: str, backbone: str, printed: pd.DataFrame, group: str, methods: tuple[str, ...]
    ) -> _Wanted:
        layout, prompt = str(printed["layout"].iloc[0]), str(printed["prompt"].iloc[0])
        datasets = self._datasets(table_datasets(printed))
        if self.bench:
            words = ["table", "--layout", layout]
        else:
            words = ["table", "--paper", f"{self.paper.name}:{number}"]
            words += ["--paper-backbone", backbone] if backbone in BACKBONES else []
        if self.bench and layout == "shifts":
            datasets = tuple(f"emoji/{name}" for name in EMOJI_SHIFTS[: len(datasets)])
            datasets = tuple(name for name in datasets if self._chosen(name))
        title = LAYOUTS[layout].title if layout in LAYOUTS else layout
        title = f"{title}: {prompt!r}" if layout == "prompts" else title
        remarks = tuple(self.paper.remarks_on(number))
        return _Wanted(
            "table", number, title, backbone, {group: methods}, datasets, methods, tuple(words), self.bench, remarks
        )

    def _figure(self, number: str, figure: FigureSpec) -> _Wanted:
        needs = {group: self._methods(methods) for group, methods in figure.needs.items()}
        needs = {group: methods for group, methods in needs.items() if methods}
        if self.bench:  # it has no validation split
            needs = {group: methods for group, methods in needs.items() if not GROUPS[group].validation}
        words = ["plot", figure.kind]
        if figure.prompts:
            (group,) = figure.needs
            words += ["--prompts", *GROUPS[group].options[1:]]
        if figure.data and self.data is not None and not self.bench:
            words += ["--data", str(self.data)]
        methods = []
        for name in figure.methods:
            if not self._methods((name.removesuffix("+calibrated"),)) or (self.bench and name.endswith("+calibrated")):
                continue
            swept = [f"{name}[{word.partition('=')[0]}={value}]" for value, word in _swept(needs, name)]
            methods += swept or [name]
        datasets = self._datasets(figure.datasets)
        remarks = (f"Own reading: {figure.remark}.",) if figure.remark else ()
        return _Wanted(
            "figure",
            number,
            figure.title,
            figure.backbone,
            needs,
            datasets,
            tuple(methods),
            tuple(words),
            True,
            remarks,
        )

    # Names

    @cached_property
    def _backbones(self) -> Sequence[str]:
        return BACKBONES[:1] if self.bench and self.choice.backbones == BACKBONES else self.choice.backbones

    def _methods(self, methods: tuple[str, ...]) -> tuple[str, ...]:
        chosen = self.choice.methods
        return tuple(name for name in methods if chosen is None or name in chosen)

    def _datasets(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the data sets of the paper, or the emoji sets in their place, that were chosen."""
        base = list(dict.fromkeys(name.partition(":")[0] for name in names))
        if self.bench:
            base = [f"emoji/{name}" for name in EMOJI_GROUPS[: len(base)]]
        return tuple(name for name in base if self._chosen(name) or (self.bench and self._shift_chosen))

    def _chosen(self, name: str) -> bool:
        return self.choice.datasets is None or name in self.choice.datasets

    @property
    def _shift_chosen(self) -> bool:
        return any(self._chosen(f"emoji/{name}") for name in EMOJI_SHIFTS) and self.choice.datasets is not None

    def _left_out(self) -> dict[str, str]:
        """Return the methods of the paper that this package cannot run, with the reason."""
        left_out = {}
        known = self.paper.not_implemented
        for name in dict.fromkeys(self.paper.numbers["method"]):
            reasons = [known[part] for part in (name, *name.split("+")) if part in known]
            try:
                get_method(name)
            except OtptError as error:
                reasons.append(str(error).partition(". ")[0].rstrip("."))
            if reasons:
                left_out[name] = reasons[0]
        return left_out

    def _model(self, backbone: str) -> str:
        if self.bench:
            return "pocket"
        return self.choice.models.get(backbone, MODELS[backbone])

    def _folder(self, backbone: str) -> Path:
        return self.out / (BENCH if self.bench else backbone.replace("/", "-"))

    # Jobs

    def _jobs(self, wanted: Sequence[_Wanted]) -> dict[tuple[str, str], list[Job]]:
        """Return the jobs by backbone and group: data sets that need the same methods share a command."""
        needed: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
        for item in wanted:
            for group, methods in item.needs.items():
                by_dataset = needed.setdefault((item.backbone, group), {})
                for name in item.datasets:
                    by_dataset.setdefault(name, {}).update(dict.fromkeys(methods))
        jobs: dict[tuple[str, str], list[Job]] = {}
        for (backbone, group), by_dataset in needed.items():
            together: dict[tuple[str, ...], list[str]] = {}
            for name, needed_methods in by_dataset.items():
                together.setdefault(tuple(needed_methods), []).append(name)
            of_group = jobs.setdefault((backbone, group), [])
            for names_of_methods, datasets in together.items():
                of_group += self._group_jobs(backbone, group, tuple(datasets), names_of_methods)
        return jobs

    def _group_jobs(self, backbone: str, group: str, datasets: tuple[str, ...], methods: tuple[str, ...]) -> list[Job]:
        """Return the jobs of a group that make the runs of some data sets, preparations first."""
        if GROUPS[group].validation:
            jobs = []
            for name in datasets:
                fit = self._fit_job(backbone, name, methods)
                options = ("--calibration", str(fit.makes))
                columns = tuple(f"{method}+calibrated" for method in methods)
                jobs += [fit, self._run_job(backbone, group, (name,), methods, options, columns=columns)]
            return jobs
        if group in TRAINED:
            return self._trained_jobs(backbone, group, datasets, methods)
        if group in CHECKPOINTS:
            file = self.choice.context.get(group)
            options = ("--set", f"context={file or 'FILE'}")
            needs = "" if file is not None else f"needs {CHECKPOINTS[group]}"
            return [self._run_job(backbone, group, datasets, methods, options, needs=needs)]
        return [self._run_job(backbone, group, datasets, methods, ())]

    def _run_job(
        self,
        backbone: str,
        group: str,
        datasets: tuple[str, ...],
        methods: tuple[str, ...],
        options: tuple[str, ...],
        *,
        columns: tuple[str, ...] = (),
        needs: str = "",
    ) -> Job:
        """Return the job that evaluates methods on data sets."""
        spec, choice = GROUPS[group], self.choice
        is_clip = backbone in BACKBONES
        seeds = tuple(choice.seeds or spec.seeds or range(self.paper.seeds or 1))
        seeds = seeds if is_clip or group == "promptsmooth" else (0,)
        augmix = self.paper.augmix.get("shift") if group == "shifts" and self.paper.name != OTPT else None
        model = self._model(backbone)
        words = self._data_words()
        words += ["--backbone", model or "medclip:FOLDER", "--methods", *methods, *spec.options, *options]
        words += ["--seeds", *map(str, seeds)] if is_clip else []
        words += ["--official-precision", "--official-orientation"] if is_clip else []
        words += ["--views", str(choice.views)] if spec.views else []
        words += [] if augmix is None else ["--augmix" if augmix else "--no-augmix"]
        words += [] if choice.limit is None else ["--limit", str(choice.limit)]
        folder = self._folder(backbone) / group
        if not columns and "--sweep" in spec.options:
            swept = [spec.options[1].partition("=")]
            columns = tuple(
                f"{method}[{name}={value}]"
                for method in methods
                for name, _, values in swept
                for value in values.split(",")
            )
        return Job(
            BENCH if self.bench else backbone,
            model,
            group,
            (spec.command,),
            datasets,
            methods,
            (*words, *choice.run_options, "--out", str(folder)),
            folder,
            data=self.data,
            seeds=seeds,
            limit=choice.limit,
            columns=columns,
            needs=needs or ("" if model else f"needs {CHECKPOINTS['baple']}"),
        )

    def _data_words(self) -> list[str]:
        return [] if self.bench else ["--data", str(self.data or "DATA")]

    def _fit_job(self, backbone: str, dataset: str, methods: tuple[str, ...]) -> Job:
        """Return the job that fits a temperature on the validation split of a data set."""
        choice, folder = self.choice, self._folder(backbone)
        makes = folder / "temperatures" / f"{dataset}.json"
        limit = VALIDATION_IMAGES if choice.limit is None else min(max(choice.limit, FEWEST), VALIDATION_IMAGES)
        words = [*self._data_words(), "--split", "val", "--backbone", self._model(backbone), "--methods", *methods]
        words += [
            "--maps",
            "temperature",
            "--official-precision",
            "--official-orientation",
            "--views",
            str(choice.views),
            "--limit",
            str(limit),
        ]
        words += [*choice.run_options, "--run", str(folder / "validation" / dataset), "--out", str(makes)]
        return Job(
            backbone,
            self._model(backbone),
            "validation",
            ("calibrate",),
            (dataset,),
            methods,
            tuple(words),
            makes,
            data=self.data,
            limit=limit,
            split="val",
        )

    def _trained_jobs(
        self, backbone: str, system: str, datasets: tuple[str, ...], methods: tuple[str, ...]
    ) -> list[Job]:
        """Return the jobs that train a system's networks, unless their files are given, and the one that evaluates."""
        choice, model = self.choice, self._model(backbone)
        given = choice.trained.get(system)
        needs = "" if model else f"needs {CHECKPOINTS[system]}"
        jobs: list[Job] = []
        for method in methods if given is None else ():
            for target in ("0", "1") if system == "baple" else ("",):
                makes = self.out / "trained" / f"{'-'.join(filter(None, (method, target)))}.safetensors"
                words = [*self._data_words(), "--backbone", model or "medclip:FOLDER", "--methods", method]
                words += ["--target", target] if target else []
                words += [] if choice.epochs is None else ["--epochs", str(choice.epochs)]
                words += ["--shots", str(choice.shots)] if system == "baple" and choice.shots is not None else []
                words += [*choice.model_options, "--out", str(makes)]
                job = Job(
                    backbone,
                    model,
                    system,
                    ("train", system),
                    datasets,
                    (method,),
                    tuple(words),
                    makes,
                    data=self.data,
                    split="train",
                    needs=needs,
                )
                jobs.append(job)
        files = given or ";".join(str(job.makes) for job in jobs)
        options = ("--set", f"trained={files}")
        return [*jobs, self._run_job(backbone, system, datasets, methods, options, needs=needs)]

    def _exhibit(self, item: _Wanted, jobs: Mapping[tuple[str, str], Sequence[Job]]) -> Exhibit:
        """Return a table or figure with its jobs."""
        its_jobs = [job for group in item.needs for job in jobs[item.backbone, group]]
        its_jobs = [job for job in its_jobs if not {*job.datasets}.isdisjoint(item.datasets)]
        two_backbones = self.paper.numbers["table"].eq(item.number) & self.paper.numbers["backbone"].isin(BACKBONES)
        several = (
            self.paper.numbers.loc[two_backbones, "backbone"].nunique() > 1 and item.kind == "table" and not self.bench
        )
        number = f"{int(item.number):02d}" if item.number.isdecimal() else item.number
        stem = f"{item.kind}-{number}" + (f"-{item.backbone.replace('/', '-')}" if several else "")
        return Exhibit(
            item.kind,
            item.number,
            item.title,
            BENCH if self.bench else item.backbone,
            tuple(its_jobs),
            item.words,
            tuple(dict.fromkeys(job.makes for job in its_jobs if job.is_run)),
            item.datasets,
            item.methods,
            item.select,
            item.remarks,
            TABLE_SUFFIXES if item.kind == "table" else FIGURE_SUFFIXES,
            self.out / f"{item.kind}s" / stem,
        )


def _swept(needs: Mapping[str, tuple[str, ...]], method: str) -> list[tuple[str, str]]:
    """Return the values of the setting that a method is swept over, each with the setting's word."""
    values = []
    for group, methods in needs.items():
        options = GROUPS[group].options
        if "--sweep" in options and method in methods:
            values += [(value, options[1]) for value in options[1].partition("=")[2].split(",")]
    return values
