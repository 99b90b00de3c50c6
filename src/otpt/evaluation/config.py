"""The configuration that a run folder carries: everything that decides its rows."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from typing import Any, Protocol

import torch

from otpt._version import __version__
from otpt.backbones import Preprocessing
from otpt.data import Dataset
from otpt.evaluation.settings import Settings, each_once
from otpt.methods import Method
from otpt.methods.attributes import attribute_digest, names_with_attributes
from otpt.methods.axes import ATTRIBUTES, FPP, LEARNED, STREAM, TEMPLATES, digests_of
from otpt.methods.task import Task
from otpt.prompts import Prompt
from otpt.prompts.learned import fingerprint
from otpt.runs.format import FORMAT

_VERSIONS = ("numpy", "open-clip-torch", "pillow", "pyarrow", "torch")


class Model(Protocol):
    """What a run says of its model: a :class:`otpt.backbones.Backbone`, or FPT's frozen ViT."""

    name: str
    architecture: str
    fingerprint: str
    family: str
    device: torch.device
    precision: str
    preprocessing: Preprocessing


def run_config(
    backbone: Model, datasets: Sequence[Dataset], settings: Settings, *, command: str | None = None
) -> dict[str, Any]:
    """What an evaluation asks of a run.

    ``command`` is the line that asked for it; it decides nothing and is kept for people.
    """
    return {
        "format": FORMAT,
        "versions": {
            "otpt": __version__,
            "python": ".".join(platform.python_version_tuple()[:2]),
            **{name: metadata.version(name) for name in _VERSIONS},
        },
        "backbone": {
            "name": backbone.name,
            "fingerprint": backbone.fingerprint,
            "architecture": backbone.architecture,
            "family": backbone.family,
            "precision": backbone.precision,
            "device": backbone.device.type,
            "preprocessing": plain(asdict(backbone.preprocessing)),
        },
        "numbers": {
            "official_precision": settings.official_precision,
            "features": settings.features,
            "memory_budget": settings.memory_budget,
            "shard_size": settings.shard_size,
            "save_probabilities": settings.save_probabilities,
        },
        "scoring": {"bins": settings.bins, "side": settings.side},
        "methods": {method.name: method_numbers(method) for method in settings.chosen},
        "datasets": dataset_configs(datasets, settings),
        "commands": [] if command is None else [command],
    }


def dataset_configs(datasets: Sequence[Dataset], settings: Settings) -> list[dict[str, Any]]:
    """What an evaluation asks of a run, data set by data set; needs no model."""
    each_once("data set", [dataset.name for dataset in datasets])
    return [_dataset(dataset, settings) for dataset in datasets]


def _dataset(dataset: Dataset, settings: Settings) -> dict[str, Any]:
    task = settings.task_for(dataset)
    images = min(len(dataset), settings.limit or len(dataset))
    methods = {method.name: method for method in settings.chosen}
    columns = [_column(prompt, methods[name], task, settings, images) for prompt, name in task.columns(settings.chosen)]
    return {
        "name": dataset.name,
        **({} if dataset.origin is None else {"source": dataset.origin}),
        "fingerprint": dataset.fingerprint,
        "family": task.family,
        "classes": list(dataset.class_names),
        "columns": columns,
    }


def _column(prompt: str, method: Method, task: Task, settings: Settings, images: int) -> dict[str, Any]:
    recipe = task.recipe_for(method)
    found: dict[str, Any] = {
        "method": method.name,
        "prompt": _prompt(prompt, method, task),
        "views": None if recipe is None else recipe.key,
        "images": {str(seed): images for seed in settings.seeds_of(method)},
    }
    if method.adapt == "promptsmooth":
        found["smoothing"] = asdict(settings.smoothing)
    if method.scope == STREAM:
        found["order"] = f"{images} images, permuted by the seed"
    return found


def _prompt(name: str, method: Method, task: Task) -> dict[str, Any]:
    given = next((each for each in task.prompts_of(method) if isinstance(each, Prompt) and each.name == name), None)
    if given is not None:
        tokens = "all" if task.all_tokens and given.tokens is None else given.tokens
        found = {"name": name, "words": given.words, "tokens": tokens, "vectors": given.digest}
        if method.init == ATTRIBUTES:
            found["attributes"] = attribute_digest(names_with_attributes(task.class_names, task.attributes))
        return found
    if method.init in TEMPLATES:
        return {"name": name, "templates": task.templates_of(method).digest}
    if method.init in FPP:
        return {"name": name, "fpp": asdict(task.fpp)}
    if method.init in LEARNED:
        return {"name": name, "fingerprint": fingerprint(task.contexts[method.init])}
    own = (file for file in task.trained if file.method == method.name)
    return {"name": name, "trained": {"" if f.target is None else str(f.target): f.content.digest for f in own}}


def method_numbers(method: Method) -> dict[str, Any]:
    """What a method computes, as plain data; of functions of the user's, digests of their source code."""
    words = {"name", "summary", "source", "caution"} | ({"condition"} if method.init != "cocoop" else set())
    values = {key: getattr(method, key) for key in method.__dataclass_fields__ if key not in words}
    own = digests_of(method)
    return plain({**values, **({"own_functions": own} if own else {})})


def plain(value: Any) -> Any:
    """Tuples as lists and mappings as dictionaries, as JSON gives them back."""
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if hasattr(value, "items"):
        return {key: plain(each) for key, each in value.items()}
    return value
