"""CoOp: context vectors trained by cross-entropy with frozen towers.

Image features do not depend on the context, so they are computed once, for a few views per image, and cached. Each
step runs only the text tower, forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from otpt.backbones import Backbone, text_encoder
from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.features.cache import FeatureCache
from otpt.features.pipeline import FeaturePipeline, ImageTask
from otpt.learning.training import COOP, Epoch, Recipe, Step, descend, few_shots
from otpt.prompts import Linearisation, Prompt, check_class_names, prompt_encoder, tokenize_prompts
from otpt.prompts.learned import CoopContext
from otpt.threads import one_thread
from otpt.views import ViewRecipe

START_STD = 0.02
"""Published standard deviation of a random init."""


@one_thread()
def train_coop(
    backbone: Backbone,
    dataset: Dataset,
    recipe: Recipe = COOP,
    *,
    tokens: int | None = None,
    class_specific: bool = False,
    cache: FeatureCache | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> CoopContext:
    """Train a context on a few images per class.

    Args:
        backbone: backbone with frozen towers.
        dataset: labelled images.
        recipe: hyperparameters.
        tokens: length of a random initial context from N(0, 0.02²); None to start from the data set's prompt.
        class_specific: train one context per class.
        cache: cache of image features.
        on_epoch: called after each epoch.
    """
    names = check_class_names(dataset.class_names, allow_duplicates=dataset.allow_duplicates)
    shots = few_shots(dataset, recipe.shots, seed=recipe.seed)
    features = shot_features(backbone, shots, recipe, cache)
    labels = torch.tensor(shots.labels, device=backbone.device)
    prompt = Prompt.learned(_start(backbone, dataset, recipe, tokens, class_specific))
    text = text_encoder(backbone)
    parts = tokenize_prompts(text, names, prompt)
    encoder = prompt_encoder(text, parts)
    context = parts.start.to(backbone.device, backbone.dtype).clone()
    draw = torch.Generator().manual_seed(recipe.seed + 1)

    def step(indices: Tensor, epoch: int) -> Step:
        crops = torch.randint(recipe.crops, (len(indices),), generator=draw)
        images = features[indices.to(features.device), crops.to(features.device)]
        targets = labels[indices.to(labels.device)]
        line = Linearisation(encoder, context[None])
        with torch.enable_grad():
            texts = line.text_features[0].detach().requires_grad_()
            logits = backbone.logit_scale * images @ texts.T + backbone.logit_bias
            loss = F.cross_entropy(logits, targets)
        (cotangent,) = torch.autograd.grad(loss, texts)
        return Step([line.vjp(cotangent[None])[0]], logits.detach(), targets)

    descend([context], len(shots), step, recipe, on_epoch)
    assert prompt.vectors is not None
    learned = context.detach().cpu().float().view_as(prompt.vectors)
    return CoopContext(learned, tuple(names), images=shots.image_keys())


def shot_features(backbone: Backbone, shots: Dataset, recipe: Recipe, cache: FeatureCache | None = None) -> Tensor:
    """Return unit features (N, crops, D) of the training images; raise if an image cannot be used."""
    views = ViewRecipe(n_views=recipe.crops, augmix=False, noise=recipe.sigma)
    tasks = (ImageTask(i, partial(shots.source, i), [views], recipe.seed) for i in range(len(shots)))
    features = []
    for task, encoded in FeaturePipeline(backbone, cache=cache)(tasks):
        if isinstance(encoded, OtptError):
            raise OtptError(f"Cannot train on the image {shots.ids[task.key]!r}: {encoded}")
        features.append(encoded.features[views.kind])
    return torch.stack(features)


def _start(backbone: Backbone, dataset: Dataset, recipe: Recipe, tokens: int | None, class_specific: bool) -> Tensor:
    """Return the initial context (n, W), or (C, n, W) if ``class_specific``."""
    classes = len(dataset.class_names)
    text = text_encoder(backbone)
    if tokens is None:
        words = tokenize_prompts(text, dataset.class_names, Prompt(dataset.prompt)).start.cpu().float()
        return words.repeat(classes, 1, 1) if class_specific else words
    if tokens < 1:
        raise OtptError(f"The number of context tokens is {tokens}; expected 1 or more.")
    shape = (classes, tokens, text.width) if class_specific else (tokens, text.width)
    return START_STD * torch.randn(shape, generator=torch.Generator().manual_seed(recipe.seed))
