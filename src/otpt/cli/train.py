"""``otpt train coop DATASET``: learn a prompt from a few labelled images."""

from __future__ import annotations

import json as json_lines
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import otpt
from otpt.cli import options as o
from otpt.cli.terminal import say
from otpt.files import write_atomically


@o.option_group("Data")
class TrainingData:
    """Which labelled images to learn from."""

    data: o.Data = None
    classes: o.Classes = None
    split: Annotated[str | None, o.option("split to learn from (default: train; user data have only one)")] = None

    def load(self, spec: str, split: str | None = None) -> otpt.data.Dataset:
        """Load the images."""
        has_splits = otpt.data.find_entry(spec) is not None or spec.startswith(("emoji/", "hf:"))
        split = (self.split or split or "train") if has_splits else "test"
        return otpt.data.load_dataset(spec, root=self.data, classes=o.read_classes(self.classes), split=split)


@o.option_group("Training")
class TrainingOptions:
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


def coop(
    dataset: o.Name,
    /,
    *,
    tokens: Annotated[int | None, o.option("a context of N random vectors (default: the set's words)")] = None,
    class_specific: Annotated[bool, o.option("a separate context per class")] = False,
    crops: Annotated[int, o.option("views per image to learn from, the clean one included")] = 8,
    sigma: Annotated[float, o.option("noise on the views, for an init of PromptSmooth")] = 0.0,
    training: TrainingOptions = TrainingOptions(),
    data: TrainingData = TrainingData(),
    model: o.ModelOptions = o.ModelOptions(),
    cache: o.CacheOptions = o.CacheOptions(),
) -> int:
    """Learn the context's vectors (CoOp), to start methods such as coop+o-tpt from. Image features are computed once,
    so this is quick.

    otpt train coop dtd --data ~/data --shots 16 --out dtd.safetensors
    otpt evaluate dtd --data ~/data --methods coop+o-tpt --context dtd.safetensors
    """
    recipe = replace(otpt.learning.COOP, crops=crops, sigma=sigma)
    more = {"tokens": tokens, "class_specific": class_specific, "cache": cache.open()}
    return _run("coop", otpt.learning.train_coop, data.load(dataset), training, recipe, model, more)


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
    more = {"depth": depth, "tokens": tokens}
    return _run("maple", otpt.learning.train_maple, data.load(dataset), training, otpt.learning.MAPLE, model, more)


def _run(
    kind: str,
    train: Callable[..., Any],
    dataset: otpt.data.Dataset,
    training: TrainingOptions,
    recipe: otpt.learning.Recipe,
    model: o.ModelOptions,
    more: dict[str, Any],
) -> int:
    from otpt.prompts.learned import write_learned

    recipe = replace(recipe, **o.given(training, ("shots", "epochs", "batch", "learning_rate", "seed")))
    o.use_threads(training.threads)
    files = training.out or (Path(f"{otpt.runs.folder_name(dataset.name)}-{kind}.safetensors"),)
    accuracy = 0.0

    def on_epoch(epoch: otpt.learning.Epoch) -> None:
        nonlocal accuracy
        accuracy = epoch.accuracy
        if training.json:
            row = {"epoch": epoch.number, "loss": epoch.loss, "accuracy": epoch.accuracy}
            print(json_lines.dumps(row), flush=True)
        else:
            say(f"epoch {epoch.number} of {recipe.epochs}: loss {epoch.loss:.4f}, accuracy {100 * accuracy:.1f} %")

    learned = train(model.load(), dataset, recipe, **more, on_epoch=on_epoch)
    for path in files:
        write_atomically(path, write_learned(path, learned))
    if training.json:
        print(json_lines.dumps({"files": [str(path) for path in files], "accuracy": accuracy}))
    else:
        count = sum(min(recipe.shots, own) for own in Counter(dataset.labels).values())
        print(
            f"Learned from {count} images of {len(dataset.class_names)} classes; accuracy on them "
            f"{100 * accuracy:.1f} %. Written: {', '.join(repr(str(path)) for path in files)}."
        )
    return 0
