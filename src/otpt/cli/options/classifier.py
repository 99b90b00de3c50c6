"""The classifier that the options of a command describe."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from otpt.cli.options.inits import chosen_inits
from otpt.cli.options.views import chosen_recipe
from otpt.data.dataset import FAMILIES
from otpt.errors import OtptError

if TYPE_CHECKING:
    from otpt.classifier import Classifier
    from otpt.data import ClassList
    from otpt.methods import Method


def add_reject_options(parser: Any) -> None:
    """Whether images that fit none of the classes are marked."""
    from otpt.rejection import DEFAULT_SCORE, SCORES

    parser.add_argument(
        "--reject",
        nargs="?",
        const=DEFAULT_SCORE,
        metavar="SCORE",
        help=f"mark images that fit none of the classes, by {', '.join(SCORES)} (without a name: {DEFAULT_SCORE})",
    )
    parser.add_argument(
        "--reject-threshold", type=float, metavar="T", help="score above which an image is marked (default: its own)"
    )


def chosen_classifier(options: argparse.Namespace, methods: tuple[Method, ...], listed: ClassList) -> Classifier:
    """The classifier that the options describe, classes not yet set; the class list may have settings of its own."""
    from dataclasses import replace

    from otpt.evaluation.sources import find_contexts
    from otpt.rejection import get_threshold

    given = options.prompt is not None or options.prompt_tokens is not None
    if given and not any(method.starts_from_words for method in methods):
        named = ", ".join(method.name for method in methods)
        raise OtptError(f"Words of a prompt were given, but no method starts from words ({named}); leave them out.")
    # what is wrong with learned prompts is told before a large model is read
    contexts = find_contexts(options.context, "images", methods)
    inits = chosen_inits(options, methods)
    if options.reject is not None:
        get_threshold(options.reject, options.reject_threshold)
    from otpt.classifier import load

    return load(
        options.backbone,
        methods[0],
        device=options.device,
        precision=options.precision,
        compile=options.compile,
        architecture=options.architecture,
        quick_gelu=options.quick_gelu,
        family=options.family or listed.family or FAMILIES[0],
        views=replace(chosen_recipe(options), augmix=_first(options.augmix, listed.augmix, True)),
        seed=options.seed,
        official_precision=options.official_precision,
        contexts=list(contexts.values()),
        reject=options.reject,
        reject_threshold=options.reject_threshold,
        **inits,
    )


def _first(*values: bool | None) -> bool:
    """The first that somebody said."""
    return next(value for value in values if value is not None)
