"""The two-tower engine: prompts in both towers (MaPLe), tuned for each image through the image tower.

Features of the views depend on the prompts, so nothing can be cached. But most of the work needs no graph: all views
are encoded without one under the initial prompts, which selects the k most confident; only these k go through the image
tower with graph. The views that are not selected have no gradient, so this is the gradient of the whole. The text side
starts the same for every image: its graph is kept, and the gradient of an objective that sees only the texts is a
constant.

    g(T) = VJP_text(∂L/∂E) + ∂L/∂P·A,   g(A_l) = (∂L/∂P_l)ᵀ·T_l,   g(a_l) = Σ_tokens ∂L/∂P_l

All prompts and couplings (T, A, a) are tuned, by AdamW from an empty state.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from otpt.backbones import Backbone
from otpt.backbones.towers.prompted_tower import PromptedTower
from otpt.entropy import SELECTED_BY
from otpt.errors import OtptError
from otpt.methods.prompt_tuning.config import TuningConfig
from otpt.methods.prompt_tuning.gradients import ViewObjective, view_objective
from otpt.methods.prompt_tuning.passes import mean_cosine
from otpt.objectives import Range, logit_range
from otpt.prompts import MEMORY_BUDGET, Linearisation, Prompt, check_class_names, tokenize_prompts
from otpt.prompts.learned import DeepPrefixEncoder, MaplePrompts, visual_prompts
from otpt.registry import OBJECTIVES, TEXTS

WORDS = "a photo of a"
"""MaPLe's sentence is "a photo of a {name}."; its first n tokens are the learned ones."""

Tensors = tuple[Tensor, Tensor, Tensor]
"""(T, A, a) of :class:`MaplePrompts`, or gradients of them."""


@dataclass
class _Views:
    """The selected views of an image, as tokens (k, T, W_v), and whose range of logits the range objectives take.

    Attributes:
        config: what to minimise and how.
        all_views: (V, C) logits of all views under the initial prompts, the clean one first.
        zero_shot: (k, C) those of the selected ones.
        first: range of the most confident view in the first step.
    """

    selected: Tensor
    config: TuningConfig
    all_views: Tensor
    zero_shot: Tensor
    first: Range | None = None

    def ranges(self, logits: Tensor) -> dict[str, Range]:
        """The reference ranges, given the logits (k, C) of the selected views now."""
        if self.config.reference == "clean":
            return dict.fromkeys(("current_range", "initial_range"), logit_range(self.all_views[0]))
        now = logit_range(logits[0])
        return {"current_range": now, "initial_range": self.first or now}

    @property
    def settings(self) -> dict[str, float]:
        """Of the objectives."""
        return dict(self.config.settings)


_Shared = dict[ViewObjective, tuple[Tensors, Range]]


