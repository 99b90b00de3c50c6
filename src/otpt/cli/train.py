"""``otpt train coop DATASET``: learn a prompt from a few labelled images."""

from __future__ import annotations

import json as json_lines
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

from otpt.cli import options as o
from otpt.cli.terminal import say
from otpt.data import Dataset, find_entry, load_dataset
from otpt.files import write_atomically
from otpt.learning import COOP, MAPLE, Epoch, Recipe, train_coop, train_maple
from otpt.prompts.learned import CoopContext, MaplePrompts, write_learned
from otpt.runs import folder_name

OnEpoch = Callable[[Epoch], None]


@o.option_group("Data")
class TrainingData(o.Options):
    """Which labelled images to learn from."""

    data: o.Data = None
    classes: o.Classes = None
    split: Annotated[str | None, o.option("split to learn from (default: train; user data have only one)")] = None

    def load(self, spec: str, split: str | None = None) -> Dataset:
        """Load the images."""
        has_splits = find_entry(spec) is not None or spec.startswith(("emoji/", "hf:"))
        split = (self.split or split or "train") if has_splits else "test"
        return load_dataset(spec, root=self.data, classes=o.read_classes(self.classes), split=split)


@o.option_group("Training")
class TrainingOptions(o.Options):
    """Numbers of the training; the published ones by default."""

    out: Annotated[
        tuple[Path, ...],
        o.out(".safetensors, or another suffix for a checkpoint of CoOp's and MaPLe's trainers (default: by data set)"),
    ] = ()
    json: Annotated[bool, o.option("print one JSON object per epoch, and one at the end")] = False
    shots: Annotated[int | None, o.option("images per class (default: 16)")] = None
    epochs: Annotated[int | None, o.option("passes over them (default: 50; maple: 5)")] = None
    batch: Annotated[int | None, o.option("images per step (default: 32; maple: 4)")] = None
    learning_rate: Annotated[float | None, o.option("after a first epoch at 1e-5 (default: 0.002; maple: 0.0035)")] = (
        None
    )
    seed: Annotated[int | None, o.seeds("seed of shots, crops, order and initial values (default: 1)")] = None
    threads: o.Threads = None

    def recipe(self, published: Recipe) -> Recipe:
        """Return the published recipe with the given numbers in their places."""
        names = {field.name for field in fields(Recipe)}
        numbers = {name: value for name, value in self.given().items() if name in names}
        return replace(published, **numbers)  # type: ignore[arg-type]


@o.option_group("Options")
class CoopOptions(o.Options):
    """Shape of the context, and the views that it is learned from."""

    tokens: Annotated[int | None, o.option("a context of N random vectors (default: the set's words)")] = None
    class_specific: Annotated[bool, o.option("a separate context per class")] = False
    crops: Annotated[int, o.option("views per image to learn from, the clean one included")] = 8
    sigma: Annotated[float, o.option("standard deviation of noise on the views")] = 0.0


def coop(
    dataset: o.Name,
    /,
    *,
    context: CoopOptions = CoopOptions(),
    training: TrainingOptions = TrainingOptions(),
    data: TrainingData = TrainingData(),
    model: o.ModelOptions = o.ModelOptions(),
    cache: o.CacheOptions = o.CacheOptions(),
) -> int:
    """Learn the context's vectors (CoOp), to start methods such as coop+o-tpt from. Image features are computed once,
    so this is quick.

    otpt train coop dtd --data ~/data --shots 16 --out dtd.safetensors
    otpt evaluate dtd --data ~/data --methods coop+o-tpt --set context=dtd.safetensors
    """
    images = data.load(dataset)
    recipe = training.recipe(replace(COOP, crops=context.crops, sigma=context.sigma))

    def train(on_epoch: OnEpoch) -> CoopContext:
        return train_coop(
            model.load(),
            images,
            recipe,
            tokens=context.tokens,
            class_specific=context.class_specific,
            cache=cache.open(),
            on_epoch=on_epoch,
        )

    return _train("coop", train, images, recipe, training)


def maple(
    dataset: o.Name,
    /,
    *,
    tokens: Annotated[int, o.option("prompts per layer")] = 2,
    depth: Annotated[int | None, o.option("layers with prompts (default: 9, or all if there are fewer)")] = None,
    training: TrainingOptions = TrainingOptions(),
    data: TrainingData = TrainingData(),
    model: o.ModelOptions = o.ModelOptions(),
) -> int:
    """Learn prompts in both towers of a vision transformer (MaPLe), to start methods such as maple+o-tpt from.

    otpt train maple dtd --data ~/data --out dtd-maple.safetensors
    """
    images = data.load(dataset)
    recipe = training.recipe(MAPLE)

    def train(on_epoch: OnEpoch) -> MaplePrompts:
        return train_maple(model.load(), images, recipe, depth=depth, tokens=tokens, on_epoch=on_epoch)

    return _train("maple", train, images, recipe, training)


def _train(
    kind: str,
    train: Callable[[OnEpoch], CoopContext | MaplePrompts],
    dataset: Dataset,
    recipe: Recipe,
    training: TrainingOptions,
) -> int:
    """Train with progress, and write what was learned."""
    o.use_threads(training.threads)
    paths = training.out or (Path(f"{folder_name(dataset.name)}-{kind}.safetensors"),)
    accuracy = 0.0

    def on_epoch(epoch: Epoch) -> None:
        nonlocal accuracy
        accuracy = epoch.accuracy
        if training.json:
            row = {"epoch": epoch.number, "loss": epoch.loss, "accuracy": epoch.accuracy}
            print(json_lines.dumps(row), flush=True)
        else:
            say(f"epoch {epoch.number} of {recipe.epochs}: loss {epoch.loss:.4f}, accuracy {100 * accuracy:.1f} %")

    learned = train(on_epoch)
    for path in paths:
        write_atomically(path, write_learned(path, learned))
    if training.json:
        print(json_lines.dumps({"files": [str(path) for path in paths], "accuracy": accuracy}))
    else:
        images = sum(min(recipe.shots, count) for count in Counter(dataset.labels).values())
        print(
            f"Learned from {images} images of {len(dataset.class_names)} classes; accuracy on them "
            f"{100 * accuracy:.1f} %. Written: {', '.join(repr(str(path)) for path in paths)}."
        )
    return 0
