"""Options that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otpt.cli.class_names import add_classes_option, chosen_classes, take_back_datasets
from otpt.cli.inits import add_init_options, chosen_inits
from otpt.cli.spellings import add_methods_option, add_seeds_option, add_settings_option
from otpt.data.dataset import DEFAULT_PROMPT, FAMILIES
from otpt.errors import OtptError
from otpt.report.defaults import LEVEL
from otpt.runs.format import VIEW_KEYS

if TYPE_CHECKING:
    from otpt.backbones import Backbone
    from otpt.classifier import Classifier
    from otpt.data import ClassList, Dataset
    from otpt.methods import Method
    from otpt.prompts import Prompt
    from otpt.views import ViewRecipe

DEFAULT_BACKBONE = "ViT-B-16/openai"


def flag(name: str) -> str:
    """An option as it is typed: ``cache_size`` → ``--cache-size``."""
    return f"--{name.replace('_', '-')}"


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Model, device, precision and compiling."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--backbone",
        default=DEFAULT_BACKBONE,
        metavar="SPEC",
        help="open_clip NAME/TAG, hf-hub:…, local-dir:…, a checkpoint file (default: %(default)s; see 'otpt models')",
    )
    group.add_argument(
        "--architecture",
        metavar="NAME",
        help="open_clip architecture of a checkpoint file, if it cannot be inferred",
    )
    group.add_argument(
        "--quick-gelu",
        action=argparse.BooleanOptionalAction,
        help="the activation that the weights were trained with (default: by tag, archive or configuration)",
    )
    group.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps (default: %(default)s)")
    group.add_argument(
        "--precision",
        default="float32",
        help="float32, bf16 or fp16 (autocast of the image tower), bf16-both or fp16-both (of both towers), float64 "
        "(default: %(default)s)",
    )
    add_compile_option(group)


def add_compile_option(group: argparse._ActionsContainer) -> None:
    """Compiled or not."""
    words = "torch.compile the image tower, on CUDA with CUDA graphs; takes a minute or so"
    group.add_argument("--compile", action="store_true", help=words)


def chosen_backbone(options: argparse.Namespace) -> Backbone:
    """The model of :func:`add_model_options`."""
    from otpt.backbones import load_backbone

    return load_backbone(
        options.backbone,
        device=options.device,
        precision=options.precision,
        compile=options.compile,
        architecture=options.architecture,
        quick_gelu=options.quick_gelu,
    )


def add_method_options(parser: argparse.ArgumentParser) -> None:
    """Which methods, on which prompt and views."""
    from otpt.methods.registry import DEFAULT_METHOD

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
    group.add_argument(
        "--context",
        nargs="+",
        default=[],
        metavar="FILE",
        help="learned prompts of CoOp, CoCoOp or MaPLe, for methods that start from one (coop+o-tpt)",
    )
    group.add_argument(
        "--attributes",
        metavar="FILE",
        help="attributes of the classes, for methods that start from them (tca): JSON or TOML, class = [attribute, …]",
    )
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
    add_init_options(group)
    add_plugin_option(group)


def add_intervals_option(parser: argparse.ArgumentParser) -> None:
    """Intervals beside the numbers of a run."""
    parser.add_argument(
        "--intervals",
        nargs="?",
        type=float,
        const=LEVEL,
        metavar="LEVEL",
        help=f"bootstrap intervals over images, of {100 * LEVEL:g} %% by default",
    )


def add_view_key_option(parser: Any) -> None:
    """What the random views of an image are keyed by, beside the seed."""
    parser.add_argument(
        "--view-key",
        choices=VIEW_KEYS,
        default=VIEW_KEYS[0],
        help="what keys the views of an image: its decoded pixels, or the bytes of its file, as runs of earlier "
        "versions did (default: %(default)s)",
    )


def add_plugin_option(parser: Any) -> None:
    """Files with the user's own functions."""
    parser.add_argument(
        "--plugin",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="Python files: their @otpt.objective, @otpt.calibration, @otpt.aggregation … become parts of names",
    )


