"""Prompt states: text features under an initial context, prepared once per class list, then used for every image."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Required, TypedDict

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import Unpack

from otpt.backbones import Backbone, text_encoder
from otpt.errors import OtptError
from otpt.methods.attributes import names_with_attributes
from otpt.methods.batch import Batch
from otpt.prompts import (
    MEMORY_BUDGET,
    FixedEncoder,
    FixedTexts,
    Linearisation,
    Prompt,
    PromptEncoder,
    PromptTokens,
    Templates,
    TextFeatures,
    description_features,
    prompt_encoder,
    template_features,
    tokenize_prompts,
)
from otpt.prompts.tokens import fixed_tokens, sentence_tokens
from otpt.registry import OBJECTIVES
from otpt.views import ViewRecipe

Encoder = Callable[[Tensor], Tensor]
"""A context (n, W) → text features (C, D), differentiable."""


@dataclass(frozen=True)
class Scores:
    """Scores of B images under a prompt.

    Attributes:
        logits: (B, C) of the clean view.
        text_features: (B, C, D), or (1, C, D) if all images share them.
        mean_cosine: (B,) mean cosine similarity between text features of different classes.
        skipped: (B,) whether the image kept the initial context because a gradient was not finite.
        view_logits: (B, V, C) of all views; None if they were not requested.
        features: (B, V, D) of all views; None if they equal those at the init.
        contexts: (B, n, W) tuned contexts; None at the init.
    """

    logits: Tensor
    text_features: Tensor
    mean_cosine: Tensor
    skipped: Tensor
    view_logits: Tensor | None = None
    features: Tensor | None = None
    contexts: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Return the fields that are not None, by name."""
        return {name: tensor for name, tensor in vars(self).items() if tensor is not None}

    def image(self, i: int) -> Scores:
        """Return the scores of one image, B = 1."""
        fields = {name: tensor[i : i + 1] for name, tensor in self.tensors().items()}
        if len(self.text_features) == 1:  # all images share them
            fields["text_features"] = self.text_features
        return Scores(**fields)


class Point(NamedTuple):
    """A prompt state at some contexts, differentiable.

    Attributes:
        text_features: (b, T, D), detached.
        features: (b, k, D) of the selected views, detached.
        pull: cotangents on ``text_features`` and ``features`` → gradient (b, n, W) on the contexts.
    """

    text_features: Tensor
    features: Tensor
    pull: Callable[[Tensor, Tensor | None], Tensor]


def mean_cosine(text_features: Tensor) -> Tensor:
    """Compute the mean cosine (Σ_{i≠j} e_i·e_j)/(C(C−1)) of unit rows: (…, C, D) → (…)."""
    classes = text_features.shape[-2]
    total = text_features.sum(dim=-2).square().sum(dim=-1)
    return (total - text_features.square().sum(dim=(-2, -1))) / (classes * (classes - 1))


def in_passes(function: Callable[..., Tensor | tuple[Tensor, ...]], *inputs: Tensor, size: int) -> tuple[Tensor, ...]:
    """Apply ``function`` to exactly ``size`` rows of ``inputs`` at a time and concatenate its results.

    The last pass is padded by repeating its last row, so that shapes, and hence the rounding of matrix products, do not
    depend on the number of rows.
    """
    outputs = []
    rows = len(inputs[0])
    for start in range(0, rows, size):
        # created on the device to avoid a synchronisation
        indices = (torch.arange(start, start + size, device=tensor.device).clamp(max=rows - 1) for tensor in inputs)
        results = function(*(tensor[index] for tensor, index in zip(inputs, indices, strict=True)))
        results = (results,) if isinstance(results, Tensor) else results
        outputs.append([tensor[: rows - start] for tensor in results])
    return tuple(torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*outputs, strict=True))


class StateOptions(TypedDict, total=False):
    """Keyword arguments of :class:`PromptState`, for subclasses that pass them on."""

    logit_scale: Required[float]
    logit_bias: float
    contexts_per_pass: int | None
    tunes: bool
    facts: Mapping[str, object] | None


