"""Context tuning: minimise L = Σ weight·objective by AdamW steps for each image.

**One step, closed form.** From an empty state one AdamW step is θ₁ = (1 − lr·wd)·θ₀ − lr·g/(|g| + ε). The gradient is
g = Σ w·g_view + Σ λ·g_text, where g_text is a constant of the prompt state and g_view needs one vector–Jacobian product
per image (:meth:`PromptState.pull_back`). Configs with the same view objective share its product; each additional
method costs one forward pass of the text features.

**Many steps**, C-TPT's two-step mode, and images with their own initial context use torch's AdamW. Views are selected
under the initial context and stay the same over all steps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from otpt._version import __version__
from otpt.errors import OtptError
from otpt.features.cache import FeatureCache
from otpt.methods.method import TuningConfig
from otpt.methods.state import Point, PromptState, Scores, in_passes
from otpt.objectives import SELECTED_BY, Range, logit_range
from otpt.registry import OBJECTIVES, TEXTS, VIEWS
from otpt.threads import cancellable_loop
from otpt.transfers import to_device, to_host

ADAM_EPSILON = 1e-8


def adamw_first_step(
    start: Tensor, gradient: Tensor, *, learning_rate: float, weight_decay: float, epsilon: float = ADAM_EPSILON
) -> Tensor:
    """Compute θ₁ = (1 − lr·wd)·θ₀ − lr·g/(|g| + ε) element-wise; ε = 1e-8 by default."""
    shrunk = (1 - learning_rate * weight_decay) * start
    return shrunk - learning_rate * gradient / (gradient.abs() + epsilon)


def tune(
    state: PromptState,
    views: Tensor,
    configs: Sequence[TuningConfig],
    *,
    zero_shot: Tensor | None = None,
    starts: Tensor | None = None,
    cache: FeatureCache | None = None,
    all_views: bool = False,
) -> dict[TuningConfig, Scores]:
    """Tune the context of each image by each distinct config.

    Args:
        views: (B, V, …) inputs of the state, the clean view first.
        zero_shot: (B, V, C) logits under the initial contexts, if known.
        starts: (B, n, W) initial contexts of the images; θ₀ by default.
        cache: disk cache of gradients at θ₀.
        all_views: score all views under the tuned contexts, not only the clean one.
    """
    if zero_shot is None:
        zero_shot = state.initial(views, starts).view_logits
        assert zero_shot is not None
    scores: dict[TuningConfig, Scores] = {}
    gradients: dict[ViewObjective, Tensor] = {}
    steps: dict[TuningConfig, tuple[Tensor, Tensor]] = {}
    for config in dict.fromkeys(configs):
        if config.steps == 1 and not config.two_step and starts is None:  # closed form
            steps[config] = _one_step(state, views, zero_shot, config, gradients, cache)
        else:
            scores[config] = tune_many_steps(
                state, views, config, zero_shot=zero_shot, starts=starts, all_views=all_views
            )
    on_views = [config for config in steps if config.weights_on(VIEWS) or state.moves_images]
    if on_views:
        together = state.predict(views, torch.cat([steps[config][0] for config in on_views]), all_views=all_views)
        scores |= zip(on_views, _split(together, len(views)) if len(on_views) > 1 else [together], strict=True)
    for config, (contexts, skipped) in steps.items():
        if config not in scores:  # no view objectives: all images share one context
            texts = state.encode_shared(config, contexts[0]).expand(len(views), -1, -1)
            scores[config] = state.scores(views, texts, all_views=all_views)
        scores[config] = replace(scores[config], contexts=contexts, skipped=skipped)
    return scores


def _one_step(
    state: PromptState,
    views: Tensor,
    zero_shot: Tensor,
    config: TuningConfig,
    gradients: dict[ViewObjective, Tensor],
    cache: FeatureCache | None,
) -> tuple[Tensor, Tensor]:
    """Return contexts (B, n, W) after one step and a mask (B,) of non-finite gradients; ``gradients`` is shared."""
    settings = dict(config.settings)
    total = torch.zeros(len(views), *state.init.shape, dtype=state.init.dtype, device=state.init.device)
    for name, weight in config.weights_on(VIEWS):
        component, count = OBJECTIVES[name], config.selected_count(views.shape[1])
        reference = config.reference if component.takes_range else ""
        used = tuple((key, value) for key, value in config.settings if key in component.settings)
        objective = ViewObjective(name, reference, count, config.selection, used)
        if objective not in gradients:
            compute = _view_gradients if cache is None else partial(_cached_gradients, cache)
            gradients[objective] = compute(state, views, zero_shot, objective)
        total = total + weight * gradients[objective]
    for name, weight in config.weights_on(TEXTS):
        total = total + weight * state.text_gradient(name, settings)
    skipped = ~total.flatten(1).isfinite().all(dim=1)
    stepped = adamw_first_step(state.init, total, learning_rate=config.learning_rate, weight_decay=config.weight_decay)
    return torch.where(skipped[:, None, None], state.init, stepped), skipped


def _split(scores: Scores, images: int) -> list[Scores]:
    """Split the concatenated scores of several configs."""
    fields = {name: tensor for name, tensor in vars(scores).items() if tensor is not None}
    parts = zip(*(tensor.split(images) for tensor in fields.values()), strict=True)
    return [Scores(**dict(zip(fields, part, strict=True))) for part in parts]


def failed_on(error: OtptError, names: Sequence[str], configs: Sequence[TuningConfig]) -> OtptError:
    """Add the names of the images to the error of a custom objective."""
    if not any(OBJECTIVES[objective].digest for config in configs for objective, _ in config.weights):
        return error
    where = f"The image was {names[0]!r}" if len(names) == 1 else f"The images were {names[0]!r} to {names[-1]!r}"
    return OtptError(f"{error} {where}.")


class ViewObjective(NamedTuple):
    """Fields of a config that determine the gradient of a view objective; ``views`` is the number of selected views."""

    name: str
    reference: str
    views: int
    selection: str = "confident"
    settings: tuple[tuple[str, object], ...] = ()


def _view_gradients(state: PromptState, views: Tensor, zero_shot: Tensor, objective: ViewObjective) -> Tensor:
    """Compute the gradient (B, n, W) of a view objective at θ₀ for each image."""
    gradients, selected, selected_logits = [], [], []
    for image, logits in zip(views, zero_shot, strict=True):
        chosen = SELECTED_BY[objective.selection](logits, objective.views)
        at_init = logits[chosen]
        cosines = (at_init - state.logit_bias) / state.logit_scale
        with torch.enable_grad():
            leaf = logits[chosen].requires_grad_()
            available = {"logits": leaf, "zero_shot": at_init, "cosines": cosines, "all_views": logits}
            if objective.reference:
                bounds = logit_range(logits[0] if objective.reference == "clean" else leaf[0])
                available |= dict.fromkeys(("current_range", "initial_range"), bounds)
            value = OBJECTIVES[objective.name](available, dict(objective.settings))
        gradients.append(torch.autograd.grad(value, leaf)[0])
        selected.append(image[chosen])
        selected_logits.append(at_init)
    return state.pull_back(torch.stack(gradients), torch.stack(selected), torch.stack(selected_logits))


def _cached_gradients(
    cache: FeatureCache, state: PromptState, views: Tensor, zero_shot: Tensor, objective: ViewObjective
) -> Tensor:
    """Return cached :func:`_view_gradients`, so that further one-step methods need no backward pass."""
    keys = [gradient_key(state, image, objective) for image in to_host([views])[0]]
    device = state.init.device
    gradients: dict[int, Tensor] = {}
    for i, key in enumerate(keys):
        array = cache.get(key, kind="gradients")
        if array is not None:
            gradients[i] = to_device(torch.from_numpy(np.array(array)), device)
    missing = [i for i in range(len(keys)) if i not in gradients]
    if missing:
        computed = _view_gradients(
            state, torch.stack([views[i] for i in missing]), torch.stack([zero_shot[i] for i in missing]), objective
        )
        for i, gradient, on_host in zip(missing, computed, to_host([computed])[0], strict=True):
            gradients[i] = gradient
            cache.put(keys[i], on_host.numpy(), kind="gradients")
    return torch.stack([gradients[i] for i in range(len(keys))])


def gradient_key(state: PromptState, views: Tensor, objective: ViewObjective) -> str:
    """Return the SHA-256 of everything that determines the gradient at θ₀ for view features (V, D) on the host."""
    image = hashlib.sha256(f"{views.dtype} {tuple(views.shape)} ".encode())
    image.update(views.detach().contiguous().numpy().tobytes())
    facts = [*objective, image.hexdigest(), state.fingerprint, __version__, torch.__version__]
    facts.append(OBJECTIVES[objective.name].digest)  # a custom function may change under the same name
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def tune_many_steps(
    state: PromptState,
    views: Tensor,
    config: TuningConfig,
    *,
    zero_shot: Tensor | None = None,
    starts: Tensor | None = None,
    all_views: bool = False,
) -> Scores:
    """Tune each image's context by ``config`` with torch's AdamW; see :func:`tune`."""
    if zero_shot is None:
        zero_shot = state.initial(views, starts).view_logits
        assert zero_shot is not None

    def one_pass(images: Tensor, zero_shot: Tensor, *own: Tensor) -> tuple[Tensor, ...]:
        return _tune_pass(state, images, zero_shot, config, own[0] if own else None)

    inputs = [views, zero_shot] if starts is None else [views, zero_shot, starts]
    contexts, bad = in_passes(one_pass, *inputs, size=state.contexts_per_pass)
    return replace(state.predict(views, contexts, all_views=all_views), contexts=contexts, skipped=bad)


def _tune_pass(
    state: PromptState, images: Tensor, zero_shot: Tensor, config: TuningConfig, start: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Tune the contexts (b, n, W) of one pass of images; return them and a mask (b,) of non-finite gradients."""
    chosen = SELECTED_BY[config.selection](zero_shot, config.selected_count(images.shape[1]))
    selected, selected_logits = _gather(images, chosen), _gather(zero_shot, chosen)
    cosines = (selected_logits - state.logit_bias) / state.logit_scale
    at_init = {"zero_shot": selected_logits, "cosines": cosines, "all_views": zero_shot}
    clean = logit_range(zero_shot[:, 0]) if config.reference == "clean" else None

    at_start = state.linearise(start, selected)
    initial = state.text_features if start is None else at_start.text_features
    point: Point | None = at_start
    del at_start  # each step releases the previous graph
    first_context = (state.init if start is None else start).expand(len(images), -1, -1)
    contexts = first_context.clone().requires_grad_()
    optimiser = torch.optim.AdamW([contexts], lr=config.learning_rate, weight_decay=config.weight_decay)
    bad = torch.zeros(len(images), dtype=torch.bool, device=contexts.device)
    first: Range | None = None
    parts = [config.weights_on(VIEWS), config.weights_on(TEXTS)] if config.two_step else [config.weights]
    parts = [part for part in parts if part]
    for number in cancellable_loop(range(config.steps * len(parts))):
        part = parts[number % len(parts)]
        point = point or state.linearise(contexts.detach(), selected)
        gradient, now = _gradient(
            state, point, part, dict(config.settings), at_init, initial, reference=clean, first=first
        )
        first = first or now
        finite = gradient.flatten(1).isfinite().all(dim=1)
        bad |= ~finite
        contexts.grad = torch.where(finite[:, None, None], gradient, torch.zeros_like(gradient))
        optimiser.step()
        point = None
    return torch.where(bad[:, None, None], first_context, contexts.detach()), bad


