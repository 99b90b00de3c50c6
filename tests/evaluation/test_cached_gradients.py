"""Gradients next to the cached features: the same bytes with and without them, and no backward pass where they are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracles.models.tiny import tiny_backbone
from oracles.runs.evaluation_bench import NAMES, backbone, dataset, files, settings
from torch import Tensor

from otpt.backbones import Backbone
from otpt.evaluation import evaluate
from otpt.features import FeatureCache
from otpt.methods import Method, get_method
from otpt.methods.state import prompt_state
from otpt.methods.tuner import ViewObjective, gradient_key, tune
from otpt.prompts import Linearisation, Prompt

pytestmark = pytest.mark.slow

ENTROPY = ViewObjective("entropy", "", 1)


@pytest.fixture
def backward(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Contexts of each backward pass through the text tower so far."""
    passes: list[int] = []
    original = Linearisation.vjp

    def counted(self: Linearisation, cotangents: Tensor) -> Tensor:
        passes.append(len(cotangents))
        return original(self, cotangents)

    monkeypatch.setattr(Linearisation, "vjp", counted)
    return passes


def run(
    out: Path, cache: FeatureCache | None, methods: Sequence[str | Method], count: int = 5, **changes: Any
) -> dict[str, bytes]:
    model = changes.pop("model", None) or backbone()
    data = changes.pop("data", None) or dataset(count)
    evaluate(data, model, settings(methods=methods, **changes), out=out, cache=cache)
    return files(out)


@pytest.mark.equality
def test_a_further_method_needs_no_backward_pass_per_image(tmp_path: Path, backward: list[int]) -> None:
    cache = FeatureCache(tmp_path / "cache")
    run(tmp_path / "first", cache, ["o-tpt"])
    assert len(backward) == 5 + 1  # the entropy of each image, orthogonality once
    assert (cache.info().entries, cache.info().gradients) == (5, 5)
    backward.clear()
    warm = {"tpt": run(tmp_path / "tpt", cache, ["tpt", "tpt+sals"])}
    assert backward == []
    warm["c-tpt"] = run(tmp_path / "c-tpt", cache, ["c-tpt"])
    assert len(backward) == 1  # dispersion, of the text features alone: once for all images
    assert warm["tpt"] == run(tmp_path / "tpt-without", None, ["tpt", "tpt+sals"])
    assert warm["c-tpt"] == run(tmp_path / "c-tpt-without", None, ["c-tpt"])


@pytest.mark.equality
def test_each_view_objective_and_reference_has_its_own(tmp_path: Path, backward: list[int]) -> None:
    cache = FeatureCache(tmp_path / "cache")
    clean = replace(get_method("tpt+penalty").override({"reference": "clean"}), name="tpt+penalty[clean]")
    methods = ["tpt", "tpt+penalty", "tpt+zs", clean]
    cold = run(tmp_path / "cold", cache, methods, 3)
    made = len(backward)
    assert cache.info().gradients == made > 3 * 3
    assert run(tmp_path / "warm", cache, methods, 3) == cold == run(tmp_path / "without", None, methods, 3)
    assert len(backward) == 2 * made  # all of them without a cache, none of them with it


@pytest.mark.equality
@pytest.mark.parametrize("damage", ["flip", "empty"])
def test_a_damaged_gradient_is_recomputed(tmp_path: Path, damage: str) -> None:
    cache = FeatureCache(tmp_path / "cache")
    first = run(tmp_path / "first", cache, ["tpt"], 2)
    entry = sorted((tmp_path / "cache").rglob("*.gradients"))[0]
    data = entry.read_bytes()
    entry.write_bytes(b"" if damage == "empty" else data[:-1] + bytes([data[-1] ^ 1]))
    assert run(tmp_path / "second", cache, ["tpt"], 2) == first
    assert entry.read_bytes() == data


def key(views: Tensor, model: Backbone | None = None, objective: ViewObjective = ENTROPY, **changes: Any) -> str:
    text = prompt_state(model or backbone(), changes.pop("names", NAMES), changes.pop("prompt", None), **changes)
    return gradient_key(text, views, objective)


