"""Which methods, on which prompt, with whose functions."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otpt.cli.options.inits import add_init_options
from otpt.cli.options.spellings import add_methods_option, add_seeds_option, add_settings_option
from otpt.cli.options.views import add_view_key_option, add_views_options
from otpt.data.dataset import DEFAULT_PROMPT, FAMILIES
from otpt.errors import OtptError

if TYPE_CHECKING:
    from otpt.data import ClassList
    from otpt.methods import Method
    from otpt.prompts import Prompt


def add_method_options(parser: argparse.ArgumentParser) -> None:
    """Which methods, on which prompt and views."""
    from otpt.settings import DEFAULT_METHOD

    group = parser.add_argument_group("method")
    add_methods_option(
        group,
        default=[DEFAULT_METHOD],
        words=f"one or more method names (see 'otpt methods'), or a TOML file (default: {DEFAULT_METHOD})",
    )
    add_settings_option(group, "override hyper-parameters: lambda=6, steps=2, learning-rate=0.01, temperature=1.3 …")
    group.add_argument(
        "--family",
        choices=FAMILIES,
        help="which λ to use (default: fine-grained, or what the file of class names says)",
    )
    group.add_argument(
        "--prompt",
        metavar="WORDS",
        help=f"context, [CLS] for a class name in the middle (default: {DEFAULT_PROMPT!r})",
    )
    group.add_argument(
        "--prompt-tokens",
        type=int,
        metavar="N",
        help="number of its tokens to tune, if words are not single tokens",
    )
    add_init_options(group, of_data_sets=False)
    add_views_options(group)
    group.add_argument(
        "--augmix",
        action=argparse.BooleanOptionalAction,
        help="AugMix, or crops and flips only as for ImageNet (default: on, or what the file of class names says)",
    )
    add_seeds_option(group, default=[0], words="seed of the views (default: 0)", dest="seed", several=False)
    add_view_key_option(group)
    group.add_argument(
        "--official-precision",
        action="store_true",
        help="round logits and softmax to float16 as the official scripts do",
    )
    add_plugin_option(group)


def add_plugin_option(parser: Any) -> None:
    """Files with the user's own functions."""
    parser.add_argument(
        "--plugin",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="Python files: their @otpt.objective, @otpt.calibrator, @otpt.aggregation … become parts of names",
    )


def load_plugins(options: argparse.Namespace) -> None:
    """Run the plugins, before methods are looked up."""
    from otpt.methods import load_plugin

    for path in options.plugin:
        load_plugin(path)


def chosen_methods(options: argparse.Namespace) -> tuple[Method, ...]:
    """The methods that were asked for, with ``--set`` applied to each that has the setting."""
    from otpt.methods import get_methods

    settings: dict[str, str] = {}
    for item in options.settings:
        name, equals, value = item.partition("=")
        if not equals or not name or not value:
            raise OtptError(f"--set was given {item!r}; expected NAME=VALUE, such as lambda=6.")
        if name in settings:
            raise OtptError(f"--set names {name!r} twice ({settings[name]}, {value}); expected one value.")
        settings[name] = value
    methods = get_methods(options.methods)
    if "calibrate" in settings:  # first, since a temperature may come with it
        calibration = {"calibrate": settings.pop("calibrate")}
        methods = tuple(method.override(calibration) for method in methods)
    for name in settings:
        if not any(method.has_setting(name) for method in methods):
            methods[0].override({name: settings[name]})  # says why not
    return tuple(
        method.override({name: value for name, value in settings.items() if method.has_setting(name)})
        for method in methods
    )


def chosen_prompt(options: argparse.Namespace, listed: ClassList) -> Prompt:
    """The words that the options describe, or else the file of class names."""
    from otpt.prompts import Prompt

    words = options.prompt if options.prompt is not None else listed.prompt
    return Prompt(DEFAULT_PROMPT if words is None else words, tokens=options.prompt_tokens)
