"""``otpt certify DATASET``: radii within which PromptSmooth's prediction cannot change."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from otpt.cli.evaluating import evaluate
from otpt.cli.options import medical
from otpt.cli.options.inits import add_init_options
from otpt.cli.options.methods import chosen_methods, load_plugins
from otpt.cli.options.models import add_model_options
from otpt.cli.options.spellings import add_methods_option, add_settings_option
from otpt.cli.terminal import Column, print_columns
from otpt.errors import OtptError

if TYPE_CHECKING:
    from otpt.methods import Method
    from otpt.runs import Run

RADII = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
_METHODS = ("promptsmooth", "promptsmooth+o-tpt")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``certify``."""
    parser.description = (
        "Tune a prompt for each image on noisy copies of it, then certify its class by randomised smoothing: an "
        "evaluation whose rows also have a radius. An interrupted run resumes when the command is repeated. Exit code "
        "3 if images could not be read."
    )
    evaluate.add_dataset_options(parser)
    add_methods_option(parser, default=_METHODS, words=f"(default: {' '.join(_METHODS)})")
    add_settings_option(parser, "override hyper-parameters: lambda=6 …")
    evaluate.add_prompt_option(parser)
    add_init_options(parser)
    evaluate.add_run_options(parser)
    parser.add_argument(
        "--selection", type=int, metavar="N", help=f"votes for the class (default: {medical.DEFAULTS.selection})"
    )
    add_model_options(parser)
    parser.set_defaults(run=run, seeds=[3])


def run(options: argparse.Namespace) -> int:
    """Certify and print."""
    load_plugins(options)
    methods = [_certified(method) for method in chosen_methods(options)]
    return evaluate.run_evaluation(options, methods, evaluate.chosen_prompts(options), print_found=_print)


def _certified(method: Method) -> Method:
    """The method, with the votes and the radius of a certificate."""
    if method.adapt != "promptsmooth":
        raise OtptError(f"Method {method.name!r} has no certificate; expected {' or '.join(_METHODS)}.")
    if method.aggregate == "certificate":
        return method
    return replace(method, name=f"{method.name}+certificate", aggregate="certificate")


def _print(run: Run, methods: Sequence[Method], *, as_json: bool) -> None:
    from otpt.report.classes import certified_accuracy

    found = {method.name: certified_accuracy(run, method.name, RADII) for method in methods}
    if as_json:
        shown = [
            {
                "method": name,
                "certified_accuracy": {f"{radius:g}": value for radius, value in accuracy.items()},
                "abstained": abstained,
            }
            for name, (accuracy, abstained) in found.items()
        ]
        print(json.dumps({"run": str(run.folder), "methods": shown}, indent=2))
        return
    by_radius = {radius: [_percent(accuracy[radius]) for accuracy, _ in found.values()] for radius in RADII}
    print_columns(
        [
            Column("certified accuracy %", list(found), is_name=True),
            *(Column(f"r ≥ {radius:g}", cells) for radius, cells in by_radius.items()),
            Column("abstained %", [_percent(abstained) for _, abstained in found.values()]),
        ]
    )
    print(f"Certificates are in the rows of {str(run.folder)!r}, columns 'radius' and 'lower_bound'.")


def _percent(fraction: float | None) -> str:
    return "–" if fraction is None else f"{100 * fraction:.2f}"
