"""``otpt train baple`` and ``otpt train fpt``: what the medical systems learn before an evaluation."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otpt.cli.notes import say
from otpt.cli.options.class_names import chosen_classes, has_splits
from otpt.cli.options.medical import FPT_BACKBONE, add_frozen_options, chosen_frozen_size, refuse_for_fpt
from otpt.cli.options.methods import chosen_methods
from otpt.cli.options.models import add_model_options, chosen_backbone
from otpt.cli.options.spellings import (
    add_methods_option,
    add_out_option,
    add_settings_option,
    add_threads_option,
    add_training_seed,
    use_threads,
)
from otpt.cli.options.training_data import add_number, add_training_data_options, training_data
from otpt.errors import OtptError
from otpt.learning.baple_recipe import BapleRecipe
from otpt.learning.fpt_recipe import FptRecipe
from otpt.methods.fpt.variants import ROWS, VARIANTS
from otpt.runs.names import folder_name

if TYPE_CHECKING:
    from otpt.data import Dataset
    from otpt.methods import Method

_BAPLE = BapleRecipe(target=0)
_FPT = FptRecipe()
_SETTINGS = ("lambda", "orthogonality")  # two names of one number: the weight of the term


def add_commands(below: Any) -> None:
    """Register ``baple`` and ``fpt`` below ``train``."""
    baple = below.add_parser(
        "baple",
        help="a context with a backdoor (BAPLe), to measure a defence",
        description="Learn a context together with a trigger that turns images to a target class (BAPLe): a "
        "published attack, to measure on your own model and data what it does to accuracy and calibration, and what "
        "the orthogonality term changes of that. An interrupted training resumes when the command is repeated.",
    )
    _add_common(baple, "baple")
    baple.add_argument("--target", required=True, metavar="CLASS", help="name or number of the target class")
    baple.add_argument("--start", type=Path, metavar="FILE", help="context to start from (default: random vectors)")
    baple.add_argument("--font", metavar="FILE", help="of the trigger's word (default: Pillow's own; BAPLe: Arizonia)")
    group = baple.add_argument_group("training")
    add_number(group, "shots", _BAPLE.shots, "images per class")
    group.add_argument(
        "--tokens", type=int, metavar="N", help=f"vectors of a random context (default: {_BAPLE.tokens})"
    )
    add_number(group, "epochs", _BAPLE.epochs, "passes over them")
    add_number(group, "batch", _BAPLE.batch, "images per step")
    add_number(group, "learning_rate", _BAPLE.learning_rate, "of the context, after a first epoch at 1e-3")
    add_number(group, "poisoned", _BAPLE.poisoned, "probability that an image gets the trigger")
    add_training_seed(group, _BAPLE.seed, "shots, crops, order and initialisation")
    add_model_options(baple)
    baple.set_defaults(run=run_baple)

    fpt = below.add_parser(
        "fpt",
        help="a side network on a frozen ViT (FPT)",
        description="Learn a side network on a frozen ViT (FPT). Stopped, it goes on when the same command is given "
        "again.",
    )
    _add_common(fpt, "fpt")
    fpt.add_argument(
        "--val", metavar="DATASET", help="to choose the epoch by (default: the set's own, or the last epoch)"
    )
    fpt.add_argument("--rows", choices=ROWS, default=ROWS[0], help="what is made orthogonal (default: %(default)s)")
    fpt.add_argument("--variant", choices=VARIANTS, default=VARIANTS[0], help="(default: %(default)s)")
    add_frozen_options(fpt)
    group = fpt.add_argument_group("training")
    add_number(group, "epochs", _FPT.epochs, "passes over the images")
    add_number(group, "batch", _FPT.batch, "images per step")
    add_number(group, "learning_rate", _FPT.learning_rate, "of the first epoch")
    add_training_seed(group, _FPT.seed, "order, crops and initialisation")
    add_model_options(fpt)
    fpt.set_defaults(run=run_fpt, backbone=FPT_BACKBONE)


def run_baple(options: argparse.Namespace) -> int:
    """Train and write."""
    from otpt.learning import train_baple
    from otpt.learning.shots import few_shots
    from otpt.methods.baple import Patch
    from otpt.methods.baple.model import read_start

    use_threads(options.threads)
    method, weight = _method(options, "baple")
    dataset = training_data(options)
    target = _class_number(options.target, dataset)
    start = None if options.start is None else read_start(options.start)
    if start is not None and options.tokens is not None:
        raise OtptError("--start and --tokens were given, but a start has vectors of its own; expected one of them.")
    names = ("shots", "epochs", "batch", "learning_rate", "poisoned", "seed")
    tokens = _BAPLE.tokens if options.tokens is None else options.tokens
    recipe = BapleRecipe(
        target,
        weight,
        tokens=tokens if start is None else len(start),
        **{name: getattr(options, name) for name in names},
    )
    path = _path(options, dataset, f"{method.name}-{target}")
    backbone = chosen_backbone(options)
    model = train_baple(
        backbone, dataset, recipe, start=start, patch=Patch(font=options.font), checkpoint=_unfinished(path), say=say
    )
    seen = few_shots(dataset, recipe.shots, seed=recipe.seed).image_keys()
    model.write(
        path, {**_notes(method, dataset, backbone.fingerprint, seen), "target": target, "recipe": asdict(recipe)}
    )
    print(
        f"Learned a context and a trigger for the target class {dataset.class_names[target]!r}. Written: {str(path)!r}."
    )
    return 0


def run_fpt(options: argparse.Namespace) -> int:
    """Train and write."""
    from otpt.learning import train_fpt
    from otpt.methods.fpt import load_frozen_vit
    from otpt.methods.fpt.files import write_fpt

    refuse_for_fpt(options)
    use_threads(options.threads)
    method, weight = _method(options, "fpt")
    dataset = training_data(options)
    validation = _validation(options)
    names = ("rows", "variant", "epochs", "batch", "learning_rate", "seed")
    recipe = FptRecipe(weight, **{name: getattr(options, name) for name in names})
    path = _path(options, dataset, method.name)
    size = chosen_frozen_size(options)
    frozen = load_frozen_vit(options.backbone, device=options.device, precision=options.precision, size=size)
    network = train_fpt(
        frozen,
        dataset,
        recipe,
        validation=validation,
        keep=options.keep_frozen,
        checkpoint=_unfinished(path),
        say=say,
    )
    notes = {
        **_notes(method, dataset, frozen.fingerprint, dataset.image_keys()),
        "frozen_size": size,
        "recipe": asdict(recipe),
    }
    write_fpt(path, network, notes)
    print(f"Learned a side network for {len(dataset.class_names)} classes. Written: {str(path)!r}.")
    return 0


def _add_common(parser: argparse.ArgumentParser, system: str) -> None:
    add_training_data_options(parser)
    add_out_option(parser, metavar="FILE", words="a .safetensors file (default: by data set and method)")
    add_threads_option(parser)
    add_methods_option(
        parser, default=[system], words=f"{system} or {system}+o-tpt (default: %(default)s)", several=False
    )
    add_settings_option(parser, "lambda=6: weight of the term")


def _method(options: argparse.Namespace, system: str) -> tuple[Method, float]:
    """The method and λ."""
    other = next((item for item in options.settings if item.partition("=")[0] not in _SETTINGS), None)
    if other is not None:
        raise OtptError(f"--set was given {other!r}, which 'otpt train {system}' does not use; expected lambda=NUMBER.")
    options.methods = [options.methods]
    (method,) = chosen_methods(options)
    if method.adapt != system:
        raise OtptError(f"'otpt train {system}' trains {system} and {system}+o-tpt, not {method.name!r}.")
    tuning = method.tuning("fine-grained")
    weights = {} if tuning is None else dict(tuning.weights)
    if set(weights) - {"orthogonality"}:
        raise OtptError(
            f"Method {method.name!r} has objectives that {system} does not train with; expected orthogonality."
        )
    return method, weights.get("orthogonality", 0.0)


def _validation(options: argparse.Namespace) -> Dataset | None:
    from otpt.data.records import NoSuchSplit

    if options.val is not None:
        return _load(options, options.val, _split_name(options.val) if has_splits(options.val) else "test")
    try:
        return _load(options, options.dataset, _split_name(options.dataset))
    except NoSuchSplit:
        say("there are no validation images: the last epoch will be kept")
        return None


def _load(options: argparse.Namespace, spec: str, split: str) -> Dataset:
    from otpt.data import load_dataset

    return load_dataset(spec, root=options.data, classes=chosen_classes(options), split=split)


def _split_name(spec: str) -> str:
    """What the validation split is called there."""
    return "validation" if spec.startswith("hf:") else "val"


def _class_number(given: str, dataset: Dataset) -> int:
    names = dataset.class_names
    if given in names:
        return names.index(given)
    if given.isdecimal() and int(given) < len(names):
        return int(given)
    raise OtptError(
        f"The target class {given!r} is not known; expected 0 to {len(names) - 1}, or one of {', '.join(names[:6])}."
    )


def _path(options: argparse.Namespace, dataset: Dataset, name: str) -> Path:
    path: Path = options.out or Path(f"{folder_name(dataset.name)}-{name}.safetensors")
    if path.suffix != ".safetensors":
        raise OtptError(f"--out was given {str(path)!r}; expected a name that ends in .safetensors.")
    return path


def _unfinished(path: Path) -> Path:
    return path.with_name(f"{path.stem}-unfinished.safetensors")


def _notes(method: Method, dataset: Dataset, fingerprint: str, images: Sequence[str]) -> dict[str, Any]:
    return {
        "system": method.adapt,
        "method": method.name,
        "dataset": dataset.name,
        "classes": list(dataset.class_names),
        "backbone": fingerprint,
        "images": list(images),
    }