class PromptState:
    """Text features under an initial context θ₀, with the graph that all images share.

    Every image starts from the same θ₀ with an empty optimiser. So E₀ = E(θ₀) and its graph are computed once, and
    the gradient of an objective that sees only the texts is a constant.

    Attributes:
        class_names: (C,).
        encoder: contexts → text features.
        init: (n, W), θ₀; n = 0 where there is no context to tune.
        text_features: (T, D), E₀; one text per class, T = C, unless classes have attributes.
        attributes: texts per class.
        logit_scale, logit_bias: ℓ = scale · v·e + bias.
        contexts_per_pass: number of contexts per pass of the text tower (:func:`in_passes`); one on a CPU, where the
            classes of one context fill the cores.
    """

    attributes = 1
    moves_images = False
    """Whether the features of the views depend on the context."""
    bytes_per_image = 0
    """Memory for tuning one image, without the retained text graph."""

    def __init__(
        self,
        class_names: Sequence[str],
        encoder: PromptEncoder,
        init: Tensor,
        *,
        logit_scale: float,
        logit_bias: float = 0.0,
        contexts_per_pass: int | None = None,
        tunes: bool = True,
        facts: Mapping[str, object] | None = None,
    ) -> None:
        """``tunes``: build the graph now. ``facts``: additional inputs of :attr:`fingerprint`."""
        self.class_names, self.encoder, self.init = tuple(class_names), encoder, init
        self.logit_scale, self.logit_bias = logit_scale, logit_bias
        self.contexts_per_pass = contexts_per_pass or (1 if init.device.type == "cpu" else 8)
        self._facts = dict(facts or {})
        self._text_gradients: dict[Hashable, Tensor] = {}
        self._encoded: dict[Hashable, Tensor] = {}
        self._computing = threading.RLock()
        self.text_features = self.linearisation.text_features[0] if tunes else self.encode(init)

    def encoder_input(self, context: Tensor) -> Tensor:
        """Repeat a context (n, W) for each context of a pass."""
        return context.expand(self.contexts_per_pass, -1, -1)

    @cached_property
    def linearisation(self) -> Linearisation:
        """Text features at θ₀ with their graph, shared by all images."""
        return Linearisation(self.encoder, self.encoder_input(self.init))

    @property
    def graph_bytes(self) -> int:
        """Bytes of the retained graph; 0 without one."""
        return self.linearisation.graph_bytes if "linearisation" in vars(self) else 0

    def release(self) -> None:
        """Release the graph; each image then computes its own."""
        if "linearisation" in vars(self):
            self.linearisation.release()

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything but the image features that determines a gradient at θ₀.

        It includes E₀, whose last bits depend on precision, processor and kernels.
        """
        numbers = {"contexts": self.contexts_per_pass, "scale": self.logit_scale, "bias": self.logit_bias}
        digest = hashlib.sha256(json.dumps({**self._facts, **numbers}, sort_keys=True).encode())
        for tensor in (self.init, self.text_features):
            digest.update(f"\n{tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def logits(self, image_features: Tensor, text_features: Tensor) -> Tensor:
        """Compute scale · v·e + bias: (…, V, D) and (…, C, D) → (…, V, C)."""
        return self.logit_scale * image_features @ text_features.mT + self.logit_bias

    def class_features(self, text_features: Tensor) -> Tensor:
        """Return the unit text features of the classes, (…, C, D), given the features of all texts."""
        return text_features

    def inputs(self, batch: Batch, recipe: ViewRecipe) -> tuple[Tensor, Tensor | None]:
        """Return unit features (B, V, D), the clean view first, and initial contexts (B, n, W).

        The contexts are None if all images start from θ₀.
        """
        return batch.features(recipe), None

    def starts_of(self, clean: Tensor) -> Tensor | None:
        """Return the initial contexts of images, or None for θ₀, given unit features (B, D) of the clean views."""
        return None

    def initial(self, views: Tensor, starts: Tensor | None = None) -> Scores:
        """Score images under their initial contexts."""
        if starts is not None:
            return replace(self.predict(views, starts, all_views=True), features=views)
        shared = self.class_features(self.text_features)
        return Scores(
            logits=torch.stack([self.logits(image[:1], self.text_features)[0] for image in views]),
            text_features=shared[None],
            mean_cosine=mean_cosine(shared).expand(len(views)),
            skipped=torch.zeros(len(views), dtype=torch.bool, device=views.device),
            view_logits=torch.stack([self.logits(image, self.text_features) for image in views]),
            features=views,
        )

    def predict(self, views: Tensor, contexts: Tensor, *, all_views: bool = False) -> Scores:
        """Score images (B, V, D) under contexts (m·B, n, W), with one forward pass of the text tower for each."""
        (texts,) = in_passes(self.encoder.encode, contexts, size=self.contexts_per_pass)
        return self.scores(views, texts, all_views=all_views)

    def scores(self, views: Tensor, texts: Tensor, *, all_views: bool) -> Scores:
        """Score images (B, V, D) with texts (m·B, T, D), one by one, since rounding depends on the product's size."""
        pairs = [(views[i % len(views)], features) for i, features in enumerate(texts)]
        of_classes = self.class_features(texts)
        view_logits = None
        if all_views:
            view_logits = torch.stack([self.logits(image, features) for image, features in pairs])
        return Scores(
            logits=torch.stack([self.logits(image[:1], features)[0] for image, features in pairs]),
            text_features=of_classes,
            mean_cosine=torch.stack([mean_cosine(features) for features in of_classes]),
            skipped=torch.zeros(len(pairs), dtype=torch.bool, device=views.device),
            view_logits=view_logits,
        )

    def linearise(self, contexts: Tensor | None, selected: Tensor) -> Point:
        """Linearise at contexts (b, n, W), or at θ₀, with the selected views (b, k, D)."""
        line = self.linearisation if contexts is None else Linearisation(self.encoder, contexts)
        return Point(line.text_features, selected, lambda texts, images: line.vjp(texts))

    def pull_back(self, of_logits: Tensor, selected: Tensor, zero_shot: Tensor) -> Tensor:
        """Pull ∂L/∂ℓ (B, k, C) on the selected views (B, k, D) back to the gradient (B, n, W) at θ₀.

        The cotangent on the text features is ∂L/∂E = scale · (∂L/∂ℓ)ᵀ V_S, a C×D matrix.
        """
        pairs = zip(of_logits, selected, strict=True)
        cotangents = [self.logit_scale * cotangent.mT @ image for cotangent, image in pairs]
        (gradient,) = in_passes(self.linearisation.vjp, torch.stack(cotangents), size=self.contexts_per_pass)
        return gradient

    def text_objective(
        self, name: str, text_features: Tensor, settings: Mapping[str, object], initial: Tensor | None = None
    ) -> Tensor:
        """Return the value (…) of a text objective; ``initial`` are the text features at the init, E₀ by default."""
        reference = self.text_features if initial is None else initial
        available = {"text_features": text_features, "initial_text_features": reference, "attributes": self.attributes}
        return OBJECTIVES[name](available, settings)

    def text_gradient(self, objective: str, settings: Mapping[str, object]) -> Tensor:
        """Return the cached gradient (n, W) of a text objective at θ₀."""
        used = {name: value for name, value in settings.items() if name in OBJECTIVES[objective].settings}
        key = (objective, tuple(used.items()))
        with self._computing:  # shared by images in other threads
            if key not in self._text_gradients:
                features = self.linearisation.text_features.detach().requires_grad_()
                with torch.enable_grad():
                    value = self.text_objective(objective, features, used).sum()
                (cotangent,) = torch.autograd.grad(value, features)
                gradient = self.linearisation.vjp(cotangent)[0].flatten()
                padding = self.init.numel() - len(gradient)  # parts of the context that the texts do not depend on
                self._text_gradients[key] = F.pad(gradient, (0, padding)).view_as(self.init)
        return self._text_gradients[key]

    def encode_shared(self, key: Hashable, context: Tensor) -> Tensor:
        """Encode a tuned context (n, W) that all images share to (T, D), once per ``key``."""
        with self._computing:
            if key not in self._encoded:
                self._encoded[key] = self.encode(context)
        return self._encoded[key]

    def encode(self, context: Tensor) -> Tensor:
        """Encode a context (n, W) to text features (T, D)."""
        return self.encoder.encode(self.encoder_input(context))[0]


