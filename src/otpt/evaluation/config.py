"""The configuration that a run folder carries: everything that decides its rows."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from typing import Any, Protocol

import torch

from otpt._version import __version__
from otpt.backbones import Preprocessing
from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.evaluation.settings import Settings, each_once
from otpt.methods import Method
from otpt.methods.facts import method_numbers, plain, prompt_facts
from otpt.methods.preparing import columns as columns_of
from otpt.methods.preparing import recipe_for
from otpt.registry import STREAM
from otpt.rejection import get_threshold
from otpt.runs.format import FORMAT
from otpt.settings import Settings as BaseSettings

_SURROGATE = re.compile("[\ud800-\udfff]")  # what Python makes of a byte in a file's name that is not UTF-8
_VERSIONS = ("numpy", "open-clip-torch", "pillow", "pyarrow", "torch")


class Model(Protocol):
    """What a run says of its model: a :class:`otpt.backbones.Backbone`, or FPT's frozen ViT."""

    name: str
    architecture: str
    fingerprint: str
    family: str
    device: torch.device
    precision: str
    compiled: bool
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
            **({"compiled": True} if backbone.compiled else {}),
            "device": backbone.device.type,
            "preprocessing": plain(asdict(backbone.preprocessing)),
        },
        "numbers": {
            "official_precision": settings.official_precision,
            "features": settings.features,
            # a run without it, as earlier versions made them, keys the views by file
            **({} if settings.view_key == "file" else {"view_key": settings.view_key}),
            "memory_budget": settings.memory_budget,
            "shard_size": settings.shard_size,
            "save_probabilities": settings.save_probabilities,
            **_rejection(settings),
        },
        "scoring": {"bins": settings.bins, "side": settings.side},
        "methods": {method.name: method_numbers(method) for method in settings.chosen},
        "datasets": dataset_configs(datasets, settings),
        "commands": [] if command is None else [command],
    }


def _rejection(settings: Settings) -> dict[str, Any]:
    """What decides the column ``unknown`` and the flag; nothing where nobody asked for it."""
    if settings.reject is None:
        return {}
    return {"reject": {"score": settings.reject, "above": get_threshold(settings.reject, settings.reject_threshold)}}


def dataset_configs(datasets: Sequence[Dataset], settings: Settings) -> list[dict[str, Any]]:
    """What an evaluation asks of a run, data set by data set; needs no model."""
    each_once("data set", [dataset.name for dataset in datasets])
    return [_dataset(dataset, settings) for dataset in datasets]


def _dataset(dataset: Dataset, settings: Settings) -> dict[str, Any]:
    strange = next((name for name in dataset.ids if not name.isascii() and _SURROGATE.search(name)), None)
    if strange is not None:
        raise OtptError(
            f"The image {strange!r} of {dataset.name!r} has a name that is not UTF-8 text, which rows cannot hold; "
            "rename its file."
        )
    task = settings.task_for(dataset)
    images = min(len(dataset), settings.limit or len(dataset))
    methods = {method.name: method for method in settings.chosen}
    columns = [
        _column(prompt, methods[name], task, settings, images) for prompt, name in columns_of(task, settings.chosen)
    ]
    return {
        "name": dataset.name,
        **({} if dataset.origin is None else {"source": dataset.origin}),
        "fingerprint": dataset.fingerprint,
        "family": task.family,
        "classes": list(dataset.class_names),
        "columns": columns,
    }


def _column(prompt: str, method: Method, task: BaseSettings, settings: Settings, images: int) -> dict[str, Any]:
    recipe = recipe_for(task, method)
    found: dict[str, Any] = {
        "method": method.name,
        "prompt": prompt_facts(prompt, method, task),
        "views": None if recipe is None else recipe.key,
        "images": {str(seed): images for seed in settings.seeds_of(method)},
    }
    if method.adapt == "promptsmooth":
        found["smoothing"] = asdict(settings.smoothing)
    calibrated = settings.calibrated(method.name)
    if calibrated is not None:
        found["calibration"] = calibrated.key
    if method.scope == STREAM:
        found["order"] = f"{images} images, permuted by the seed"
    return found
