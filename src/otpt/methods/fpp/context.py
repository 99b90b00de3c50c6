"""FPP's context of a task: made once, then kept in memory and in the cache on disk."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np
import torch

from otpt._version import __version__
from otpt.backbones import Backbone
from otpt.features.cache import FeatureCache
from otpt.methods.fpp.pretraining import initial_prompt, pretrain
from otpt.methods.fpp.progress import SlowLines
from otpt.methods.task import Task
from otpt.prompts import Prompt

_made: WeakKeyDictionary[Backbone, dict[str, Prompt]] = WeakKeyDictionary()
"""By backbone and key: a classifier prepares its texts anew for each set of methods."""


def fpp_prompt(
    backbone: Backbone, task: Task, *, from_words: bool = False, cache: FeatureCache | None = None
) -> Prompt:
    """The prompt that FPP makes for the classes of a task."""
    kept = _made.setdefault(backbone, {})
    key = _key(backbone, task, from_words)
    found = None if cache is None else _read(cache, key, backbone, task, from_words)
    if found is None:
        found = kept[key] if key in kept else _compute(backbone, task, from_words)
        if cache is not None and found.vectors is not None:
            cache.put_context(key, found.vectors.numpy())
    kept[key] = found
    return found


def _key(backbone: Backbone, task: Task, from_words: bool) -> str:
    """64 hexadecimal digits of all that the context depends on, rounding included."""
    facts = {
        "backbone": backbone.fingerprint,
        "precision": backbone.precision,
        "device": backbone.device.type,
        "classes": task.class_names,
        "family": task.family,
        "fpp": task.fpp.model_dump(),
        "from_words": from_words,
        "memory": task.memory_budget,
        "versions": [__version__, torch.__version__],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _read(cache: FeatureCache, key: str, backbone: Backbone, task: Task, from_words: bool) -> Prompt | None:
    """The prompt if the cache has it; an entry of another width or type is ignored."""
    values = cache.get_context(key)
    if values is None:
        return None
    vectors = torch.from_numpy(np.array(values))
    if (vectors.shape[1], vectors.dtype) != (backbone.text.width, backbone.dtype) or not vectors.isfinite().all():
        return None
    return replace(initial_prompt(backbone, task.fpp, from_words=from_words), vectors=vectors)


def _compute(backbone: Backbone, task: Task, from_words: bool) -> Prompt:
    return pretrain(
        backbone,
        task.class_names,
        task.fpp,
        family=task.family,
        from_words=from_words,
        memory_budget=task.memory_budget,
        on_step=SlowLines(f"FPP makes a context for {len(task.class_names)} classes", task.fpp.steps),
    )
