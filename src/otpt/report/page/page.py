"""One HTML page that holds everything and asks the network for nothing."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from pathlib import Path

import jinja2
from markupsafe import Markup

from otpt._version import __version__
from otpt.errors import OtptError
from otpt.files import write_atomically
from otpt.report.page import diagrams
from otpt.report.page.content import dataset_content, sweeps
from otpt.report.page.defaults import IMAGES, TITLE
from otpt.report.page.numbers import SHOWN, average_lines, matrix
from otpt.report.page.provenance import run_content
from otpt.report.page.summary import summary
from otpt.report.results import Results


def make_page(
    results: Results, *, title: str = TITLE, root: Path | None = None, images: int = IMAGES, command: str = ""
) -> str:
    """The page of ``results`` as HTML.

    Args:
        root: the folder that holds the data sets, for the thumbnails.
        images: of each kind and data set; 0 for none.
        command: that makes the page again, told at its end.
    """
    if images < 0:
        raise OtptError(f"--images was given {images}; expected 0 or more.")
    contents = [dataset_content(results, name, root=root, images=images) for name in results.datasets]
    lines = [line for content in contents for line in content.lines]
    averages = average_lines(lines)
    style, script = _asset("page.css"), _asset("page.js")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("otpt.report.page", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        title=title,
        results=results,
        summary=summary(results, lines, averages),
        contents=contents,
        lines=lines,
        averages=averages,
        matrix=matrix(lines, averages),
        several_prompts=len({line.prompt for line in lines}) > 1,
        metrics=SHOWN,
        sweeps=sweeps(contents),
        runs=[run_content(run) for run in results.runs],
        partial=results.partial,
        drawing=diagrams,
        command=command,
        version=__version__,
        policy=content_policy(style, script),
        style=Markup(style),
        script=Markup(script),
    )


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
    return resources.files("otpt.report.page").joinpath("templates").joinpath(name).read_text(encoding="utf-8")
