"""Learning prompts: shots, schedule, and trainings against one autograd graph with torch's SGD."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from oracles.methods.literal import LiteralTuner
from oracles.methods.maple import LiteralMaple, tiny_model, tiny_prompted_backbone
from oracles.models.tiny import tiny_backbone, tiny_clip, tokenizer
from PIL import Image
from torch.nn import functional as F

from otpt.backbones import Backbone
from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.features import FeatureCache
from otpt.images import open_with_digest
from otpt.learning import COOP, MAPLE, Epoch, Recipe, few_shots, initial_prompts, train_coop, train_maple
from otpt.views import ViewRecipe, make_views

pytestmark = pytest.mark.slow

NAMES = ("cat", "red panda", "sea")
RATES = (1e-5, 1e-2)


def image(seed: int) -> Image.Image:
    """Blobs whose colour tells the class (seed mod 3)."""
    random = np.random.default_rng(seed)
    values = random.integers(0, 120, (5, 5, 3), dtype=np.uint8)
    values[..., seed % 3] += 120
    return Image.fromarray(values).resize((40, 40), Image.Resampling.BICUBIC)


def data(count: int = 12) -> Dataset:
    return Dataset("mine", NAMES, [str(i) for i in range(count)], [i % 3 for i in range(count)], image)


@cache
def backbone() -> Backbone:
    return tiny_backbone("vit", "float64")


def test_published_numbers() -> None:
    common = {"shots": 16, "momentum": 0.9, "weight_decay": 5e-4}
    assert Recipe(**common, epochs=50, batch=32, learning_rate=0.002) == COOP
    assert Recipe(**common, epochs=5, batch=4, learning_rate=0.0035) == MAPLE
    assert COOP.rate(0) == 1e-5
    assert COOP.rate(1) == 0.002
    assert COOP.rate(26) == pytest.approx(0.001)
    assert COOP.rate(49) == pytest.approx(0.002 * (1 + math.cos(math.pi * 48 / 50)) / 2)


def test_shots_are_drawn_by_the_seed() -> None:
    whole = data(60)
    four = few_shots(whole, 4, seed=1)
    assert Counter(four.labels) == {0: 4, 1: 4, 2: 4}
    assert four.ids == few_shots(whole, 4, seed=1).ids
    assert four.ids != few_shots(whole, 4, seed=2).ids
    assert set(few_shots(whole, 2, seed=1).ids) < set(four.ids)
    for i, name in enumerate(four.ids):
        assert four.labels[i] == int(name) % 3
        assert open_with_digest(four[i].source)[1] == open_with_digest(image(int(name)))[1]
    assert len(few_shots(data(6), 16)) == 6, "all there are"


def test_bad_shots() -> None:
    with pytest.raises(OtptError, match="number of shots is 0"):
        few_shots(data(), 0)
    with pytest.raises(OtptError, match="1 of 3 classes of 'mine' have no training image, the first is 'sea'"):
        few_shots(Dataset("mine", NAMES, ["a", "b"], [0, 1], image), 1)
    with pytest.raises(OtptError, match="number of epochs is 0"):
        Recipe(epochs=0)
    with pytest.raises(OtptError, match="learning rate is -1"):
        Recipe(learning_rate=-1)


def literal_noise(seed: int, index: int) -> np.ndarray:
    """N(0, 1) that belongs to the seed and the image's content, (1, 3, 32, 32)."""
    key = hashlib.sha256(f"otpt noise 1\nviews\n{seed}\n{open_with_digest(image(index))[1]}".encode()).digest()
    draw = np.random.Generator(np.random.Philox(key=np.frombuffer(key[:16], "<u8")))
    return draw.standard_normal((1, 3, 32, 32), np.float32)