def test_every_fact_is_in_the_key() -> None:
    views = torch.nn.functional.normalize(torch.randn(12, 32, generator=torch.Generator().manual_seed(0)), dim=-1)
    assert key(views.clone()) == key(views)
    louder = tiny_backbone("vit")
    louder.logit_scale *= 1.5
    keys = {
        "the first": key(views),
        "class names": key(views, names=[*NAMES[:-1], "bug"]),
        "order of the classes": key(views, names=NAMES[::-1]),
        "template": key(views, prompt=Prompt("an image of one")),
        "tunable tokens": key(views, prompt=Prompt("a photo of a", tokens=3)),
        "initial context": key(views, prompt=Prompt.random(4, width=64)),
        "weights": key(views, tiny_backbone("vit", seed=1)),
        "precision": key(views.double(), tiny_backbone("vit", "float64")),
        "logit scale": key(views, louder),
        "chunks": key(views, memory_budget=100_000),
        "views": key(views.flip(0)),
        "number of views": key(views[:11]),
        "last bit of a feature": key(torch.nextafter(views, views + 1)),
        "count": key(views, objective=ViewObjective("entropy", "", 2)),
        "selection": key(views, objective=ViewObjective("entropy", "", 1, "strong")),
        "setting": key(views, objective=ViewObjective("entropy", "", 1, settings=(("delta", 0.5),))),
        "value": key(views, objective=ViewObjective("entropy", "", 1, settings=(("delta", 0.6),))),
        "objective": key(views, objective=ViewObjective("rescaled-entropy", "clean", 1)),
        "reference": key(views, objective=ViewObjective("rescaled-entropy", "confident", 1)),
    }
    assert len(set(keys.values())) == len(keys)


@pytest.mark.equality
def test_the_batch_of_a_gpu_asks_only_for_what_is_missing(tmp_path: Path, backward: list[int]) -> None:
    """Eight contexts go through the text tower together there: rows that are known are left out, bits are the same."""
    cache = FeatureCache(tmp_path / "cache")
    text = prompt_state(backbone(), NAMES, contexts_per_pass=2)
    views = torch.randn(5, 12, 32, generator=torch.Generator().manual_seed(0))
    views = torch.nn.functional.normalize(views, dim=-1)
    config = get_method("tpt").tuning("fine-grained")
    assert config is not None
    alone = tune(text, views, [config])[config]
    tune(text, views[1:3], [config], cache=cache)
    backward.clear()
    mixed = tune(text, views, [config], cache=cache)[config]
    assert len(backward) == 2  # three images, two at a time
    for name in ("logits", "contexts", "mean_cosine", "skipped"):
        assert torch.equal(getattr(mixed, name), getattr(alone, name)), name


def test_gradients_never_take_more_room_than_features(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path / "cache")
    prompts = ["a photo of a", "an image of one"]  # 2 · 4 · 64 numbers; the features are 12 · 32
    run(tmp_path / "run", cache, ["tpt"], 2, prompts=prompts)
    assert (cache.info().entries, cache.info().gradients) == (2, 0)


def test_gradients_count_towards_the_bound_and_go_when_oldest(tmp_path: Path) -> None:
    value = np.zeros((4, 64), np.float32)
    cache = FeatureCache(tmp_path / "cache")
    cache.put("aa" * 32, value)
    cache.put("bb" * 32, value, kind="gradients")
    whole = cache.info()
    assert (whole.entries, whole.gradients) == (1, 1)
    assert whole.bytes == sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.*"))
    os.utime(cache._path("gradients", "bb" * 32), (1000, 1000))
    FeatureCache(tmp_path / "cache", max_bytes=whole.bytes - 1).shrink()
    assert cache.get("bb" * 32, kind="gradients") is None
    assert cache.get("aa" * 32) is not None
    cache.put("bb" * 32, value, kind="gradients")
    assert cache.clear() == whole
    assert cache.info().bytes == 0
