"""Run folders of any size without a model: simulated predictions, written as a real run writes its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from oracles.models.tiny import tiny_backbone

from otpt.backbones import Backbone
from otpt.data import Dataset, find_entry
from otpt.data.dataset import Conventions
from otpt.evaluation import Evaluation
from otpt.evaluation.evaluator import dataset_configs, run_config
from otpt.methods import Output
from otpt.runs import Run, ShardRows, write_metrics

INITIAL = 0.76
# How much a method sharpens the logits, and mean and spread of the similarity of its text features.
MANNERS = {
    "zero-shot": (1.7, INITIAL, 0.0),
    "tpt": (2.6, 0.775, 0.012),
    "c-tpt": (1.95, 0.742, 0.007),
    "o-tpt": (1.65, 0.721, 0.005),
    "tpt+ts": (2.1, 0.775, 0.012),
}
_OTHER = (2.0, 0.75, 0.006)


@cache
def backbone() -> Backbone:
    """The model that the configurations name."""
    return tiny_backbone("vit")


def simulated_dataset(name: str, classes: int = 20, images: int = 200) -> Dataset:
    return Dataset(
        name,
        [f"class {i}" for i in range(classes)],
        ids=[f"{name}/{i:05d}.jpg" for i in range(images)],
        labels=[i % classes for i in range(images)],
        images=lambda index: b"",
    )


def registered(name: str, images: int = 20, *, official_names: bool = False, augmix: bool = True) -> Dataset:
    """A data set with the registered classes, and so many images that are never read."""
    entry = find_entry(name)
    assert entry is not None
    names = list(entry.class_list(official_names=official_names).names)
    found = simulated_dataset(name, len(names), images)
    return Dataset(
        name,
        names,
        ids=found.ids,
        labels=found.labels,
        images=lambda index: b"",
        conventions=Conventions(family=entry.family, augmix=augmix),
    )


def simulate_run(
    folder: Path,
    datasets: Sequence[Dataset],
    settings: Evaluation,
    *,
    items: int | None = None,
    model: str | None = None,
    output: Callable[[Dataset, int, tuple[str, str], int], Output] | None = None,
) -> Path:
    """The run of ``settings`` on ``datasets``, new or grown, or only the first ``items`` of what is missing; ``model``
    is what it says of its model, as "ViT-B-16/openai"; ``output`` what methods say, :func:`simulated_output` unless
    given."""
    config = run_config(backbone(), dataset_configs(datasets, settings), settings)
    if model is not None:
        named = {"name": model, "architecture": model.partition("/")[0], "fingerprint": model}
        config.backbone = config.backbone.model_copy(update=named)
    run = Run.create(folder, config)
    by_name = {data.unique_name: data for data in datasets}
    for item in run.missing()[:items]:
        data = by_name[item.dataset]
        for column in item.columns:
            save = settings.save_probabilities
            rows = ShardRows(item.dataset, item.seed, column, len(data.class_names), save_probabilities=save)
            for index in range(item.start, item.stop):
                said = (output or simulated_output)(data, index, column, item.seed)
                rows.add(index, data.ids[index], data.labels[index], said)
            run.write(rows.shard(item.start))
    if items is None:
        write_metrics(run)
    return folder


def simulated_output(data: Dataset, index: int, column: tuple[str, str], seed: int) -> Output:
    """What a method says of an image."""
    prompt, method = column
    classes = len(data.class_names)
    image = np.random.default_rng([sum(data.name.encode()), index])
    base = image.normal(size=classes)
    base[data.labels[index]] += image.normal(2.1, 1.3)
    sharp, cosine, spread = _manner(method)
    shift = (sum(prompt.encode()) % 97) / 97 - 0.5  # every prompt has its own text features
    draw = np.random.default_rng([index, seed, sum(f"{prompt} {method}".encode())])
    logits = sharp * (1 + 0.5 * shift) * base + draw.normal(0, 0.25, classes)
    probabilities = np.exp(logits - logits.max())
    probabilities /= probabilities.sum()
    extras = {"mean_cosine": cosine + 0.1 * shift + spread * float(draw.normal())}
    return Output(probabilities, int(probabilities.argmax()), extras=extras)


def _manner(method: str) -> tuple[float, float, float]:
    if "lambda=" in method:
        weight = float(method.partition("lambda=")[2].rstrip("]"))
        return 1.5 + 1.1 / (1 + weight / 6), INITIAL - 0.05 * weight / (6 + weight), 0.006
    return MANNERS.get(method, _OTHER)
