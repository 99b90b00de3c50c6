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
from importlib import resources
from pathlib import Path
from typing import Any

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
from otpt.report.figures import draw
from otpt.report.figures.bins import draw_bins, make_bins
from otpt.report.figures.style import BLUE, figure_bytes, styled
from otpt.report.formats import number_text
from otpt.report.page.images import (
    Card,
    add_thumbnails,
    choose_images,
    collect_answers,
    explain_mistakes,
    load_model,
    open_images,
)
from otpt.report.page.summary import isolated, summary
from otpt.report.papers import AVERAGE, plain_methods, swept_settings
from otpt.report.results import Results
from otpt.report.tables import all_groups, by_prompt, make_cells, mark_best, set_table
from otpt.runs import Run

TITLE = "Calibration report"
IMAGES = 6
"""Images of each kind that are shown of a data set."""
SHOWN = ("accuracy", "ece", "debiased_ece", "sce", "brier", "nll", "overconfidence", "aurc")
"""Metrics of the tables; all of them are defined for any predictions."""
OWN_PROMPT = "each data set’s own"

_MAX_DIAGRAMS = 16
_MAX_ANSWERS = 8

Line = dict[str, Any]
"""A method with a prompt on a data set or over all: model, dataset, method, prompt, images, partial, numbers."""


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
    for option, given in (("images", images), ("explain", explain)):
        if given < 0:
            raise OtptError(f"--{option} was given {given}; expected 0 or more.")
    models = {results.model: results} if isinstance(results, Results) else dict(results)
    lines = {
        model: sorted(_lines(model, each), key=lambda line: [*each.datasets, AVERAGE].index(line["dataset"]))
        for model, each in models.items()
    }
    every = [line for own in lines.values() for line in own]
    datasets = list(dict.fromkeys(line["dataset"] for line in every if line["dataset"] != AVERAGE))
    held = [(name, model) for name in datasets for model in models if name in models[model].datasets]
    data = {each: _open_data(models[each[1]], each[0], root, explain) for each in held if images or explain}
    backbones = {model: load_model(each.runs[0]) for model, each in models.items()} if explain else {}
    contents: dict[str, list[dict[str, Any]]] = {}
    for name, m in held:
        found = _dataset(models[m], m, name, lines[m], data.get((name, m)), images, explain, backbones.get(m))
        contents.setdefault(name, []).append(found)
    first = next(iter(models.values()))
    return _render(
        "page.html",
        title=title,
        lede=_lede(list(models.values())),
        models=list(models),
        several_models=len(models) > 1,
        several_seeds=any(len(each.seeds) > 1 for each in models.values()),
        several_prompts=len({line["prompt"] for line in every}) > 1,
        n_bins=first.n_bins,
        side=first.side,
        summaries={model: summary(each, lines[model]) for model, each in models.items()},
        contents=contents,
        lines=[line for line in every if line["dataset"] != AVERAGE],
        averages=[line for line in every if line["dataset"] == AVERAGE],
        matrix=_matrix(every, [*datasets, AVERAGE]) if len(datasets) > 1 else [],
        side_by_side=_side_by_side(models),
        metrics={name: METRICS[name].heading[0].upper() + METRICS[name].heading[1:] for name in SHOWN},
        sets=[(model, table) for model, each in models.items() if not (table := set_table(each)).empty],
        sweeps=[sweep for model, each in models.items() for sweep in _sweeps(model, each)],
        runs=[_run(run) for each in models.values() for run in each.runs],
        progress=[progress for each in models.values() for progress in each.progress],
        command=command and _option_per_line(command),
    )


def make_label_page(title: str, lede: str, over_all: pd.DataFrame, by_label: pd.DataFrame, *, command: str = "") -> str:
    """Make a page of two tables of strings: the metrics of several labels per image, and those of each label."""
    command = command and _option_per_line(command)
    return _render("labels.html", title=title, lede=lede, over_all=over_all, by_label=by_label, command=command)


def _render(template: str, **values: Any) -> str:
    """Render a template with style, script and a matching content security policy."""
    folder = resources.files("otpt.report.page") / "templates"
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("otpt.report.page", "templates"),
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


