"""The two-tower engine: prompts in both towers (MaPLe), tuned for each picture through the image tower.

Features of the views depend on the prompts, so nothing can be cached. But most of the work needs no graph: all views
are encoded without one under the start prompts, which selects the k most confident; only these k go through the image
tower with graph. The views that are not selected have no gradient, so this is the gradient of the whole. The text side
starts the same for every picture: its graph is kept, and the gradient of an objective that sees only the texts is a
constant.

    g(T) = VJP_text(∂L/∂E) + ∂L/∂P·A,   g(A_l) = (∂L/∂P_l)ᵀ·T_l,   g(a_l) = Σ_tokens ∂L/∂P_l

All prompts and couplings (T, A, a) are tuned, by AdamW from an empty state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from otpt.backbones import Backbone
from otpt.backbones.prompted_tower import PromptedTower
from otpt.errors import OtptError
from otpt.objectives import logit_range, select_confident
from otpt.objectives.logit_range import Range
from otpt.prompts import MEMORY_BUDGET, Linearisation, Prompt, check_class_names, tokenize_prompts
from otpt.prompts.learned import DeepPrefixEncoder, MaplePrompts, visual_prompts
from otpt.tuning.passes import Judgement, Tuned, mean_cosine
from otpt.tuning.plan import TEXT_OBJECTIVES, VIEW_OBJECTIVES, TuningPlan

WORDS = "a photo of a"
"""MaPLe's sentence is "a photo of a {name}."; its first n tokens are the learned ones."""

Tensors = tuple[Tensor, Tensor, Tensor]
"""(T, A, a) of :class:`MaplePrompts`, or gradients of them."""


@dataclass
class _Views:
    """The selected views of a picture, as tokens (k, T, W_v), and whose range of logits the range objectives take.

    Attributes:
        reference: "clean" or "confident"; see :class:`TuningPlan`.
        clean: (C,) logits of the clean view under the start prompts.
        first: range of the most confident view in the first step, which the rescaled entropy keeps.
    """

    selected: Tensor
    reference: str
    clean: Tensor
    first: Range | None = None

    def range_of(self, objective: str) -> Range | None:
        """The range that an objective refers to; None for that of the most confident view now."""
        if self.reference == "clean":
            return logit_range(self.clean)
        return self.first if objective == "rescaled-entropy" else None


_Shared = dict[tuple[str, str, int], tuple[Tensors, Range]]
"""By objective, reference and number of views."""


