"""``otpt train coop DATASET --shots 16``: learn a prompt from a few labelled images of each class."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from otpt.cli.evaluating import train_medical
from otpt.cli.information.cache import add_cache_options, chosen_cache
from otpt.cli.notes import say
from otpt.cli.options.models import add_model_options, chosen_backbone
from otpt.cli.options.spellings import add_threads_option, add_training_seed, use_threads
from otpt.cli.options.training_data import add_number, add_training_data_options, training_data
from otpt.files import write_atomically
from otpt.learning.recipe import COOP, MAPLE, Epoch, Recipe
from otpt.runs.names import folder_name

if TYPE_CHECKING:
    from otpt.backbones import Backbone
    from otpt.data import Dataset
    from otpt.prompts.learned import LearnedPrompt

_NUMBERS = {
    "shots": "images per class",
    "epochs": "passes over them",
    "batch": "images per step",
    "learning_rate": "after a first epoch at 1e-5",
}
_Trainer: TypeAlias = (
    "Callable[[argparse.Namespace, Backbone, Dataset, Recipe, Callable[[Epoch], None]], LearnedPrompt]"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``train`` and its sub-commands."""
    parser.description = (
        "Learn a prompt from a few labelled images of each class, to start methods such as coop+o-tpt or "
        "maple+o-tpt from."
    )
    below = parser.add_subparsers(metavar="coop|maple|baple|fpt", required=True, parser_class=type(parser))
    coop = below.add_parser(
        "coop",
        help="the context's vectors (CoOp)",
        description="Learn the context's vectors (CoOp). Image features are computed once, so this is quick.",
    )
    _add_common(coop, COOP)
    coop.add_argument(
        "--tokens", type=int, metavar="N", help="a context of N random vectors (default: the set's words)"
    )
    coop.add_argument("--class-specific", action="store_true", help="a separate context per class")
    coop.add_argument(
        "--crops",
        type=int,
        default=COOP.crops,
        metavar="N",
        help="views per image to learn from, including the clean one (default: %(default)s)",
    )
    coop.add_argument(
        "--sigma",
        type=float,
        default=COOP.sigma,
        metavar="X",
        help="Gaussian noise on the views, for an init of PromptSmooth (default: none)",
    )
    add_cache_options(coop)
    add_model_options(coop)
    coop.set_defaults(run=partial(_run, "coop", COOP, _coop))
    maple = below.add_parser(
        "maple",
        help="prompts in both towers (MaPLe)",
        description="Learn prompts in both towers (MaPLe), through both towers: for vision transformers.",
    )
    _add_common(maple, MAPLE)
    maple.add_argument("--tokens", type=int, default=2, metavar="N", help="prompts per layer (default: %(default)s)")
    maple.add_argument(
        "--depth", type=int, metavar="J", help="layers that get prompts (default: 9, or all if there are fewer)"
    )
    add_model_options(maple)
    maple.set_defaults(run=partial(_run, "maple", MAPLE, _maple))
    train_medical.add_commands(below)


def _add_common(parser: argparse.ArgumentParser, recipe: Recipe) -> None:
    add_training_data_options(parser)
    parser.add_argument(
        "-o",
        "--out",
        nargs="+",
        type=Path,
        metavar="FILE",
        help=".safetensors, or any other suffix for a checkpoint that CoOp's and MaPLe's trainers load; several "
        "for both (default: DATASET-METHOD.safetensors)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per epoch, and one at the end")
    group = parser.add_argument_group("training")
    for name, words in _NUMBERS.items():
        add_number(group, name, getattr(recipe, name), words)
    add_training_seed(group, recipe.seed, "shots, crops, order and initialisation")
    add_threads_option(group)


def _run(kind: str, recipe: Recipe, trainer: _Trainer, options: argparse.Namespace) -> int:
    from otpt.prompts.learned import write_learned

    recipe = replace(recipe, **{name: getattr(options, name) for name in (*_NUMBERS, "seed")})
    use_threads(options.threads)
    dataset = training_data(options)
    files = options.out or [Path(f"{folder_name(dataset.name)}-{kind}.safetensors")]
    backbone = chosen_backbone(options)
    epochs: list[Epoch] = []

    def on_epoch(epoch: Epoch) -> None:
        epochs.append(epoch)
        _tell(epoch, recipe.epochs, as_json=options.json)

    learned = trainer(options, backbone, dataset, recipe, on_epoch)
    for path in files:
        write_atomically(path, write_learned(path, learned))
    if options.json:
        print(json.dumps({"files": [str(path) for path in files], "accuracy": epochs[-1].accuracy}))
    else:
        count = sum(min(recipe.shots, own) for own in Counter(dataset.labels).values())
        print(
            f"Learned from {count} images of {len(dataset.class_names)} classes; accuracy on them "
            f"{100 * epochs[-1].accuracy:.1f} %. "
            f"Written: {', '.join(repr(str(path)) for path in files)}."
        )
    return 0


def _coop(
    options: argparse.Namespace, backbone: Backbone, dataset: Dataset, recipe: Recipe, on_epoch: Callable[[Epoch], None]
) -> LearnedPrompt:
    from otpt.learning import train_coop

    return train_coop(
        backbone,
        dataset,
        replace(recipe, crops=options.crops, sigma=options.sigma),
        tokens=options.tokens,
        class_specific=options.class_specific,
        cache=chosen_cache(options),
        on_epoch=on_epoch,
    )


def _maple(
    options: argparse.Namespace, backbone: Backbone, dataset: Dataset, recipe: Recipe, on_epoch: Callable[[Epoch], None]
) -> LearnedPrompt:
    from otpt.learning import train_maple

    return train_maple(backbone, dataset, recipe, depth=options.depth, tokens=options.tokens, on_epoch=on_epoch)


def _tell(epoch: Epoch, epochs: int, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"epoch": epoch.number, "loss": epoch.loss, "accuracy": epoch.accuracy}), flush=True)
        return
    say(f"epoch {epoch.number} of {epochs}: loss {epoch.loss:.4f}, accuracy {100 * epoch.accuracy:.1f} %")