def _lines(model: str, results: Results) -> Iterator[Line]:
    """Yield the table lines of a model with the best values marked."""
    groups, parts = all_groups(results), by_prompt(results)
    cells = [make_cells(each, groups, SHOWN).assign(part=at) for at, each in enumerate(parts)]
    lines = mark_best(pd.concat(cells, ignore_index=True)).groupby(["part", "dataset", "method"], sort=False)
    for (part, dataset, method), own in lines:
        known = parts[part].narrow(parts[part].select(dataset=None if dataset == AVERAGE else dataset, method=method))
        if known.frame.empty or (dataset == AVERAGE and own["value"].isna().all()):
            continue
        yield {
            "model": model,
            "dataset": dataset,
            "method": method,
            "prompt": known.prompts[0] if len(known.prompts) == 1 else OWN_PROMPT,
            "keys": known.keys_of(),
            "images": int(known.frame.groupby("dataset")["images"].max().sum()),
            "unreadable": int(known.frame["unreadable"].max()),
            "partial": bool(known.frame["partial"].any()),
            "numbers": {cell["metric"]: _number(cell) for cell in own.to_dict("records") if pd.notna(cell["value"])},
        }


def _number(cell: Mapping[str, Any]) -> dict[str, Any]:
    scale = 100.0 if METRICS[cell["metric"]].unit == "%" else 1.0
    mean = METRICS[cell["metric"]].format(cell["value"] / scale)
    text = mean if cell["dataset"] == AVERAGE else number_text({**cell, "partial": False})
    return {"value": cell["value"] / scale, "text": text, "mean": mean, "best": cell["best"]}


def _matrix(lines: Sequence[Line], datasets: Sequence[str]) -> list[Line]:
    """Return a matrix of methods by data sets; data sets with their own prompts share a row."""
    own = {(line["model"], line["method"]) for line in lines if line["prompt"] == OWN_PROMPT}
    found: dict[tuple[str, ...], Line] = {}
    for line in lines:
        prompt = OWN_PROMPT if (line["model"], line["method"]) in own else line["prompt"]
        row = found.setdefault((line["model"], line["method"], prompt), {**line, "prompt": prompt, "by_dataset": {}})
        row["by_dataset"][line["dataset"]] = line["numbers"]
    return [{**row, "numbers": [row["by_dataset"].get(name, {}) for name in datasets]} for row in found.values()]


def _side_by_side(models: Mapping[str, Results]) -> dict[str, Any] | None:
    """Return a table of methods by models over shared data sets, or None if there are none."""
    common = [name for name in next(iter(models.values())).datasets if all(name in r.datasets for r in models.values())]
    if len(models) < 2 or not common:
        return None
    parts = []
    for model, results in models.items():
        for each in by_prompt(results):
            cells = make_cells(each, {"common": common}, SHOWN).dropna(subset=["value"])
            line = cells["method"] + "\n" + cells["prompt"]
            parts.append(cells.assign(dataset=line, method=model, name=cells["method"]))
    cells = mark_best(pd.concat(parts, ignore_index=True))
    rows = []
    for _, own in cells.groupby("dataset", sort=False):
        numbers = [
            {cell["metric"]: _number(cell) for cell in own[own["method"] == model].to_dict("records")}
            for model in models
        ]
        rows.append({"method": own["name"].iloc[0], "prompt": own["prompt"].iloc[0], "numbers": numbers})
    return {"models": list(models), "datasets": common, "rows": rows}


def _dataset(
    results: Results,
    model: str,
    dataset: str,
    lines: Sequence[Line],
    data: Dataset | str | None,
    images: int,
    explain: int,
    backbone: Backbone | None,
) -> dict[str, Any]:
    """Return diagrams and images of a data set under its first seed; ``data`` is a reason if images are missing."""
    config, own = results.configs_of(dataset)[0], [line for line in lines if line["dataset"] == dataset]
    seed = results.keys_of(dataset)[0].seed
    known = []
    for line in own:
        key = next((key for key in line["keys"] if key.seed == seed and results.score(key) is not None), None)
        if line["numbers"] and key is not None:
            known.append({**line, "key": key})
    plain = plain_methods([line["method"] for line in known])
    known.sort(key=lambda line: line["method"] not in plain)  # variants of a sweep come last, and are left out first
    first = {line["method"]: line["key"] for line in reversed(known)}
    chosen = [method for method in dict.fromkeys(line["method"] for line in known) if not plain or method in plain]
    disagreements: list[Card] = []
    mistakes: list[Card] = []
    maps: list[Card] = []
    if data is not None and known:
        answers = collect_answers({method: results.rows(first[method]) for method in chosen[:_MAX_ANSWERS]})
        disagreements, mistakes = choose_images(answers, config.classes, images)
        if isinstance(data, Dataset):
            add_thumbnails([*disagreements, *mistakes], data)
            maps = list(explain_mistakes(answers, config, data, backbone, explain)) if backbone is not None else []
    return {
        "model": model,
        "name": dataset,
        "classes": len(config.classes),
        "images": results.images_of(dataset),
        "seed": seed,
        "partial": any(line["partial"] for line in own),
        "best": min(known, key=lambda line: line["numbers"]["ece"]["value"]) if known else None,
        "diagrams": [_diagram(results, line) for line in known[:_MAX_DIAGRAMS]],
        "left_out": len(known[_MAX_DIAGRAMS:]),
        "disagreements": disagreements,
        "mistakes": mistakes,
        "maps": maps,
        "missing": data if isinstance(data, str) else None,
    }