class TwoTowerSide:
    """Text features and image tower under initial prompts.

    Attributes:
        class_names: as given.
        init: (T, A, a) in the backbone's type.
        text_features: (C, D), E₀.
        logit_scale: ∂logit/∂cosine.
    """

    def __init__(
        self,
        backbone: Backbone,
        class_names: Sequence[str],
        prompts: MaplePrompts,
        *,
        allow_duplicates: bool = False,
        memory_budget: int = MEMORY_BUDGET,
    ) -> None:
        self.class_names = check_class_names(class_names, allow_duplicates=allow_duplicates)
        self.tower = prompted_tower(backbone, prompts)
        words = Prompt(WORDS, tokens=prompts.text.shape[1])
        tokens = tokenize_prompts(backbone.text, self.class_names, words)
        self.encoder = DeepPrefixEncoder(backbone.text, tokens, depth=prompts.depth, memory_budget=memory_budget)
        self.encoder.autocast = backbone.text.autocast
        text, weights, biases = (tensor.to(backbone.device, backbone.dtype) for tensor in prompts.tensors)
        self.init: Tensors = (text, weights, biases)
        self.linearisation = self.encoder.linearise(text.flatten(0, 1)[None])
        self.text_features = self.linearisation.text_features[0]
        self.logit_scale, self._bias = backbone.logit_scale, backbone.logit_bias
        self._text_gradients: dict[tuple[str, tuple[tuple[str, float], ...]], Tensors] = {}
        self._computing = threading.Lock()

    def logits(self, image_features: Tensor, text_features: Tensor) -> Tensor:
        """scale · v·e + bias: (V, D) and (C, D) → (V, C)."""
        return self.logit_scale * image_features @ text_features.mT + self._bias

    def cosines(self, logits: Tensor) -> Tensor:
        """(ℓ − bias)/scale, what :meth:`logits` was made of."""
        return (logits - self._bias) / self.logit_scale

    def at_init(self, pixels: Tensor) -> TwoTowerTuned:
        """One image (V, 3, S, S), the clean view first, under the initial prompts."""
        tokens = self.tower.embed(pixels)
        return self._predict(tokens, self.init, tokens.new_zeros((), dtype=torch.bool))

    def tune(self, initial: TwoTowerTuned, configs: Sequence[TuningConfig]) -> dict[TuningConfig, TwoTowerTuned]:
        """The image of :meth:`at_init` as each config tunes its prompts."""
        shared: _Shared = {}
        return {config: self._tune(initial, config, shared) for config in dict.fromkeys(configs)}

    def gradient(self, pixels: Tensor, config: TuningConfig) -> Tensors:
        """∇(T, A, a) of the config's loss at the initial prompts, of one image (V, 3, S, S)."""
        views = self._selected(self.at_init(pixels), config)
        return self._gradient(config.weights, self.linearisation, self.init, views, {})

    @staticmethod
    def _selected(initial: TwoTowerTuned, config: TuningConfig) -> _Views:
        logits = initial.rows
        chosen = SELECTED_BY[config.selection](logits, config.selected_count(len(logits)))
        return _Views(initial.tokens[chosen], config, logits, logits[chosen])

    def _tune(self, initial: TwoTowerTuned, config: TuningConfig, shared: _Shared) -> TwoTowerTuned:
        """``shared``: gradients of view objectives at the initial prompts, of this image."""
        views, tokens = self._selected(initial, config), initial.tokens
        finite, on_cpu = tokens.new_ones((), dtype=torch.bool), tokens.device.type == "cpu"
        text, weights, biases = (tensor.clone() for tensor in self.init)
        optimiser = torch.optim.AdamW(
            [text, weights, biases], lr=config.learning_rate, weight_decay=config.weight_decay
        )
        parts = [config.view_weights, config.text_weights] if config.two_step else [config.weights]
        for step, part in enumerate(config.steps * [part for part in parts if part]):
            line = self.encoder.linearise(text.flatten(0, 1)[None]) if step else self.linearisation
            total = self._gradient(part, line, (text, weights, biases), views, {} if step else shared)
            finite = finite & torch.stack([each.isfinite().all() for each in total]).all()
            if on_cpu and not finite:
                return self._predict(tokens, self.init, ~finite)
            # elsewhere nobody waits for the answer: steps go on, and are not used in the end
            text.grad, weights.grad, biases.grad = total
            optimiser.step()
        state = (text, weights, biases)
        return self._predict(tokens, state if on_cpu else _where(finite, state, self.init), ~finite)

    def _gradient(
        self,
        weights: Sequence[tuple[str, float]],
        line: Linearisation,
        state: Tensors,
        views: _Views,
        shared: _Shared,
    ) -> Tensors:
        """∇(T, A, a) of Σ weight·objective at ``state``, whose text features are those of ``line``."""
        total = [torch.zeros_like(tensor) for tensor in state]
        for objective, weight in weights:
            if OBJECTIVES[objective].on == TEXTS:
                found = self._text_gradient(objective, views.settings, line)
            else:
                key = view_objective(objective, views.config, len(views.all_views))
                if key not in shared:
                    shared[key] = self._view_gradient(objective, line, state, views)
                found, now = shared[key]
                views.first = views.first or now
            total = [each + weight * own for each, own in zip(total, found, strict=True)]
        return total[0], total[1], total[2]

    def _text_gradient(self, objective: str, settings: Mapping[str, float], line: Linearisation) -> Tensors:
        """∇(T, A, a) of an objective that sees the text features only; at the start computed once and kept."""
        own = OBJECTIVES[objective].own_settings(settings)
        if line is not self.linearisation:
            return self._text_gradient_at(objective, own, line)
        key = (objective, tuple(own.items()))
        with self._computing:  # several images at a time ask for the same one
            if key not in self._text_gradients:
                self._text_gradients[key] = self._text_gradient_at(objective, own, line)
        return self._text_gradients[key]

    def _text_gradient_at(self, objective: str, own: Mapping[str, float], line: Linearisation) -> Tensors:
        with torch.enable_grad():
            features = line.text_features[0].detach().requires_grad_()
            available = {"text_features": features, "initial_text_features": self.text_features, "attributes": 1}
            value = OBJECTIVES[objective](available, own)
        (cotangent,) = torch.autograd.grad(value, features)
        text, weights, biases = self.init
        return line.vjp(cotangent[None])[0].view_as(text), torch.zeros_like(weights), torch.zeros_like(biases)

    def _view_gradient(
        self, objective: str, line: Linearisation, state: Tensors, views: _Views
    ) -> tuple[Tensors, Range]:
        """∇(T, A, a) of an objective of the selected views, and the range of the most confident one."""

        def loss(logits: Tensor) -> Tensor:
            own = views.zero_shot
            at_init = {"zero_shot": own, "cosines": self.cosines(own), "all_views": views.all_views}
            value: Tensor = OBJECTIVES[objective]({**at_init, **views.ranges(logits), "logits": logits}, views.settings)
            return value

        logits, gradients = self.differentiate(loss, views.selected, state, line)
        return gradients, logit_range(logits[0])

    def differentiate(
        self, loss: Callable[[Tensor], Tensor], tokens: Tensor, state: Tensors, line: Linearisation
    ) -> tuple[Tensor, Tensors]:
        """Logits (N, C) of images given as tokens (N, T, W_v), and ∇(T, A, a) of their ``loss`` at ``state``.

        ``line`` has the text features of ``state``.
        """
        text, weights, biases = (tensor.detach().requires_grad_() for tensor in state)
        with torch.enable_grad():
            prompts = visual_prompts(text, weights, biases)
            seen, pull = self.tower.linearise(tokens, prompts)
            images, features = seen.requires_grad_(), line.text_features[0].detach().requires_grad_()
            logits = self.logits(images, features)
            value = loss(logits)
        of_images, of_texts = torch.autograd.grad(value, (images, features))
        with torch.enable_grad():
            coupled = (prompts * pull(of_images)).sum()
        own = torch.autograd.grad(coupled, (text, weights, biases))
        through_text = line.vjp(of_texts[None])[0].view_as(text)
        return logits.detach(), (own[0] + through_text, own[1], own[2])

    @torch.no_grad()
    def _predict(self, tokens: Tensor, state: Tensors, skipped: Tensor) -> TwoTowerTuned:
        """The clean view always goes through the tower alone: its rounding is the same whatever the other methods."""
        texts = self.text_features if state is self.init else self.encoder.encode(state[0].flatten(0, 1)[None])[0]
        logits = self.logits(self.tower(tokens[:1], visual_prompts(*state)), texts)
        return TwoTowerTuned(self, tokens, state, logits, texts, skipped)


