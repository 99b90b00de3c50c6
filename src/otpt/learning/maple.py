"""MaPLe: prompts of both towers and their couplings, trained by cross-entropy through both towers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from otpt.backbones import Backbone, text_encoder
from otpt.backbones.prompted_tower import PromptedTower
from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.images import open_with_digest
from otpt.learning.training import MAPLE, Epoch, Recipe, Step, descend, few_shots
from otpt.methods.maple import WORDS, MapleState
from otpt.prompts import Prompt, check_class_names, tokenize_prompts
from otpt.prompts.learned import MaplePrompts, visual_prompts
from otpt.threads import one_thread
from otpt.views import ViewRecipe, make_views

DEPTH = 9
"""Published number of layers with prompts for a single data set; limited by the depth of the towers."""

TOKENS = 2
START_STD = 0.02
ALIGNED_BLOCKS = 3
"""Number of blocks of the image tower with input statistics, for methods that align them."""


@one_thread()
def train_maple(
    backbone: Backbone,
    dataset: Dataset,
    recipe: Recipe = MAPLE,
    *,
    depth: int | None = None,
    tokens: int = TOKENS,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> MaplePrompts:
    """Train the prompts of both towers on a few images per class.

    Args:
        backbone: backbone with frozen towers.
        dataset: labelled images.
        recipe: hyperparameters.
        depth: number J of layers with prompts; by default 9, or the depth of the shallower tower.
        tokens: number n of prompts per layer.
        on_epoch: called after each epoch.
    """
    shots = few_shots(dataset, recipe.shots, seed=recipe.seed)
    start = initial_prompts(backbone, depth=depth, tokens=tokens, seed=recipe.seed)
    names = check_class_names(dataset.class_names, allow_duplicates=dataset.allow_duplicates)
    state = MapleState(backbone, names, start)
    text, weights, biases = (tensor.clone() for tensor in state.split(state.init))
    labels = torch.tensor(shots.labels, device=backbone.device)

    def step(indices: Tensor, epoch: int) -> Step:
        pixels = [_crop(backbone, shots, index, recipe.seed, epoch) for index in indices.tolist()]
        targets = labels[indices.to(labels.device)]
        line, tokens = state.text_line(text), state.tower.embed(torch.stack(pixels))
        seen, pull = state.through_towers((text, weights, biases), line, tokens)
        with torch.enable_grad():
            images, texts = seen.requires_grad_(), line.text_features[0].detach().requires_grad_()
            logits = state.logits(images, texts)
            loss = F.cross_entropy(logits, targets)
        of_images, of_texts = torch.autograd.grad(loss, (images, texts))
        return Step(pull(of_texts[None], of_images[None]), logits.detach(), targets)

    descend([text, weights, biases], len(shots), step, recipe, on_epoch)
    means, variances = source_statistics(backbone, state, visual_prompts(text, weights, biases), shots)
    learned = (tensor.detach().cpu().float() for tensor in (text, weights, biases, means, variances))
    text, weights, biases, means, variances = learned
    return MaplePrompts(text, weights, biases, images=shots.image_keys(), means=means, variances=variances)


@torch.no_grad()
def source_statistics(
    backbone: Backbone, state: MapleState, prompts: Tensor, images: Dataset, blocks: int = ALIGNED_BLOCKS
) -> tuple[Tensor, Tensor]:
    """Return means and variances (blocks, T + n, W_v) of the inputs of the image tower's first blocks over clean views.

    ``prompts`` (J, n, W_v) are the image prompts. Sums are in float64.
    """
    total = squares = torch.zeros(())
    for index in range(len(images)):
        tokens = state.tower.embed(_views(backbone, images, index, ViewRecipe(n_views=1), 0, ""))
        entering = state.tower.block_inputs(tokens, prompts, blocks)[0].double()
        total, squares = total.to(entering) + entering, squares.to(entering) + entering.square()
    mean = total / len(images)
    return mean, (squares / len(images) - mean.square()).clamp(min=0)


def initial_prompts(
    backbone: Backbone, *, depth: int | None = None, tokens: int = TOKENS, seed: int = 0
) -> MaplePrompts:
    """Return the initial prompts of MaPLe.

    The context is the first ``tokens`` words of "a photo of a", deep prompts are from N(0, 0.02²), and couplings are
    initialised like ``nn.Linear``, the deep ones equally.
    """
    tower = PromptedTower(backbone)
    text = text_encoder(backbone)
    layers = min(tower.depth, 0 if text.causal is None else len(text.causal.layers))
    depth = min(DEPTH, layers) if depth is None else depth
    if not 1 <= depth <= max(layers, 1):
        raise OtptError(f"The depth of MaPLe is {depth}; expected 1 to {layers} for this backbone.")
    if not 1 <= tokens <= len(WORDS.split()):
        raise OtptError(f"The number of prompts per layer is {tokens}; expected 1 to {len(WORDS.split())}.")
    context = tokenize_prompts(text, ["x"], Prompt(WORDS, tokens=tokens)).start.cpu().float()
    draw = torch.Generator().manual_seed(seed)
    deep = START_STD * torch.randn(depth - 1, *context.shape, generator=draw)
    bound = text.width**-0.5
    # the first coupling, and the common initial value of all deep couplings
    weights = torch.empty(2, tower.width, text.width).uniform_(-bound, bound, generator=draw)
    biases = torch.empty(2, tower.width).uniform_(-bound, bound, generator=draw)
    which = torch.tensor([0] + [1] * (depth - 1))
    return MaplePrompts(torch.cat([context[None], deep]), weights[which], biases[which])


def _crop(backbone: Backbone, shots: Dataset, index: int, seed: int, epoch: int) -> Tensor:
    """Return a random crop (3, S, S) of an image, different in each epoch."""
    return _views(backbone, shots, index, ViewRecipe(n_views=2, augmix=False), seed, f"/{epoch}")[1]


def _views(backbone: Backbone, images: Dataset, index: int, recipe: ViewRecipe, seed: int, draw: str) -> Tensor:
    """Return the views (V, 3, S, S) of an image, clean view first."""
    image, digest = open_with_digest(images[index].source)
    dtype = np.float64 if backbone.dtype == torch.float64 else np.float32
    name = f"{digest}{draw}"
    return torch.from_numpy(make_views(image, recipe, backbone.preprocessing, seed=seed, image_id=name, dtype=dtype))
