"""``otpt sweep DATASET… --method o-tpt --set lambda=0,1,2,6,18,54``: one method under many settings or prompts."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from otpt.cli.evaluating.evaluate import add_dataset_options, add_run_options, run_evaluation
from otpt.cli.notes import tell
from otpt.cli.options.inits import add_init_options
from otpt.cli.options.methods import load_plugins
from otpt.cli.options.models import add_model_options
from otpt.cli.options.spellings import add_methods_option, add_settings_option
from otpt.errors import OtptError
from otpt.evaluation.sweeps import IMAGENET_80, parse_values, read_templates, sweep_method, template_prompt

if TYPE_CHECKING:
    from otpt.prompts import Prompt


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``sweep``."""
    parser.description = (
        "Run methods under all combinations of settings and under many prompts, in one pass: images are "
        "encoded once and the entropy's gradient is shared."
    )
    add_dataset_options(parser)
    add_methods_option(parser, default=["o-tpt"], words="(default: o-tpt)")
    add_settings_option(
        parser,
        "values of a setting: lambda=0,1,2,6,18,54; several settings give all combinations",
        metavar="NAME=V1,V2,…",
    )
    parser.add_argument(
        "--prompts",
        nargs="+",
        metavar="TEXT",
        help="prompts, with {} for the class name or without it before the name; @FILE with one per line; or "
        f"{IMAGENET_80} for CLIP's 80",
    )
    add_init_options(parser)
    add_run_options(parser)
    add_model_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Evaluate all variants and print."""
    from otpt.methods import get_methods

    load_plugins(options)
    values = parse_values(options.settings)
    if not values and options.prompts is None:
        raise OtptError("Nothing to sweep over: give values after --set, such as lambda=0,1,2,6, or --prompts @FILE.")
    methods = [variant for method in get_methods(options.methods) for variant in sweep_method(method, values)]
    prompts = None if options.prompts is None else [each for word in options.prompts for each in _prompts(word)]
    return run_evaluation(options, methods, prompts, all_tokens=prompts is not None)


def _prompts(word: str) -> list[Prompt]:
    """The prompts that a word after ``--prompts`` stands for; without ``{}`` it goes before the class name."""
    from otpt.prompts import Prompt

    if word.startswith("@"):
        return read_templates(os.path.expanduser(word[1:]))
    if word == IMAGENET_80:
        return read_templates(word)
    if "{}" in word:
        return [template_prompt(word)]
    if " " in word.strip() and not os.path.exists(word):
        return [Prompt(word)]
    tell(f"--prompts {word} is an old spelling; write --prompts @{word}.")
    return read_templates(word)