class AttributeState(PromptState):
    """Prompt state of C·A texts, A consecutive ones per class, whose probabilities are summed (TCA).

    P_c = Σ_a exp ℓ_ca / Σ_{c'a} exp ℓ_c'a is the softmax of the class logits ℓ_c = log Σ_a exp ℓ_ca.
    """

    def __init__(
        self,
        class_names: Sequence[str],
        encoder: PromptEncoder,
        init: Tensor,
        *,
        texts: int,
        **options: Unpack[StateOptions],
    ) -> None:
        """``texts``: number of texts of all classes."""
        self.attributes = texts // len(class_names)
        super().__init__(class_names, encoder, init, **options)
        self._facts["attributes"] = self.attributes  # the same texts can be grouped differently

    def logits(self, image_features: Tensor, text_features: Tensor) -> Tensor:
        """Compute ℓ_c = log Σ_a exp(scale · v·e_ca + bias): (…, V, D) and (…, C·A, D) → (…, V, C)."""
        return self._by_class(super().logits(image_features, text_features)).logsumexp(dim=-1)

    def pull_back(self, of_logits: Tensor, selected: Tensor, zero_shot: Tensor) -> Tensor:
        """See :class:`PromptState`; the gradient of a class is shared in proportion to exp ℓ_ca."""
        shares = [self._by_class(super(AttributeState, self).logits(v, self.text_features)) for v in selected]
        of_texts = of_logits[..., None] * torch.stack(shares).softmax(dim=-1)
        return super().pull_back(of_texts.flatten(-2), selected, zero_shot)

    def class_features(self, text_features: Tensor) -> Tensor:
        """Return the normalised mean text feature of each class: (…, C·A, D) → (…, C, D)."""
        return F.normalize(text_features.unflatten(-2, (-1, self.attributes)).mean(dim=-2), dim=-1)

    def _by_class(self, logits: Tensor) -> Tensor:
        """Reshape (…, C·A) to (…, C, A)."""
        return logits.unflatten(-1, (-1, self.attributes))


