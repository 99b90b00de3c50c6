"""The text side of tuning: prepared once for a class list, then serves every image."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from otpt.backbones import Backbone
from otpt.prompts import (
    MEMORY_BUDGET,
    DescriptionEncoder,
    Descriptions,
    FixedEncoder,
    FixedTexts,
    Prompt,
    PromptEncoder,
    PromptTokens,
    TemplateEncoder,
    Templates,
    TextFeatures,
    check_class_names,
    prompt_encoder,
    tokenize_prompts,
)
from otpt.prompts.tokens import sentence_tokens
from otpt.registry import OBJECTIVES


class TextSide:
    """Text features under an initial context θ₀, with the graph that all images share.

    Every image starts from the same θ₀ with an empty optimiser. So E₀ = E(θ₀) and its graph are computed once, and
    the gradient of an objective that sees only the texts is a constant.

    Attributes:
        class_names: as given.
        prompt: the prompt; or templates or descriptions, whose text features are averaged, or text features. There is
            no context then: n = 0.
        encoder: contexts → text features.
        init: (n, W), θ₀.
        text_features: (C, D), E₀.
        attributes: texts per class; 1 here.
        logit_scale: ∂logit/∂cosine.
        contexts_per_pass: contexts that go through the text tower together. Always exactly this many, by repeating the
            last where fewer are left: the size of a matrix product may change its rounding, and what an image gets
            must not depend on its neighbours. One on a CPU, where the classes of one context fill the cores already.
    """

    attributes = 1

    def __init__(
        self,
        backbone: Backbone,
        class_names: Sequence[str],
        prompt: Prompt | FixedTexts | None = None,
        *,
        allow_duplicates: bool = False,
        memory_budget: int = MEMORY_BUDGET,
        contexts_per_pass: int | None = None,
        names_in_texts: Sequence[str] | None = None,
    ) -> None:
        """``names_in_texts`` stand in the texts in place of the class names."""
        names = check_class_names(class_names, allow_duplicates=allow_duplicates)
        self.prompt = prompt or Prompt()
        self._tower, self._memory_budget = backbone.text, memory_budget
        self._tokens, encoder = _encoder(backbone, names, self.prompt, names_in_texts or names, memory_budget)
        self._facts: dict[str, object] = {
            "backbone": backbone.fingerprint,
            "device": backbone.device.type,
            "memory": memory_budget,
        }
        init = self._tokens.start.to(device=backbone.device, dtype=backbone.dtype)
        self._prepare(names, encoder, init, backbone.logit_scale, backbone.logit_bias, contexts_per_pass)

    def _prepare(
        self,
        class_names: tuple[str, ...],
        encoder: PromptEncoder,
        init: Tensor,
        logit_scale: float,
        logit_bias: float,
        contexts_per_pass: int | None = None,
    ) -> None:
        """What images are predicted with, of any encoder and initial context (n, W)."""
        self.class_names, self.encoder, self.init = class_names, encoder, init
        self.logit_scale, self._bias = logit_scale, logit_bias
        self.contexts_per_pass = contexts_per_pass or (1 if init.device.type == "cpu" else 8)
        self.linearisation = self.encoder.linearise(self.init.expand(self.contexts_per_pass, -1, -1))
        self.text_features = self.linearisation.text_features[0]
        self._text_gradients: dict[tuple[str, tuple[tuple[str, float], ...]], Tensor] = {}
        self._encoded: dict[Hashable, Tensor] = {}
        self._computing = threading.Lock()

    @cached_property
    def fingerprint(self) -> str:
        """64 hexadecimal digits of all that a gradient at θ₀ depends on besides the image features, rounding included.

        Tokens stand for class names and prompt, θ₀ for learned vectors; E₀ also shows another precision, processor or
        kernel where these change the last bits.
        """
        numbers = {"contexts": self.contexts_per_pass, "scale": self.logit_scale, "bias": self._bias}
        digest = hashlib.sha256(json.dumps({**self._facts, **numbers}, sort_keys=True).encode())
        tokens = self._tokens
        for tensor in (tokens.ids, tokens.slots, tokens.rows, self.init, self.text_features):
            digest.update(f"\n{tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def logits(self, image_features: Tensor, text_features: Tensor) -> Tensor:
        """scale · v·e + bias: (…, V, D) and (…, C, D) → (…, V, C)."""
        return self.logit_scale * image_features @ text_features.mT + self._bias

    def cosines(self, logits: Tensor) -> Tensor:
        """(ℓ − bias)/scale, what :meth:`logits` was made of: also SigLIP's logits, which have a bias."""
        return (logits - self._bias) / self.logit_scale

    def zero_shot(self, views: Tensor) -> Tensor:
        """Logits of the clean view under the initial context: (B, V, D) → (B, C).

        Image by image, as in tuning: one matrix product of fixed size each.
        """
        return torch.stack([self.logits(image[:1], self.text_features)[0] for image in views])

    def pull_back(self, gradient: Tensor, image_features: Tensor) -> Tensor:
        """∂L/∂E = scale · (∂L/∂ℓ)ᵀ V_S at E₀, of ∂L/∂ℓ (k, C) and the k views' features (k, D): (C, D)."""
        return self.logit_scale * gradient.mT @ image_features

    def texts_of(self, classes: Tensor) -> Tensor:
        """Which texts are those of ``classes``, in the order of all texts."""
        return classes

    def part_encoder(self, texts: Tensor) -> PromptEncoder:
        """An encoder of some of the texts, under the same contexts."""
        return prompt_encoder(self._tower, self._tokens.part(texts), memory_budget=self._memory_budget)

    def class_features(self, text_features: Tensor) -> Tensor:
        """Unit text features of the classes, (…, C, D), of those of all texts: the same where each class has one."""
        return text_features

    def objective(
        self, name: str, text_features: Tensor, settings: Mapping[str, float], initial: Tensor | None = None
    ) -> Tensor:
        """The value (…) of a text objective; ``initial`` are the text features at the init, E₀ unless given."""
        reference = self.text_features if initial is None else initial
        available = {"text_features": text_features, "initial_text_features": reference, "attributes": self.attributes}
        value: Tensor = OBJECTIVES[name](available, settings)
        return value

    def text_gradient(self, objective: str, settings: Mapping[str, float]) -> Tensor:
        """∇_θ of a text objective at θ₀, (n, W): computed when first asked for, then kept."""
        own = OBJECTIVES[objective].own_settings(settings)
        key = (objective, tuple(own.items()))
        with self._computing:  # several images at a time ask for the same one
            if key not in self._text_gradients:
                features = self.linearisation.text_features.detach().requires_grad_()
                with torch.enable_grad():
                    value = self.objective(objective, features, own).sum()
                (cotangent,) = torch.autograd.grad(value, features)
                self._text_gradients[key] = self.linearisation.vjp(cotangent)[0]
        return self._text_gradients[key]

    def encoded_once(self, key: Hashable, context: Tensor) -> Tensor:
        """Text features (C, D) of a context (n, W) that all images share; kept, so that one pass serves them all.

        ``key`` stands for the context: what it was made by, given this text side.
        """
        with self._computing:
            if key not in self._encoded:
                self._encoded[key] = self.encoder.encode(context.expand(self.contexts_per_pass, -1, -1))[0]
        return self._encoded[key]


def _encoder(
    backbone: Backbone,
    names: tuple[str, ...],
    prompt: Prompt | FixedTexts,
    names_in_texts: Sequence[str],
    memory_budget: int,
) -> tuple[PromptTokens, PromptEncoder]:
    """Tokens, whose start is the initial context, and what encodes them."""
    tower = backbone.text
    if isinstance(prompt, Prompt):
        tokens = tokenize_prompts(tower, names_in_texts, prompt)
        return tokens, prompt_encoder(tower, tokens, memory_budget=memory_budget)
    if isinstance(prompt, Templates):
        tokens = sentence_tokens(tower, prompt.texts(names)[0])
        return tokens, TemplateEncoder(tower, names, prompt, memory_budget=memory_budget)
    if isinstance(prompt, Descriptions):
        tokens = sentence_tokens(tower, [own[0] for own in prompt.texts])
        return tokens, DescriptionEncoder(tower, prompt, memory_budget=memory_budget)
    assert isinstance(prompt, TextFeatures)
    none = torch.empty(len(names), 0, dtype=torch.long)
    tokens = PromptTokens(none, none, tower.embed(none[0]), none)
    return tokens, FixedEncoder(prompt.features.to(device=backbone.device, dtype=backbone.dtype))