def _open_data(results: Results, dataset: str, root: Path | None, explain: int) -> Dataset | str:
    """Return the images of a data set, or the reason why they are missing; ``explain`` requires them."""
    try:
        return open_images(results.configs_of(dataset)[0], root)
    except OtptError as error:
        reason = str(error).split(". ")[0].rstrip(".")
    if explain:
        raise OtptError(f"--explain needs the images of {dataset!r}, which cannot be opened: {reason}.")
    return f"The images are not shown: {reason}."


def _diagram(results: Results, line: Line) -> dict[str, Any]:
    """Return a reliability diagram with its caption."""
    bins, score = make_bins(results, results.rows(line["key"])), results.score(line["key"])
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
    name = f"{isolated(line['method'])} on {isolated(str(line['dataset']))}"
    words = f"Reliability diagram of {name}: ECE {ece} %, accuracy {accuracy} %, {bins.total} images, {lean}."
    return {**line, "source": source, "words": words, "ece": ece, "accuracy": accuracy}


def _sweeps(model: str, results: Results) -> Iterator[dict[str, Any]]:
    """Yield figures of accuracy and ECE for every sweep, data set, method and prompt."""
    for (dataset, prompt), shown in results.frame.groupby(["dataset", "prompt"], sort=False):
        for base, own in swept_settings(shown["method"].drop_duplicates()).groupby("base", sort=False):
            if len(own) < 2 or not shown[shown["method"].isin(own["method"])]["images"].all():
                continue
            options: dict[str, Any] = {"datasets": [dataset], "methods": list(own["method"]), "prompt": prompt}
            charts = []
            for metric in ("accuracy", "ece"):
                figure = draw("sweep", results, theme="neutral", metric=metric, **options)
                words = f"{METRICS[metric].heading} of {isolated(base)} on {isolated(dataset)}"
                charts.append({"source": _data_uri(figure), "words": words})
            yield {"model": model, "dataset": dataset, "method": base, "prompt": prompt, "charts": charts}


def _run(run: Run) -> dict[str, Any]:
    """Return settings, versions and commands of a run."""
    done, total = run.progress()
    commands = [_option_per_line(command) for command in run.config.commands]
    settings = list(_settings("", run.config.model_dump(mode="json", exclude_defaults=True)))
    return {"folder": str(run.folder), "done": done, "images": total, "commands": commands, "settings": settings}


def _settings(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Flatten nested settings to (dotted name, text); classes and columns are counted."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            if key != "commands":
                yield from _settings(f"{name}.{key}".strip("."), len(each) if key in {"classes", "columns"} else each)
    elif isinstance(value, (list, tuple)) and any(isinstance(each, Mapping) for each in value):
        for each in value:
            yield from _settings(f"{name}.{each.get('name', '')}".rstrip("."), each)
    elif value not in (None, []):
        yield name, ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _lede(every: Sequence[Results]) -> str:
    """Count methods, data sets, images and seeds in one line."""
    methods = {method for each in every for method in each.methods}
    images = {name: each.images_of(name) for each in every for name in each.datasets}
    seeds = {seed for each in every for seed in each.seeds}
    counts = {"method": len(methods), "data set": len(images), "image": sum(images.values()), "seed": len(seeds)}
    return " · ".join(f"{count:,} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items())


def _marked(sentence: str) -> Markup:
    """Mark up the isolated names of a sentence, with non-breaking spaces before units."""
    sentence = sentence.replace(" %", "\u00a0%").replace("p = ", "p\u00a0=\u00a0")
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