def add_reject_options(parser: Any) -> None:
    """Whether images that fit none of the classes are marked."""
    from otpt.rejection.registry import DEFAULT_SCORE, SCORES

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


def load_plugins(options: argparse.Namespace) -> None:
    """Run the plugins, before methods are looked up."""
    from otpt.methods import load_plugin

    for path in options.plugin:
        load_plugin(path)


def chosen_methods(options: argparse.Namespace) -> tuple[Method, ...]:
    """The methods that were asked for, with ``--set`` applied to each that has the setting."""
    from otpt.methods import get_methods

    settings = {}
    for item in options.settings:
        name, equals, value = item.partition("=")
        if not equals or not name or not value:
            raise OtptError(f"--set was given {item!r}; expected NAME=VALUE, such as lambda=6.")
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


def add_views_options(parser: Any) -> None:
    """How many views of an image are made."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--views", type=int, metavar="N", help="views per image, including the clean one (default: 64)")
    group.add_argument(
        "--budget",
        type=int,
        metavar="N",
        help="at most N views per image, and fewer where the first 8, or 32, agree on the label",
    )


def chosen_recipe(options: argparse.Namespace) -> ViewRecipe:
    """The views that the options describe."""
    from otpt.views import ViewRecipe

    if options.budget is not None:
        return ViewRecipe.within(options.budget)
    return ViewRecipe() if options.views is None else ViewRecipe(n_views=options.views)


def chosen_classifier(options: argparse.Namespace, methods: tuple[Method, ...], listed: ClassList) -> Classifier:
    """The classifier that the options describe, classes not yet set; the class list may have settings of its own."""
    from dataclasses import replace

    from otpt.evaluation.contexts import find_contexts
    from otpt.rejection.registry import chosen_threshold

    given = options.prompt is not None or options.prompt_tokens is not None
    if given and not any(method.starts_from_words for method in methods):
        named = ", ".join(method.name for method in methods)
        raise OtptError(f"Words of a prompt were given, but no method starts from words ({named}); leave them out.")
    # what is wrong with learned prompts is told before a large model is read
    contexts = find_contexts(options.context, "images", methods)
    inits = chosen_inits(options, methods)
    if options.reject is not None:
        chosen_threshold(options.reject, options.reject_threshold)
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
        recipe=replace(chosen_recipe(options), augmix=_first(options.augmix, listed.augmix, True)),
        seed=options.seed,
        official_precision=options.official_precision,
        contexts=list(contexts.values()),
        reject=options.reject,
        reject_threshold=options.reject_threshold,
        view_key=options.view_key,
        **inits,
    )


def _first(*values: bool | None) -> bool:
    """The first that somebody said."""
    return next(value for value in values if value is not None)


def chosen_prompt(options: argparse.Namespace, listed: ClassList) -> Prompt:
    """The words that the options describe, or else the file of class names."""
    from otpt.prompts import Prompt

    words = options.prompt if options.prompt is not None else listed.prompt
    return Prompt(DEFAULT_PROMPT if words is None else words, tokens=options.prompt_tokens)


def add_training_data_options(parser: argparse.ArgumentParser) -> None:
    """Which labelled images to learn from, and where they are."""
    parser.add_argument(
        "dataset",
        nargs="?",
        metavar="DATASET",
        help="a name (see 'otpt datasets'), or your own folder, table or shards",
    )
    parser.add_argument("--data", type=Path, metavar="ROOT", help="folder with the data sets")
    add_classes_option(parser)
    parser.add_argument("--split", help="split to learn from (default: train; your own data have only one)")


def has_splits(spec: str) -> bool:
    """Whether a data set may have other splits than "test", the only one of user data."""
    from otpt.data import find_entry

    return find_entry(spec) is not None or spec.startswith(("emoji/", "hf:"))


def training_data(options: argparse.Namespace) -> Dataset:
    """The data set that the options describe."""
    from otpt.data import load_dataset

    take_back_datasets(options, "dataset")
    spec = options.dataset
    split = options.split or ("train" if has_splits(spec) else "test")
    return load_dataset(spec, root=options.data, classes=chosen_classes(options), split=split)