class TwoTowerSide:
    """Class texts and image tower under start prompts.

    Attributes:
        class_names: as given.
        start: (T, A, a) in the backbone's type.
        text_features: (C, D), E₀.
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
        text, weights, biases = (tensor.to(backbone.device, backbone.dtype) for tensor in prompts.tensors)
        self.start: Tensors = (text, weights, biases)
        self.linearisation = self.encoder.linearise(text.flatten(0, 1)[None])
        self.text_features = self.linearisation.text_features[0]
        self._scale, self._bias = backbone.logit_scale, backbone.logit_bias
        self._text_gradients: dict[str, Tensors] = {}

    def logits(self, image_features: Tensor, text_features: Tensor) -> Tensor:
        """scale · v·e + bias: (V, D) and (C, D) → (V, C)."""
        return self._scale * image_features @ text_features.mT + self._bias

    def judge(self, pixels: Tensor, plans: Sequence[TuningPlan]) -> Judgement:
        """Pictures (B, V, 3, S, S), the clean view first, under the start prompts and as each plan tunes them."""
        judged = [self._judge_one(picture, plans) for picture in pixels]
        tuned = {plan: _joined([each.tuned[plan] for each in judged]) for plan in plans}
        cosines = torch.cat([each.mean_cosine for each in judged])
        return Judgement(torch.cat([each.logits for each in judged]), cosines, tuned)

    def _judge_one(self, pixels: Tensor, plans: Sequence[TuningPlan]) -> Judgement:
        tokens = self.tower.embed(pixels if plans else pixels[:1])
        at_start = self._at_start(tokens)
        shared: _Shared = {}
        tuned = {plan: self._tune(tokens, at_start, plan, shared) for plan in dict.fromkeys(plans)}
        return Judgement(at_start[:1], mean_cosine(self.text_features)[None], tuned)

    def gradient(self, pixels: Tensor, plan: TuningPlan) -> Tensors:
        """∇(T, A, a) of the plan's loss at the start prompts, of one picture (V, 3, S, S)."""
        tokens = self.tower.embed(pixels)
        at_start = self._at_start(tokens)
        views = _Views(
            tokens[select_confident(at_start, plan.selected_count(len(tokens)))], plan.reference, at_start[0]
        )
        return self._gradient(plan.weights, self.linearisation, self.start, views, {})

    @torch.no_grad()
    def _at_start(self, tokens: Tensor) -> Tensor:
        return self.logits(self.tower(tokens, visual_prompts(*self.start)), self.text_features)

    def _tune(self, tokens: Tensor, at_start: Tensor, plan: TuningPlan, shared: _Shared) -> Tuned:
        """``shared``: gradients of view objectives at the start prompts, of this picture."""
        views = _Views(
            tokens[select_confident(at_start, plan.selected_count(len(tokens)))], plan.reference, at_start[0]
        )
        text, weights, biases = (tensor.clone() for tensor in self.start)
        optimiser = torch.optim.AdamW([text, weights, biases], lr=plan.learning_rate, weight_decay=plan.weight_decay)
        parts = [plan.view_weights, plan.text_weights] if plan.two_step else [plan.weights]
        for step, part in enumerate(plan.steps * [part for part in parts if part]):
            line = self.encoder.linearise(text.flatten(0, 1)[None]) if step else self.linearisation
            total = self._gradient(part, line, (text, weights, biases), views, {} if step else shared)
            if not all(bool(each.isfinite().all()) for each in total):
                return self._predict(tokens[:1], self.start, skipped=True)
            text.grad, weights.grad, biases.grad = total
            optimiser.step()
        return self._predict(tokens[:1], (text, weights, biases), skipped=False)

    def _gradient(
        self,
        weights: Sequence[tuple[str, float]],
        line: Linearisation,
        state: Tensors,
        views: _Views,
        shared: _Shared,
    ) -> Tensors:
        """∇(T, A, a) of Σ weight·objective at ``state``, whose class texts are those of ``line``."""
        total = [torch.zeros_like(tensor) for tensor in state]
        for objective, weight in weights:
            if objective in TEXT_OBJECTIVES:
                found = self._text_gradient(objective, line)
            else:
                key = (objective, "" if objective == "entropy" else views.reference, len(views.selected))
                if key not in shared:
                    shared[key] = self._view_gradient(objective, line, state, views)
                found, now = shared[key]
                views.first = views.first or now
            total = [each + weight * own for each, own in zip(total, found, strict=True)]
        return total[0], total[1], total[2]

    def _text_gradient(self, objective: str, line: Linearisation) -> Tensors:
        """∇(T, A, a) of an objective that sees the class texts only; at the start computed once and kept."""
        if line is self.linearisation and objective in self._text_gradients:
            return self._text_gradients[objective]
        with torch.enable_grad():
            features = line.text_features[0].detach().requires_grad_()
            value = TEXT_OBJECTIVES[objective](features)
        (cotangent,) = torch.autograd.grad(value, features)
        text, weights, biases = self.start
        found = line.vjp(cotangent[None])[0].view_as(text), torch.zeros_like(weights), torch.zeros_like(biases)
        if line is self.linearisation:
            self._text_gradients[objective] = found
        return found

    def _view_gradient(
        self, objective: str, line: Linearisation, state: Tensors, views: _Views
    ) -> tuple[Tensors, Range]:
        """∇(T, A, a) of an objective of the selected views, and the range of the most confident one."""

        def loss(logits: Tensor) -> Tensor:
            return VIEW_OBJECTIVES[objective](logits, views.range_of(objective) or logit_range(logits[0]))

        logits, gradients = self.differentiate(loss, views.selected, state, line)
        return gradients, logit_range(logits[0])

    def differentiate(
        self, loss: Callable[[Tensor], Tensor], tokens: Tensor, state: Tensors, line: Linearisation
    ) -> tuple[Tensor, Tensors]:
        """Logits (N, C) of pictures given as tokens (N, T, W_v), and ∇(T, A, a) of their ``loss`` at ``state``.

        ``line`` has the class texts of ``state``.
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
    def _predict(self, clean: Tensor, state: Tensors, *, skipped: bool) -> Tuned:
        contexts = state[0].flatten(0, 1)[None]
        features = self.encoder.encode(contexts)
        logits = self.logits(self.tower(clean, visual_prompts(*state)), features[0])
        return Tuned(logits, contexts, torch.tensor([skipped]), mean_cosine(features))


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


def _joined(parts: Sequence[Tuned]) -> Tuned:
    columns = ([getattr(each, name) for each in parts] for name in Tuned.__dataclass_fields__)
    return Tuned(*(torch.cat(column) for column in columns))
