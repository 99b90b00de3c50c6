"""MaPLe: prompts in both towers, tuned per image through the image tower; and PromptAlign.

Features of the views depend on the prompts, so they cannot be cached. All views are encoded under the initial prompts
without a graph, which selects the k most confident; only these k go through the image tower with a graph. Views that
are not selected have no gradient, so this is the gradient of the whole.

    g(T) = VJP_text(∂L/∂E) + ∂L/∂P·A,   g(A_l) = (∂L/∂P_l)ᵀ·T_l,   g(a_l) = Σ_tokens ∂L/∂P_l

All prompts and couplings (T, A, a) are tuned. They are one flat context (1, P) to the tuner, since AdamW works element
by element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import torch
from pydantic import Field, InstanceOf
from torch import Tensor

from otpt.backbones import Backbone, text_encoder
from otpt.backbones.prompted_tower import PromptedTower
from otpt.errors import OtptError
from otpt.files import Json
from otpt.methods.batch import Batch
from otpt.methods.caches import in_first_row
from otpt.methods.coop import learned_images, learned_prompt
from otpt.methods.method import Method
from otpt.methods.path import PromptGroup
from otpt.methods.preparation import Init, Setup, register_init
from otpt.methods.protocol import Protocol
from otpt.methods.state import Point, PromptState, Scores, mean_cosine
from otpt.methods.task import Task
from otpt.methods.tuner import adamw_first_step
from otpt.objectives import entropy_of_mean, fraction_of, select_fraction
from otpt.prompts import MEMORY_BUDGET, Linearisation, Prompt, tokenize_prompts
from otpt.prompts.encoders import PrefixEncoder
from otpt.prompts.learned import MaplePrompts, fingerprint, visual_prompts
from otpt.registry import Fraction, NonNegative, Positive, adaptation
from otpt.views import ViewRecipe

WORDS = "a photo of a"
"""MaPLe's sentence is "a photo of a {name}."; its first n tokens are the learned ones."""
_BLOCKS = 2
"""PromptAlign's released loop over layers 0 … 2 ends one early."""

Tensors = tuple[Tensor, Tensor, Tensor]
"""(T, A, a) of :class:`MaplePrompts`, or gradients of them."""