def prompt_state(
    backbone: Backbone,
    class_names: Sequence[str],
    prompt: Prompt | FixedTexts | None = None,
    *,
    attributes: Mapping[str, Sequence[str]] | None = None,
    memory_budget: int = MEMORY_BUDGET,
    contexts_per_pass: int | None = None,
    tunes: bool = True,
    tunable: bool = True,
    kind: Callable[..., PromptState] = PromptState,
) -> PromptState:
    """Prepare the text features of classes from a prompt or from fixed texts.

    Args:
        backbone: the model.
        class_names: names of the classes.
        prompt: context words or vectors, or fixed texts; the default prompt if None.
        attributes: by class; "{attribute} {name}" replaces the name.
        memory_budget: bytes for the graph of the text features.
        contexts_per_pass: see :class:`PromptState`.
        tunes: build the graph of the text features now.
        tunable: whether a method tunes the context; if not, words of the prompt may have several tokens.
        kind: class of the state, or a function with the same arguments that makes one.
    """
    names = tuple(class_names)
    texts = names if attributes is None else names_with_attributes(names, attributes)
    prompt = prompt or Prompt()
    encoder: PromptEncoder
    if isinstance(prompt, TextFeatures):  # needs no text tower
        none = torch.empty(len(names), 0, dtype=torch.long)
        tokens = PromptTokens(none, none, torch.empty(0, 1), none)
        encoder = FixedEncoder(prompt.features.to(device=backbone.device, dtype=backbone.dtype))
    elif isinstance(prompt, Prompt):
        tower = text_encoder(backbone)
        tokens = tokenize_prompts(tower, texts, prompt) if tunable else fixed_tokens(tower, texts, prompt)
        encoder = prompt_encoder(tower, tokens, memory_budget=memory_budget)
    elif isinstance(prompt, Templates):
        tower = text_encoder(backbone)
        tokens = sentence_tokens(tower, prompt.texts(names)[0])
        encoder = FixedEncoder(template_features(tower, names, prompt, memory_budget=memory_budget))
    else:
        tower = text_encoder(backbone)
        tokens = sentence_tokens(tower, [sentences[0] for sentences in prompt.texts])
        encoder = FixedEncoder(description_features(tower, prompt, memory_budget=memory_budget))
    digest = hashlib.sha256()
    for tensor in (tokens.ids, tokens.slots, tokens.rows):
        digest.update(f"\n{tuple(tensor.shape)} ".encode() + tensor.cpu().contiguous().numpy().tobytes())
    facts = {"backbone": backbone.fingerprint, "device": backbone.device.type, "memory": memory_budget}
    options: StateOptions = {
        "logit_scale": backbone.logit_scale,
        "logit_bias": backbone.logit_bias,
        "contexts_per_pass": contexts_per_pass,
        "tunes": tunes,
        "facts": {**facts, "tokens": digest.hexdigest()},
    }
    init = tokens.start.to(device=backbone.device, dtype=backbone.dtype)
    if attributes is not None:
        return AttributeState(names, encoder, init, texts=len(texts), **options)
    return kind(names, encoder, init, **options)


