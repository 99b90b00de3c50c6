"""A small classifier and its literal tuner, for tests of functions of one's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch
from oracles.data.images import image
from oracles.methods.literal import LiteralTuner
from oracles.methods.maple import maple_state
from oracles.models.tiny import tiny_backbone, tiny_clip, tokenizer
from torch import Tensor

import otpt
from otpt import Classifier, Method, ViewRecipe
from otpt.data import Dataset
from otpt.evaluation import Evaluation, evaluate
from otpt.features import FeatureCache
from otpt.prompts.learned import CocoopContext, LearnedPrompt, read_learned
from otpt.views import make_views

NAMES = ("cat", "dog", "red panda", "sea")
RECIPE = ViewRecipe(n_views=20)
EXACT = {"rtol": 0, "atol": 1e-10}


@cache
def backbone(precision: str = "float64") -> otpt.Backbone:
    return tiny_backbone("vit", precision)


def classifier(recipe: ViewRecipe = RECIPE) -> Classifier:
    return Classifier(backbone(), views=recipe).set_classes(NAMES)


def with_context(method: str | Method, *contexts: LearnedPrompt) -> Method:
    """A method with the learned prompt of its init."""
    chosen = otpt.get_method(method)
    own = [context for context in contexts if context.kind == chosen.init]
    return chosen.override({"context": own[0]}) if own else chosen


def predicted(method: str | Method, seed: int = 1, *contexts: LearnedPrompt) -> Tensor:
    """Probabilities (C,) of an image by one method."""
    (found,) = classifier().compare(image(seed), [with_context(method, *contexts)], image_id="p").values()
    return torch.from_numpy(found.probabilities)


def views(seed: int = 1) -> Tensor:
    """Unit features (V, D) of the same image."""
    return classifier().encode_views(image(seed), image_id="p")


def pixels() -> Tensor:
    """(V, 3, S, S) of the same views."""
    made = make_views(image(1), RECIPE, backbone().preprocessing, seed=0, image_id="p", dtype=np.float64)
    return torch.from_numpy(made)


def oracle() -> LiteralTuner:
    return LiteralTuner(tiny_clip("vit", dtype=torch.float64), tokenizer(), NAMES)


def tuned_context(weights: dict[str, float], own: Callable[[Tensor, Tensor, Tensor], Tensor], steps: int = 1) -> Tensor:
    """TPT's steps the literal way, with a term of one's own: f(logits of selected views, texts, initial texts)."""
    literal, features = oracle(), views()
    context = literal.start.clone().requires_grad_()
    optimiser = torch.optim.AdamW([context], lr=5e-3)
    initial = literal.text_features(literal.start)
    at_start = literal.logits(features, literal.start)
    entropies = -(at_start.softmax(1) * at_start.log_softmax(1)).sum(1)
    chosen = entropies.argsort()[:2]
    for _ in range(steps):
        texts = literal.text_features(context)
        logits = literal.model.logit_scale.exp() * features[chosen] @ texts.t()
        mean = logits.softmax(1).mean(0)
        loss = -weights.get("entropy", 0.0) * (mean * mean.log()).sum() + own(logits, texts, initial)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return context.detach()


def learned(kind: str, folder: Path) -> list[LearnedPrompt]:
    if kind == "maple":
        torch.save({"state_dict": maple_state("vit", 2)}, folder / "maple.pt")
        return [read_learned(folder / "maple.pt")]
    if kind == "cocoop":
        shapes = ((4, 64), (2, 32), (2,), (64, 2), (64,))
        draw = torch.Generator().manual_seed(0)
        return [CocoopContext(*(0.5 * torch.randn(*shape, generator=draw) for shape in shapes))]
    return []


def plugin(folder: Path, text: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(f"import otpt\n\n{text}", encoding="utf-8")
    return path


def dataset(count: int = 3) -> Dataset:
    return Dataset("tiny", NAMES, [str(i) for i in range(count)], [i % 4 for i in range(count)], image)


def confidences(folder: Path, method: str, cache: FeatureCache | None = None) -> list[float]:
    settings = Evaluation(methods=[method], views=ViewRecipe(n_views=12))
    found = evaluate(dataset(), backbone("float32"), settings, out=folder, cache=cache).run
    (column,) = found.columns("tiny")
    rows = [row for shard in found.shards("tiny", 0, column) for row in shard.table.to_pylist()]
    return [row["confidence"] for row in sorted(rows, key=lambda row: row["id"])]