class MapleState(PromptState):
    """Prompt state of MaPLe's prompts in both towers; images are given as tokens (B, V, L, W_v)."""

    moves_images = True

    def __init__(
        self,
        backbone: Backbone,
        class_names: Sequence[str],
        prompts: MaplePrompts,
        *,
        memory_budget: int = MEMORY_BUDGET,
        tunes: bool = True,
        selected: int = 0,
    ) -> None:
        """``selected``: largest number of views that a step differentiates; determines :attr:`bytes_per_image`."""
        self.tower, self.prompts = prompted_tower(backbone, prompts), prompts
        self._backbone, self._shapes = backbone, [each.shape for each in prompts.tensors]
        tokens = tokenize_prompts(text_encoder(backbone), class_names, Prompt(WORDS, tokens=prompts.text.shape[1]))
        encoder = PrefixEncoder(text_encoder(backbone), tokens, depth=prompts.depth, memory_budget=memory_budget)
        encoder.autocast = text_encoder(backbone).autocast
        self.bytes_per_image = self.tower.graph_bytes(selected)
        super().__init__(
            class_names,
            encoder,
            _flat(prompts.tensors).to(backbone.device, backbone.dtype),
            logit_scale=backbone.logit_scale,
            logit_bias=backbone.logit_bias,
            contexts_per_pass=1,
            tunes=tunes,
        )

    def split(self, context: Tensor) -> Tensors:
        """Split a flat context (1, P) into (T, A, a)."""
        parts = context.flatten().split([shape.numel() for shape in self._shapes])
        text, weights, biases = (part.view(shape) for part, shape in zip(parts, self._shapes, strict=True))
        return text, weights, biases

    def text_line(self, text: Tensor) -> Linearisation:
        """Return the text features and their graph at prompts T (J, n, W)."""
        return Linearisation(self.encoder, text.flatten(0, 1)[None])

    def encoder_input(self, context: Tensor) -> Tensor:
        """See :class:`PromptState`."""
        return self.split(context)[0].flatten(0, 1)[None]

    def inputs(self, batch: Batch, recipe: ViewRecipe) -> tuple[Tensor, None]:
        """Return the tokens (B, V, L, W_v) of the views, which do not depend on the prompts."""
        return torch.stack([self.tower.embed(pixels) for pixels in batch.pixels(recipe, self._backbone)]), None

    def initial(self, views: Tensor, starts: Tensor | None = None) -> Scores:
        """See :class:`PromptState`."""
        contexts = self.init.expand(len(views), -1, -1)
        return replace(self.predict(views, contexts, all_views=True), text_features=self.text_features[None])

    @torch.no_grad()
    def predict(self, views: Tensor, contexts: Tensor, *, all_views: bool = False) -> Scores:
        """See :class:`PromptState`; the clean view is encoded alone, so its rounding depends on no other method."""
        logits, all_texts, all_features, view_logits = [], [], [], []
        for i, context in enumerate(contexts):
            tokens, prompts = views[i % len(views)], visual_prompts(*self.split(context))
            texts = self.text_features if torch.equal(context, self.init) else self.encode(context)
            clean = self.tower(tokens[:1], prompts)
            logits.append(self.logits(clean, texts)[0])
            all_texts.append(texts)
            if all_views:
                features = clean if len(tokens) == 1 else self.tower(tokens, prompts)
                all_features.append(features)
                view_logits.append(self.logits(features, texts))
        together = torch.stack(all_texts)
        return Scores(
            logits=torch.stack(logits),
            text_features=together,
            mean_cosine=mean_cosine(together),
            skipped=torch.zeros(len(contexts), dtype=torch.bool, device=views.device),
            view_logits=torch.stack(view_logits) if all_views else None,
            features=torch.stack(all_features) if all_views else None,
        )

    def linearise(self, contexts: Tensor | None, selected: Tensor) -> Point:
        """See :class:`PromptState`; of one image."""
        parts = self.split(self.init if contexts is None else contexts[0])
        line = self.linearisation if contexts is None else self.text_line(parts[0])
        features, pull = self.through_towers(parts, line, selected[0])
        return Point(line.text_features, features[None], lambda texts, images: _flat(pull(texts, images))[None])

    def through_towers(
        self, parts: Tensors, line: Linearisation, tokens: Tensor
    ) -> tuple[Tensor, Callable[[Tensor, Tensor | None], Tensors]]:
        """Encode tokens (k, L, W_v) under (T, A, a); return features (k, D) and the vector–Jacobian product.

        ``line`` holds the text features of T. The product maps cotangents (1, C, D) and (1, k, D) to gradients of
        (T, A, a).
        """
        text, weights, biases = (each.detach().requires_grad_() for each in parts)
        with torch.enable_grad():
            prompts = visual_prompts(text, weights, biases)
            seen, pull_images = self.tower.linearise(tokens, prompts)

        def pull(of_texts: Tensor, of_images: Tensor | None) -> Tensors:
            through_text = line.vjp(of_texts)[0].view_as(text)
            if of_images is None:
                return through_text, torch.zeros_like(weights), torch.zeros_like(biases)
            with torch.enable_grad():
                coupled = (prompts * pull_images(of_images[0])).sum()
            own = torch.autograd.grad(coupled, (text, weights, biases), retain_graph=True)
            return own[0] + through_text, own[1], own[2]

        return seen, pull

    def pull_back(self, of_logits: Tensor, selected: Tensor, zero_shot: Tensor) -> Tensor:
        """See :class:`PromptState`; image by image."""
        found = []
        for gradient, tokens in zip(of_logits, selected, strict=True):
            point = self.linearise(None, tokens[None])
            of_texts = self.logit_scale * gradient.mT @ point.features[0]
            of_images = self.logit_scale * gradient @ self.text_features
            found.append(point.pull(of_texts[None], of_images[None])[0])
        return torch.stack(found)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors to (1, P)."""
    return torch.cat([each.flatten() for each in tensors])[None]


def prompted_tower(backbone: Backbone, prompts: MaplePrompts) -> PromptedTower:
    """Return the image tower with prompts, or raise an :class:`OtptError` if they do not fit the towers."""
    if prompts.text.shape[-1] != text_encoder(backbone).width:
        raise OtptError(
            f"The MaPLe text prompts have width {prompts.text.shape[-1]}, but the text tower has width "
            f"{text_encoder(backbone).width}; use prompts learned with this backbone."
        )
    tower = PromptedTower(backbone)
    tower.check_depth(prompts.depth, prompts.weights.shape[1])
    return tower


@register_init
class Maple(Init):
    """MaPLe: learned prompts in both towers (Khattak et al., CVPR 2023)."""

    name: ClassVar[str] = "maple"
    needs_features: ClassVar[bool] = False

    context: str | Path | InstanceOf[MaplePrompts] | None = Field(
        None, description="file of 'otpt train maple' or of MaPLe's code"
    )

    @cached_property
    def learned(self) -> MaplePrompts:
        """The learned prompts."""
        return learned_prompt(MaplePrompts, self.context)

    @property
    def needs_image(self) -> bool:
        """See :class:`Init`."""
        return True

    def check(self, setup: Setup) -> None:
        """See :class:`Init`."""
        prompted_tower(setup.backbone, self.learned)

    def prepare(self, setup: Setup) -> Sequence[PromptGroup]:
        """See :class:`Init`."""
        selected = 0
        for method in setup.methods:
            config = method.tuning(*setup.protocol.place)
            recipe = setup.protocol.recipe_for(method)
            if method.needs_context and recipe is not None:
                views = fraction_of(recipe.n_views, method.selection_ratio)
                selected = max(selected, views if config is None else config.selected_count(recipe.n_views))
        state = MapleState(
            setup.backbone,
            setup.task.classes,
            self.learned,
            memory_budget=setup.protocol.memory_budget,
            tunes=any(method.needs_context for method in setup.methods),
            selected=selected,
        )
        return [setup.group(self.name, state)]

    def facts(self, task: Task, protocol: Protocol, method: Method) -> Mapping[str, Json]:
        """See :class:`Init`."""
        return {"fingerprint": fingerprint(self.learned)}

    def learned_from(self) -> Mapping[str, Sequence[str]]:
        """See :class:`Init`."""
        return learned_images(MaplePrompts, self.context)


# ---- PromptAlign ----------------------------------------------------------------------------------------------------


@adaptation(
    init="maple",
    only={"init": ("maple",)},
    augmix=False,
    source="Abdul Samadh et al., NeurIPS 2023, arXiv 2311.01459",
    settings={"align_rate": {"fine-grained": 5e-4, "shift": 4e-2}},
)
def prompt_align(
    inputs: Tensor,
    logits: Tensor,
    prompt_state: MapleState,
    align_weight: NonNegative = 100 / 3,
    align_rate: Positive = 5e-4,
    align_decay: NonNegative = 0.01,
    align_ratio: Fraction = 0.1,
) -> Tensor:
    """PromptAlign: one step on MaPLe's prompts that also aligns token statistics with those of source images.

    L = H(p̄) + w·Σ_l (½·mean|m_l − M_l| + ½·mean|v_l − S_l|) over the int(V·ratio) most confident views. m_l and v_l
    are mean and variance over these views of the tokens that enter block l = 0, 1 of the image tower, M_l and S_l the
    same over source images; w = 100/3, published as 100 over three layers. M and S are part of a file of MaPLe's
    prompts that ``otpt train maple`` made. Then one AdamW step on all prompts and couplings.

    Args:
        inputs: (V, T, W_v) tokens of the views.
        logits: (V, C).

    Returns:
        (V, C): the first row is the prediction, further views keep their zero-shot logits.
    """
    source = source_moments(prompt_state)
    logits_here = logits.to(inputs.device)
    chosen = select_fraction(logits_here, align_ratio)
    selected = inputs[chosen]
    text, weights, biases = (each.detach().requires_grad_() for each in prompt_state.split(prompt_state.init))
    with torch.enable_grad():
        leaf = logits_here[chosen].requires_grad_()
        entropy = entropy_of_mean(leaf)
        entering = prompt_state.tower.block_inputs(selected, visual_prompts(text, weights, biases), _BLOCKS)
        distance = alignment(entering, *source)
    (of_logits,) = torch.autograd.grad(entropy, leaf)
    of_distance = torch.autograd.grad(distance, (text, weights, biases), allow_unused=True)
    parts = zip(of_distance, (text, weights, biases), strict=True)
    flat = torch.cat([torch.zeros(own.numel()).to(own) if each is None else each.flatten() for each, own in parts])
    gradient = prompt_state.pull_back(of_logits[None], selected[None], leaf.detach()[None])[0] + align_weight * flat
    context = adamw_first_step(prompt_state.init, gradient, learning_rate=align_rate, weight_decay=align_decay)
    found = prompt_state.predict(inputs[None, :1], context[None]).logits[0]
    return in_first_row(found.to(logits), logits)


def alignment(entering: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """Compute Σ_l ½·mean|m_l − M_l| + ½·mean|v_l − S_l| of k views (k, B, T, W), with M and S (B, T, W)."""
    mean, variance = entering.mean(dim=0), entering.var(dim=0, unbiased=False)
    return 0.5 * ((mean - means).abs() + (variance - variances).abs()).mean(dim=(1, 2)).sum()


def source_moments(state: MapleState) -> tuple[Tensor, Tensor]:
    """Return the moments M and S (2, T + n, W_v) of the source images, stored with the prompts."""
    prompts = state.prompts
    if prompts.means is None or prompts.variances is None:
        raise OtptError(
            "prompt-align needs token statistics of source images, but the MaPLe file has none; create one with "
            "'otpt train maple', or in Python set means and variances of MaplePrompts."
        )
    means, variances = (each[:_BLOCKS].to(state.init) for each in (prompts.means, prompts.variances))
    expected = (_BLOCKS, state.tower.length + prompts.text.shape[1], state.tower.width)
    if tuple(means.shape) != expected or tuple(variances.shape) != expected:
        raise OtptError(
            f"The token statistics of the MaPLe file have shape {tuple(prompts.means.shape)}; expected {expected} "
            "or more blocks, computed with the same backbone and prompts."
        )
    return means, variances