class _FunctionEncoder(PromptEncoder):
    """Encoder that calls a custom function for each context."""

    def __init__(self, encoder: Encoder, classes: int, device: torch.device) -> None:
        # the graph size is unknown; one byte means that it is retained
        super().__init__([torch.arange(classes)], device, graph_bytes=1, memory_budget=MEMORY_BUDGET)
        self._encoder = encoder

    def _encode_chunk(self, chunk: int, contexts: Tensor) -> Tensor:
        return torch.stack([self._encoder(context) for context in contexts])


def state_of_texts(
    texts: Tensor | Encoder, context: Tensor | None, views: Tensor, *, logit_scale: float, logit_bias: float
) -> PromptState:
    """Prepare text features (C, D), or an encoder at an initial context (n, W), without a backbone."""
    if isinstance(texts, Tensor):
        text_features, init = texts.detach(), texts.new_empty(0, 1)
    elif context is None or context.ndim != 2:
        shown = "no context" if context is None else f"a context of shape {tuple(context.shape)}"
        raise OtptError(f"A context encoder was given with {shown}; expected context= of shape (n, W).")
    else:
        with torch.no_grad():
            text_features, init = texts(context), context.detach().clone()
    if text_features.ndim != 2 or len(text_features) < 2 or text_features.shape[1] != views.shape[2]:
        raise OtptError(
            f"Text features have shape {tuple(text_features.shape)} and views {tuple(views.shape)}; expected (C, D) "
            "with at least two classes, and (B, V, D)."
        )
    encoder: PromptEncoder = FixedEncoder(F.normalize(text_features, dim=-1))
    if not isinstance(texts, Tensor):
        encoder = _FunctionEncoder(texts, len(text_features), text_features.device)
    names, tunes = [str(i) for i in range(len(text_features))], not isinstance(texts, Tensor)
    return PromptState(
        names, encoder, init, logit_scale=logit_scale, logit_bias=logit_bias, contexts_per_pass=1, tunes=tunes
    )