@pytest.mark.parametrize("sigma", [0.0, 0.25])
def test_coop_is_the_literal_training(sigma: float, tmp_path: Path) -> None:
    """All images in each batch, one view: the order of random numbers plays no part. Noise is on pixels in [0, 1]."""
    recipe = Recipe(shots=2, epochs=2, batch=6, learning_rate=RATES[1], crops=1, sigma=sigma)
    cache = FeatureCache(tmp_path)
    train_coop(backbone(), data(6), replace(recipe, sigma=1 - sigma), cache=cache)  # kept features of another noise
    found = train_coop(backbone(), data(6), recipe, cache=cache).vectors

    oracle = LiteralTuner(tiny_clip("vit", dtype=torch.float64), tokenizer(), NAMES)
    pixels = [
        make_views(image(i), ViewRecipe(n_views=1), backbone().preprocessing, seed=0, image_id="", dtype=np.float64)
        for i in range(6)
    ]
    mean, std = (np.array(v)[:, None, None] for v in (backbone().preprocessing.mean, backbone().preprocessing.std))
    pixels = [(x * std + mean + sigma * literal_noise(0, i) - mean) / std for i, x in enumerate(pixels)]
    with torch.no_grad():
        images = F.normalize(oracle.model.encode_image(torch.from_numpy(np.concatenate(pixels))), dim=-1)
    context = torch.nn.Parameter(oracle.start.clone())
    optimiser = torch.optim.SGD([context], lr=1, momentum=0.9, weight_decay=5e-4)
    for rate in RATES:
        optimiser.param_groups[0]["lr"] = rate
        loss = F.cross_entropy(oracle.logits(images, context), torch.arange(6) % 3)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert (context - oracle.start).abs().max() > 1e-3
    torch.testing.assert_close(found, context.detach().float(), rtol=0, atol=1e-7)


@pytest.mark.equality
def test_coop_learns_from_a_random_start_and_by_class() -> None:
    epochs: list[Epoch] = []
    recipe = Recipe(shots=4, epochs=12, batch=4, learning_rate=0.02, crops=2, seed=3)
    learned = train_coop(backbone(), data(), recipe, tokens=3, class_specific=True, on_epoch=epochs.append)
    assert learned.vectors.shape == (3, 3, 64)
    assert learned.class_names == NAMES
    assert [epoch.number for epoch in epochs] == list(range(1, 13))
    assert epochs[-1].loss < 0.5 * epochs[0].loss
    assert epochs[-1].accuracy > epochs[0].accuracy
    again = train_coop(backbone(), data(), recipe, tokens=3, class_specific=True)
    assert torch.equal(again.vectors, learned.vectors), "the seed decides"


def test_a_training_that_diverges_is_told() -> None:
    with pytest.raises(OtptError, match="diverged in epoch"):
        train_coop(backbone(), data(6), Recipe(shots=2, epochs=4, learning_rate=1e300, crops=1))


def test_maple_is_the_literal_training() -> None:
    both = tiny_prompted_backbone("timm")
    recipe = Recipe(shots=2, epochs=2, batch=6, learning_rate=RATES[1], seed=4)
    found = train_maple(both, data(6), recipe).state()

    start = initial_prompts(both, seed=4)
    assert start.depth == 2, "as many layers as the shallower tower has"
    oracle = LiteralMaple(tiny_model("timm"), NAMES, start.state())
    words = oracle.model.token_embedding(tokenizer()(["a photo"]))[0, 1:3]
    torch.testing.assert_close(oracle.start["ctx"], words, rtol=0, atol=1e-7)
    state = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in oracle.start.items()}
    optimiser = torch.optim.SGD(state.values(), lr=1, momentum=0.9, weight_decay=5e-4)
    for epoch, rate in enumerate(RATES):
        optimiser.param_groups[0]["lr"] = rate
        pixels = [
            make_views(image(i), ViewRecipe(n_views=2, augmix=False), both.preprocessing, seed=4,
                       image_id=f"{open_with_digest(image(i))[1]}/{epoch}", dtype=np.float64)[1]
            for i in range(6)
        ]  # fmt: skip
        loss = F.cross_entropy(oracle.logits(torch.from_numpy(np.stack(pixels)), state), torch.arange(6) % 3)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for name, tensor in state.items():
        assert (tensor - oracle.start[name]).abs().max() > 1e-4
        torch.testing.assert_close(found[f"prompt_learner.{name}"], tensor.detach().float(), rtol=0, atol=1e-6)


def test_depth_of_maple() -> None:
    both = tiny_prompted_backbone("vit")
    assert initial_prompts(both, depth=1).depth == 1
    with pytest.raises(OtptError, match="depth of MaPLe is 3; expected 1 to 2"):
        initial_prompts(both, depth=3)
