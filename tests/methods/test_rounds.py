"""Views in rounds: how many an image needs is a function of the image, and fewer are made and encoded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracles.models.tiny import tiny_clip, tokenizer
from oracles.runs.evaluation_bench import NAMES, backbone, dataset, image, rows, settings, write_images
from torch import Tensor

from otpt import Classifier, OtptError
from otpt.backbones import Backbone, ClipBackbone
from otpt.evaluation import evaluate
from otpt.features import FeatureCache, FeaturePipeline
from otpt.methods import Batch, Predictor, Protocol, Task, get_methods, stream
from otpt.methods.path import is_enough
from otpt.views import ViewRecipe, make_views

pytestmark = pytest.mark.slow

IN_ROUNDS = ViewRecipe(n_views=12, rounds=(6, 9))
METHODS = ("tpt", "zero-shot+mean-feature", "zero-shot+reliability")
SEEDS = (0, 4, 6, 11, 16, 21, 22, 29)
"""Of images: some need 6 views, some 9, some 12."""


def literal_enough(logits: Tensor) -> bool:
    p = logits.double().softmax(1).numpy()
    entropies = -(p * np.log(p)).sum(1)
    confident = sorted(range(len(p)), key=lambda i: entropies[i])[: max(len(p) // 4, 1)]
    return all(p[i].argmax() == p[0].argmax() for i in confident)


def literal_count(clf: Classifier, source: Any) -> int:
    """All views are encoded, then it is asked which would have been enough."""
    views = clf.encode_views(source)
    model = tiny_clip("vit")
    with torch.no_grad():
        texts = model.encode_text(tokenizer()([f"a photo of a {name}." for name in NAMES]), normalize=True)
        logits = model.logit_scale.exp() * views @ texts.T
    return next((n for n in IN_ROUNDS.rounds if literal_enough(logits[:n])), IN_ROUNDS.n_views)


def classifier(recipe: ViewRecipe, method: str = "tpt") -> Classifier:
    return Classifier(backbone(), method, views=recipe).set_classes(NAMES)


def test_enough_is_the_literal_rule() -> None:
    generator = torch.Generator().manual_seed(0)
    found = set()
    for logits in 3 * torch.randn(20, 7, 4, generator=generator, dtype=torch.float64) + torch.tensor([2.0, 0, 0, 0]):
        assert is_enough(logits) == literal_enough(logits)
        found.add(is_enough(logits))
    assert found == {True, False}


@pytest.mark.equality
@pytest.mark.parametrize("method", METHODS)
def test_an_image_gets_what_its_first_views_give(method: str) -> None:
    in_rounds, of = classifier(IN_ROUNDS, method), {n: classifier(ViewRecipe(n_views=n), method) for n in (6, 9, 12)}
    for i in SEEDS:
        (found,) = in_rounds.predict([image(i)])
        count = literal_count(of[12], image(i))
        assert found.extras["views"] == count
        (alone,) = of[count].predict([image(i)])
        np.testing.assert_array_equal(found.probabilities, alone.probabilities)


def test_only_so_many_views_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    clf = classifier(IN_ROUNDS)
    encoded: list[int] = []
    real = ClipBackbone.encode_pixels

    def counting(self: Backbone, pixels: Tensor, **more: Any) -> Tensor:
        encoded.append(len(pixels))
        return real(self, pixels, **more)

    monkeypatch.setattr(ClipBackbone, "encode_pixels", counting)
    found = [clf.predict(image(i)) for i in SEEDS]
    assert sum(encoded) == sum(each.extras["views"] for each in found)


@pytest.mark.equality
def test_neither_batch_nor_threads_nor_other_methods_matter() -> None:
    clf = classifier(IN_ROUNDS)
    alone = [clf.predict([image(i)])[0].probabilities for i in SEEDS]
    for workers in (0, 1, 3):
        together = clf.predict([image(i) for i in SEEDS], workers=workers)
        assert all(np.array_equal(a, b.probabilities) for a, b in zip(alone, together, strict=True))
    for expected, i in zip(alone[:3], SEEDS, strict=False):
        (beside,) = clf.compare([image(i)], ["tpt", "zero-shot", "mean-feature"])
        np.testing.assert_array_equal(beside["tpt"].probabilities, expected)


@pytest.mark.equality
def test_images_with_different_numbers_of_views_go_through_a_group_together() -> None:
    methods = get_methods(METHODS)
    task, protocol = Task(classes=NAMES), Protocol(methods=methods, views=IN_ROUNDS)
    predictor = Predictor(backbone(), [task], protocol)
    sources = [image(i) for i in SEEDS]
    given = [predictor.image_task(i, lambda source=source: source, seed=0) for i, source in enumerate(sources)]
    answers = [each for batch in stream(given, FeaturePipeline(backbone()), lambda _: predictor) for each in batch]
    encoded: Sequence[Any] = [found for found, _ in answers]
    assert {len(each.features[IN_ROUNDS.kind]) for each in encoded} == {6, 9, 12}
    (group,) = Predictor(backbone(), [task], protocol).groups
    together = group.outputs(Batch(encoded, 0))
    for i, (_, own) in enumerate(answers):
        for k in range(len(methods)):
            np.testing.assert_allclose(together[k][i].probabilities, own[k].probabilities, atol=1e-5)
            assert together[k][i].extras["views"] == own[k].extras["views"]


@pytest.mark.equality
def test_what_the_cache_has_does_not_matter(tmp_path: Path) -> None:
    data = dataset(images=write_images(tmp_path / "images", 12))
    chosen = settings(methods=["tpt", "mean-feature"], views=IN_ROUNDS)
    cold = evaluate(data, backbone(), chosen, out=tmp_path / "cold")
    expected = rows(cold.run.folder)
    assert len({row["views"] for row in expected}) > 1
    cache = FeatureCache(tmp_path / "cache")
    for name in ("first", "warm"):  # with the rounds that were encoded before
        evaluate(data, backbone(), chosen, out=tmp_path / name, cache=cache)
        assert rows(tmp_path / name) == expected
    whole = settings(methods=["tpt"], views=ViewRecipe(n_views=12))
    evaluate(data, backbone(), whole, out=tmp_path / "whole", cache=cache)
    without = evaluate(data, backbone(), whole, out=tmp_path / "without")
    assert rows(tmp_path / "whole") == rows(without.run.folder)
    evaluate(data, backbone(), chosen, out=tmp_path / "all", cache=cache)  # all views are there
    assert rows(tmp_path / "all") == expected


@pytest.mark.parametrize("rounds", [(1,), (12,), (8, 8), (8, 3)])
def test_rounds_that_make_no_sense(rounds: tuple[int, ...]) -> None:
    with pytest.raises(OtptError, match="increasing numbers between 2 and 11"):
        ViewRecipe(n_views=12, rounds=rounds)


@pytest.mark.parametrize(("budget", "rounds"), [(1, ()), (8, ()), (9, (8,)), (32, (8,)), (33, (8, 32)), (64, (8, 32))])
def test_a_budget_is_the_most(budget: int, rounds: tuple[int, ...]) -> None:
    recipe = ViewRecipe.within(budget)
    assert (recipe.n_views, recipe.rounds) == (budget, rounds)


def test_views_from_the_middle_are_those_of_the_whole() -> None:
    numbers = backbone().preprocessing
    whole = make_views(image(0), ViewRecipe(n_views=6), numbers, seed=3, image_id="x")
    for first in range(6):
        part = make_views(image(0), ViewRecipe(n_views=6), numbers, seed=3, image_id="x", first=first)
        np.testing.assert_array_equal(part, whole[first:])
