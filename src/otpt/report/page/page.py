"""One HTML page that holds everything and asks the network for nothing."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from otpt._version import __version__
from otpt.errors import OtptError
from otpt.files import write_atomically
from otpt.report.page import diagrams
from otpt.report.page.content import DatasetContent, dataset_content, sweeps
from otpt.report.page.defaults import IMAGES, TITLE
from otpt.report.page.models import side_by_side
from otpt.report.page.numbers import SHOWN, average_lines, matrix
from otpt.report.page.provenance import an_option_per_line, run_content
from otpt.report.page.summary import summary
from otpt.report.results import Results


def make_page(
    results: Results | Mapping[str, Results],
    *,
    title: str = TITLE,
    root: Path | None = None,
    images: int = IMAGES,
    command: str = "",
) -> str:
    """The page of ``results`` as HTML.

    Args:
        results: of one model, or of several by their names, as :func:`~otpt.report.open_models` gives them.
        root: the folder that holds the data sets, for the thumbnails.
        images: of each kind and data set; 0 for none.
        command: that makes the page again, told at its end.
    """
    if images < 0:
        raise OtptError(f"--images was given {images}; expected 0 or more.")
    models = {_model(results): results} if isinstance(results, Results) else dict(results)
    contents = [
        dataset_content(each, name, model=model, root=root, images=images)
        for model, each in models.items()
        for name in each.datasets
    ]
    lines = {
        model: [line for content in contents if content.model == model for line in content.lines] for model in models
    }
    averages = {model: [replace(line, model=model) for line in average_lines(own)] for model, own in lines.items()}
    datasets = list(dict.fromkeys(content.name for content in contents))
    every = list(models.values())
    style, script = _asset("page.css"), _asset("page.js")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("otpt.report.page", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(marked=marked, signed=signed)
    return environment.get_template("page.html").render(
        title=title,
        lede=lede(every, contents),
        models=list(models),
        several_models=len(models) > 1,
        several_seeds=any(len(each.seeds) > 1 for each in every),
        bins=every[0].bins,
        side=every[0].side,
        summaries={model: summary(each, lines[model], averages[model]) for model, each in models.items()},
        contents={name: [each for each in contents if each.name == name] for name in datasets},
        lines=[line for own in lines.values() for line in own],
        averages=[line for own in averages.values() for line in own],
        matrix=[row for model in models for row in matrix(lines[model], averages[model], datasets, model)],
        side_by_side=side_by_side(lines),
        several_prompts=len({line.prompt for own in lines.values() for line in own}) > 1,
        sets=any(content.sets for content in contents),
        metrics=SHOWN,
        sweeps=sweeps(contents),
        runs=[run_content(run) for each in every for run in each.runs],
        partial=[progress for each in every for progress in each.partial],
        drawing=diagrams,
        command=command and an_option_per_line(command),
        version=__version__,
        policy=content_policy(style, script),
        style=Markup(style),
        script=Markup(script),
    )


def lede(every: Sequence[Results], contents: Sequence[DatasetContent]) -> str:
    """What the page is about, in a line."""
    methods = {method for each in every for method in each.methods}
    images = {content.name: content.images for content in contents}
    seeds = {seed for each in every for seed in each.seeds}
    words = [
        _counted(len(methods), "method"),
        f"{_counted(len(images), 'data set')} ({_counted(sum(images.values()), 'image')})",
        _counted(len(seeds), "seed"),
    ]
    return " · ".join(words)


def marked(sentence: str) -> Markup:
    """A sentence of the summary: its isolated names as elements of their own, no line break before a unit."""
    for plain, kept in ((" %", "\u00a0%"), ("p = ", "p\u00a0=\u00a0")):
        sentence = sentence.replace(plain, kept)
    return Markup(str(escape(signed(sentence))).replace("\u2068", "<bdi>").replace("\u2069", "</bdi>"))


def signed(text: str) -> str:
    """Numbers with a minus sign in place of a hyphen."""
    return re.sub(r"(?<![\w=[-])-(?=\d)", "−", text)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _model(results: Results) -> str:
    return str(results.runs[0].config["backbone"]["name"])


def write_page(path: Path, html: str) -> None:
    """Store the page, whole or not at all."""
    write_atomically(path, html.encode("utf-8", "xmlcharrefreplace"), durable=False)


def content_policy(style: str, script: str) -> str:
    """What the page may do: its own style and script by their hashes, images that it carries, and nothing else."""
    return (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return (resources.files("otpt.report.page") / "templates" / name).read_text(encoding="utf-8")
