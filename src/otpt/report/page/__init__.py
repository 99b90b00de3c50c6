"""One HTML page that holds everything and loads nothing from the network.

Summary, sortable tables, reliability diagrams, images, sweeps, settings and commands. Numbers are the cells of
:func:`otpt.report.tables.make_cells`; diagrams are matplotlib's, embedded as images.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from otpt._version import __version__
from otpt.backbones import Backbone
from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.files import write_atomically
from otpt.metrics import METRICS, percent
from otpt.report.figures import draw, draw_overview
from otpt.report.figures.bins import draw_bins, make_bins
from otpt.report.figures.style import BLUE, figure_bytes, styled
from otpt.report.page.images import (
    Card,
    add_thumbnails,
    choose_images,
    collect_answers,
    explain_mistakes,
    load_model,
    open_images,
)
from otpt.report.page.lines import SHOWN, Line, make_lines, make_matrix, side_by_side
from otpt.report.page.summary import isolated, summary
from otpt.report.results import ResultKey, Results
from otpt.report.selection import AVERAGE, plain_methods, swept_settings
from otpt.report.tables import set_table
from otpt.runs import DatasetConfig, Run

TITLE = "Calibration report"
IMAGES = 6
"""Images of each kind that are shown of a data set."""

_MAX_DIAGRAMS = 16
_MAX_ANSWERS = 8


@dataclass(frozen=True)
class Diagram:
    """Reliability diagram of a method, as a data URI, with its caption."""

    model: str
    method: str
    prompt: str
    source: str
    words: str
    ece: str
    accuracy: str


@dataclass(frozen=True)
class Pictures:
    """Images of a data set; ``missing`` is the reason if they cannot be shown."""

    disagreements: Sequence[Card] = ()
    mistakes: Sequence[Card] = ()
    maps: Sequence[Card] = ()
    missing: str | None = None


@dataclass(frozen=True)
class DatasetContent:
    """What the page shows of a data set and a model under the first seed.

    Attributes:
        images: number of requested images.
        best: line with the lowest ECE, None before the first prediction.
        left_out: number of diagrams that are not drawn.
    """

    model: str
    name: str
    classes: int
    images: int
    seed: int
    partial: bool
    best: Line | None
    diagrams: Sequence[Diagram]
    left_out: int
    pictures: Pictures


@dataclass(frozen=True)
class Chart:
    """Figure as a data URI, with its description."""

    source: str
    words: str


@dataclass(frozen=True)
class Sweep:
    """Charts of a sweep of one method on one data set."""

    model: str
    dataset: str
    method: str
    prompt: str
    charts: Sequence[Chart]


@dataclass(frozen=True)
class RunFacts:
    """Settings, versions and commands of a run, and how far it is."""

    folder: str
    done: int
    images: int
    commands: Sequence[str]
    settings: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class _Pictured:
    """Which images of a data set are shown.

    Attributes:
        images: number of each kind.
        explain: number of heat maps per method.
        data: the images, or the reason if they are missing; None shows none.
        backbone: model of the heat maps.
    """

    images: int
    explain: int
    data: Dataset | str | None
    backbone: Backbone | None


def make_page(
    results: Results | Mapping[str, Results],
    *,
    title: str = TITLE,
    root: Path | None = None,
    images: int = IMAGES,
    explain: int = 0,
    command: str = "",
) -> str:
    """Make the page as HTML.

    Args:
        results: of one model, or of several by their names, as :func:`~otpt.report.open_models` returns them.
        root: folder with the data sets, for the thumbnails.
        images: of each kind and data set; 0 for none.
        explain: heat maps of the most confident mistakes of each method and data set, which load the model; 0 for none.
        command: that makes the page, shown at its end.
    """
    for option, count in (("images", images), ("explain", explain)):
        if count < 0:
            raise OtptError(f"--{option} was given {count}; expected 0 or more.")
    models = {results.model: results} if isinstance(results, Results) else dict(results)
    lines_of = {model: make_lines(model, results_of) for model, results_of in models.items()}
    lines = [line for model in models for line in lines_of[model]]
    datasets = list(dict.fromkeys(line.dataset for line in lines if line.dataset != AVERAGE))
    pairs = [(name, model) for name in datasets for model in models if name in models[model].datasets]
    data: dict[tuple[str, str], Dataset | str] = {}
    if images or explain:
        data = {(name, model): _open_data(models[model], name, root, explain) for name, model in pairs}
    backbones: dict[str, Backbone] = {}
    if explain:
        backbones = {model: load_model(results_of.runs[0]) for model, results_of in models.items()}
    contents: dict[str, list[DatasetContent]] = {}
    for name, model in pairs:
        pictured = _Pictured(images, explain, data.get((name, model)), backbones.get(model))
        content = _dataset_content(models[model], model, name, lines_of[model], pictured)
        contents.setdefault(name, []).append(content)
    sets = {model: set_table(results_of) for model, results_of in models.items()}
    first = next(iter(models.values()))
    return _render(
        "page.html",
        title=title,
        lede=_lede(list(models.values())),
        overview=_overview(models),
        models=list(models),
        several_models=len(models) > 1,
        several_seeds=any(len(results_of.seeds) > 1 for results_of in models.values()),
        several_prompts=len({line.prompt for line in lines}) > 1,
        n_bins=first.n_bins,
        side=first.side,
        summaries={model: summary(results_of, lines_of[model]) for model, results_of in models.items()},
        contents=contents,
        lines=[line for line in lines if line.dataset != AVERAGE],
        averages=[line for line in lines if line.dataset == AVERAGE],
        matrix=make_matrix(lines, [*datasets, AVERAGE]) if len(datasets) > 1 else [],
        side_by_side=side_by_side(models),
        metrics={name: METRICS[name].heading[0].upper() + METRICS[name].heading[1:] for name in SHOWN},
        sets=[(model, table) for model, table in sets.items() if not table.empty],
        sweeps=[sweep for model, results_of in models.items() for sweep in _sweeps(model, results_of)],
        runs=[_run(run) for results_of in models.values() for run in results_of.runs],
        progress=[progress for results_of in models.values() for progress in results_of.progress],
        command=command and _option_per_line(command),
    )


def make_label_page(title: str, lede: str, over_all: pd.DataFrame, by_label: pd.DataFrame, *, command: str = "") -> str:
    """Make a page of two tables of strings: the metrics of several labels per image, and those of each label."""
    command = command and _option_per_line(command)
    return _render("labels.html", title=title, lede=lede, over_all=over_all, by_label=by_label, command=command)


def _render(template: str, **values: object) -> str:
    """Render a template with style, script and a matching content security policy."""
    folder = resources.files(__name__) / "templates"
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__name__, "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(marked=_marked, signed=_signed)
    return environment.get_template(template).render(
        **values,
        version=__version__,
        policy=f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'",
        style=Markup(style),
        script=Markup(script),
    )


def write_page(path: Path, html: str) -> None:
    """Write the page atomically."""
    write_atomically(path, html.encode("utf-8", "xmlcharrefreplace"), durable=False)


def _dataset_content(
    results: Results, model: str, dataset: str, lines: Sequence[Line], pictured: _Pictured
) -> DatasetContent:
    """Return diagrams and images of a data set under its first seed."""
    config = results.configs_of(dataset)[0]
    lines = [line for line in lines if line.dataset == dataset]
    seed = results.keys_of(dataset)[0].seed
    drawn: list[tuple[Line, ResultKey]] = []
    for line in lines:
        key = next((key for key in line.keys if key.seed == seed and results.score(key) is not None), None)
        if line.numbers and key is not None:
            drawn.append((line, key))
    plain = plain_methods([line.method for line, _ in drawn])
    drawn.sort(key=lambda pair: pair[0].method not in plain)  # variants of a sweep come last, and are left out first
    return DatasetContent(
        model=model,
        name=dataset,
        classes=len(config.classes),
        images=results.images_of(dataset),
        seed=seed,
        partial=any(line.partial for line in lines),
        best=min((line for line, _ in drawn), key=lambda line: line.numbers["ece"].value, default=None),
        diagrams=[_diagram(results, line, key) for line, key in drawn[:_MAX_DIAGRAMS]],
        left_out=len(drawn[_MAX_DIAGRAMS:]),
        pictures=_pictures(results, config, drawn, pictured),
    )


def _pictures(
    results: Results, config: DatasetConfig, drawn: Sequence[tuple[Line, ResultKey]], pictured: _Pictured
) -> Pictures:
    """Choose images by the answers of methods, without those of a sweep if there are others."""
    data, backbone = pictured.data, pictured.backbone
    missing = data if isinstance(data, str) else None
    if data is None or not drawn:
        return Pictures(missing=missing)
    keys: dict[str, ResultKey] = {}
    for line, key in drawn:
        keys.setdefault(line.method, key)
    methods = plain_methods(list(keys)) or list(keys)
    answers = collect_answers({method: results.rows(keys[method]) for method in methods[:_MAX_ANSWERS]})
    disagreements, mistakes = choose_images(answers, config.classes, pictured.images)
    maps: list[Card] = []
    if isinstance(data, Dataset):
        add_thumbnails([*disagreements, *mistakes], data)
        if backbone is not None:
            maps = list(explain_mistakes(answers, config, data, backbone, pictured.explain))
    return Pictures(disagreements, mistakes, maps, missing)


def _open_data(results: Results, dataset: str, root: Path | None, explain: int) -> Dataset | str:
    """Return the images of a data set, or the reason why they are missing; ``explain`` requires them."""
    try:
        return open_images(results.configs_of(dataset)[0], root)
    except OtptError as error:
        reason = str(error).split(". ")[0].rstrip(".")
    if explain:
        raise OtptError(f"--explain needs the images of {dataset!r}, which cannot be opened: {reason}.")
    return f"The images are not shown: {reason}."


def _diagram(results: Results, line: Line, key: ResultKey) -> Diagram:
    """Return a reliability diagram with its caption."""
    bins = make_bins(results, results.rows(key))
    score = results.require_score(key)
    with styled("neutral"):
        figure = Figure(figsize=(2.4, 2.7))
        axes = figure.subplots()
        figure.subplots_adjust(left=0.17, right=0.96, top=0.98, bottom=0.32)
        draw_bins(axes, bins, BLUE).set_xlabel("confidence")
        axes.set_ylabel("accuracy")
        source = _data_uri(figure)
    gap = float(np.nansum(bins.counts * bins.gaps) / bins.total)
    ece, accuracy = percent(score["ece"]), percent(score["accuracy"])
    lean = f"overall {'over' if gap > 0 else 'under'}-confident by {percent(abs(gap), 1)} points"
    name = f"{isolated(line.method)} on {isolated(line.dataset)}"
    words = f"Reliability diagram of {name}: ECE {ece} %, accuracy {accuracy} %, {bins.total} images, {lean}."
    return Diagram(line.model, line.method, line.prompt, source, words, ece, accuracy)


def _overview(models: Mapping[str, Results]) -> Chart | None:
    """Return the picture above the tables, or None before there are images of all data sets."""
    try:
        with styled("neutral"):
            figure = draw_overview(models)
    except OtptError:
        return None
    methods = {method for results in models.values() for method in results.methods}
    return Chart(_data_uri(figure), f"Accuracy against ECE of {len(methods)} methods, with 95 % intervals")


def _sweeps(model: str, results: Results) -> Iterator[Sweep]:
    """Yield figures of accuracy and ECE for every sweep, data set, method and prompt."""
    for (dataset, prompt), scores in results.frame.groupby(["dataset", "prompt"], sort=False):
        for base, variants in swept_settings(scores["method"].drop_duplicates()).groupby("base", sort=False):
            methods = list(variants["method"])
            if len(variants) < 2 or not scores[scores["method"].isin(methods)]["images"].all():
                continue
            charts = []
            for metric in ("accuracy", "ece"):
                figure = draw(
                    "sweep", results, datasets=[dataset], methods=methods, prompt=prompt, theme="neutral", metric=metric
                )
                words = f"{METRICS[metric].heading} of {isolated(base)} on {isolated(dataset)}"
                charts.append(Chart(_data_uri(figure), words))
            yield Sweep(model, dataset, base, prompt, charts)


def _run(run: Run) -> RunFacts:
    """Return settings, versions and commands of a run."""
    done, total = run.progress()
    commands = [_option_per_line(command) for command in run.config.commands]
    settings = list(_settings("", run.config.model_dump(mode="json", exclude_defaults=True)))
    return RunFacts(str(run.folder), done, total, commands, settings)


def _settings(name: str, value: object) -> Iterator[tuple[str, str]]:
    """Flatten nested settings to (dotted name, text); classes and columns are counted."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            if key != "commands":
                yield from _settings(f"{name}.{key}".strip("."), len(part) if key in {"classes", "columns"} else part)
    elif isinstance(value, (list, tuple)) and any(isinstance(part, Mapping) for part in value):
        for part in value:
            yield from _settings(f"{name}.{part.get('name', '')}".rstrip("."), part)
    elif value not in (None, []):
        yield name, ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _lede(models: Sequence[Results]) -> str:
    """Count methods, data sets, images and seeds in one line."""
    methods = {method for results in models for method in results.methods}
    images = {name: results.images_of(name) for results in models for name in results.datasets}
    seeds = {seed for results in models for seed in results.seeds}
    counts = {"method": len(methods), "data set": len(images), "image": sum(images.values()), "seed": len(seeds)}
    return " · ".join(f"{count:,} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items())


def _marked(sentence: str) -> Markup:
    """Mark up the isolated names of a sentence, with non-breaking spaces before units."""
    sentence = re.sub("p ([=≤]) ", "p\u00a0\\1\u00a0", sentence.replace(" %", "\u00a0%"))
    return Markup(str(escape(_signed(sentence))).replace("\u2068", "<bdi>").replace("\u2069", "</bdi>"))


def _signed(text: str) -> str:
    """Replace hyphens of negative numbers by minus signs."""
    return re.sub(r"(?<![\w=[-])-(?=\d)", "−", text)


def _option_per_line(command: str) -> str:
    """Format a shell command with one option per line."""
    try:
        quoted = [shlex.quote(word) for word in shlex.split(command)]
    except ValueError:  # not a shell command
        return command
    return "".join(f" \\\n  {word}" if word.startswith("--") else f" {word}" for word in quoted).strip()


def _data_uri(figure: Figure) -> str:
    # hatches make SVGs a hundred times as large
    return f"data:image/png;base64,{base64.b64encode(figure_bytes(figure, 'png', dpi=200, theme='neutral')).decode()}"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