def _gather(rows: Tensor, chosen: Tensor) -> Tensor:
    """Return gather rows (b, V, …) at indices (b, k): (b, k, …)."""
    index = chosen.reshape(*chosen.shape, *[1] * (rows.ndim - 2))
    return rows.gather(1, index.expand(-1, -1, *rows.shape[2:]))


def _gradient(
    state: PromptState,
    point: Point,
    weights: tuple[tuple[str, float], ...],
    settings: Mapping[str, object],
    at_init: Mapping[str, Tensor],
    initial: Tensor,
    *,
    reference: Range | None,
    first: Range | None,
) -> tuple[Tensor, Range]:
    """Return ∇_θ Σ weight·objective at a point and the detached range of the most confident view.

    ``initial`` are the text features at the init, ``reference`` a constant reference range, ``first`` the range of the
    first step.
    """
    with torch.enable_grad():
        texts = point.text_features.detach().requires_grad_()
        features = point.features.detach().requires_grad_(state.moves_images)
        logits = state.logits(features, texts)
        now = logit_range(logits[:, 0])
        loss = texts.new_zeros(())
        for objective, weight in weights:
            if OBJECTIVES[objective].on == VIEWS:
                ranges = {"current_range": reference or now, "initial_range": reference or first or now}
                value = OBJECTIVES[objective]({**at_init, **ranges, "logits": logits}, settings)
            else:
                value = state.text_objective(objective, texts, settings, initial)
            loss = loss + weight * value.sum()
    leaves = (texts, features) if state.moves_images else (texts,)
    of_texts, *of_features = torch.autograd.grad(loss, leaves, allow_unused=True)
    gradient = point.pull(of_texts, of_features[0] if of_features else None)
    return gradient, (now[0].detach(), now[1].detach())