def _where(condition: Tensor, one: Tensors, other: Tensors) -> Tensors:
    text, weights, biases = (torch.where(condition, *pair) for pair in zip(one, other, strict=True))
    return text, weights, biases


@dataclass(frozen=True)
class TwoTowerTuned:
    """An image under prompts of its own.

    Attributes:
        tokens: (V, T, W_v) of its views.
        state: (T, A, a).
        logits: (1, C) of the clean view.
        text_features: (C, D).
        skipped: (), whether the gradient was not finite, so that the image kept the initial prompts.
    """

    side: TwoTowerSide
    tokens: Tensor
    state: Tensors
    logits: Tensor
    text_features: Tensor
    skipped: Tensor

    @property
    def mean_cosine(self) -> Tensor:
        """(1,)"""
        return mean_cosine(self.text_features)[None]

    @cached_property
    @torch.no_grad()
    def features(self) -> Tensor:
        """(V, D) of all views; computed when asked for."""
        return self.side.tower(self.tokens, visual_prompts(*self.state))

    @cached_property
    def rows(self) -> Tensor:
        """(V, C) logits of all views; computed when asked for."""
        return self.side.logits(self.features, self.text_features)


def prompted_tower(backbone: Backbone, prompts: MaplePrompts) -> PromptedTower:
    """The image tower that takes prompts; an error if these do not fit the backbone's towers."""
    if prompts.text.shape[-1] != backbone.text.width:
        raise OtptError(
            f"The prompts of MaPLe are {prompts.text.shape[-1]} wide on the text side; this text tower is "
            f"{backbone.text.width} wide. Take prompts that were learned with this backbone."
        )
    tower = PromptedTower(backbone)
    tower.check_depth(prompts.depth, prompts.weights.shape[1])
    return tower
