"""Contexts carried from image to image: DynaPrompt and HisTPT.

For arguments and results see :mod:`otpt.methods.caches`; further views keep their zero-shot logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from otpt.methods.caches import in_first_row
from otpt.methods.state import PromptState
from otpt.methods.tuner import adamw_first_step
from otpt.objectives import entropy_of_mean, fraction_of, select_fraction, view_entropies
from otpt.prompts import Linearisation
from otpt.registry import (
    Count,
    Entries,
    Fraction,
    NonNegative,
    Positive,
    Probability,
    State,
    TextSteps,
    adaptation,
    carried,
)
from otpt.threads import cancellable_loop

_INITS = {"init": ("words", "coop", "fpp", "fpp-words")}
"""Inits with one shared context in the text tower only."""
_DYNA_SOURCE = "Xiao et al., ICLR 2025, arXiv 2501.16404"
_DYNA_CAUTION = "it encodes the texts of up to twelve prompts twice per image."


@dataclass(frozen=True)
class DynaSettings:
    """Settings of DynaPrompt: number of contexts, step, fraction of views, and whether to follow the released code."""

    dyna_prompts: TextSteps = 12
    dyna_rate: Positive = 5e-3
    dyna_decay: NonNegative = 0.01
    dyna_ratio: Fraction = 0.1
    dyna_released: bool = False


@adaptation(only=_INITS, shared_texts=True, source=_DYNA_SOURCE, caution=_DYNA_CAUTION)
@adaptation(
    name="dyna-prompt-released",
    only=_INITS,
    shared_texts=True,
    summary="DynaPrompt as released: numbers of contexts are taken as places in the order of their entropies.",
    source=_DYNA_SOURCE,
    caution=_DYNA_CAUTION,
    settings={"dyna_released": 1},
)
def dyna_prompt(
    features: Tensor,
    logits: Tensor,
    prompt_state: PromptState,
    state: State,
    settings: DynaSettings = DynaSettings(),
) -> Tensor:
    """DynaPrompt: several contexts are carried along; an image tunes those that suit it, and the oldest.

    With h_j the mean entropy of the views under context j, and g_j the largest logit of the clean view minus the mean
    of the other views' largest logits, the oldest context i is tuned, and all j with h_j < h_i and g_j > g_i: one AdamW
    step on the mean of their entropies of the mean prediction, over the int(V·ratio) most confident views. Decay
    shrinks the offsets of all contexts. The logits are the mean over the tuned contexts. Once all contexts are used,
    the oldest is first reset to the initial context. With ``dyna_released`` the selection follows the released code,
    which may tune contexts that fail the criteria, or one context twice.
    """
    pool = carried(state, "pool", lambda: _Pool(prompt_state, settings.dyna_prompts))
    select = select_as_released if settings.dyna_released else select_prompts
    adapted = pool.step(features, select, rate=settings.dyna_rate, decay=settings.dyna_decay, ratio=settings.dyna_ratio)
    return in_first_row(adapted.to(logits), logits)


Selection = Callable[[Tensor, Tensor, int], list[int]]
"""Function of entropies (n,), gains (n,) and the oldest context that returns the contexts to tune, the oldest last."""


def select_prompts(entropies: Tensor, gains: Tensor, oldest: int) -> list[int]:
    """Return all contexts with lower entropy and larger gain than the oldest, followed by the oldest."""
    better = (entropies < entropies[oldest]) & (gains > gains[oldest])
    return [*better.nonzero().flatten().tolist(), oldest]


def select_as_released(entropies: Tensor, gains: Tensor, oldest: int) -> list[int]:
    """Return the contexts of the released code, which uses context indices as ranks of the entropies."""
    order = entropies.argsort(descending=True, stable=True).tolist()
    place = order.index(oldest)
    certain = order[min(place + 1, len(order) - 1) :]
    gaining = gains.argsort(descending=True, stable=True).tolist()[:place]
    return [*(order[j] for j in sorted({*certain} & {*gaining})), oldest]


class _Pool:
    """Contexts as offsets (n, m, W) from the initial one, their usage counts, and their indices, oldest first."""

    def __init__(self, prompt_state: PromptState, count: int) -> None:
        self._prompts = prompt_state
        self.offsets = torch.zeros(count, *prompt_state.init.shape).to(prompt_state.init)
        self.used, self.order = [0] * count, list(range(count))

    def step(self, features: Tensor, select: Selection, *, rate: float, decay: float, ratio: float) -> Tensor:
        """Tune the contexts selected for an image (V, D); return its mean clean logits (C,) under them."""
        prompts, features = self._prompts, features.to(self.offsets.device)
        if 0 not in self.used:
            self.offsets[self.order[0]] = 0
            self.used[self.order[0]] = 0
        logits = self._logits(features, range(len(self.order)))
        entropies, highest = view_entropies(logits), logits.amax(dim=-1)
        gains = highest[:, 0] - highest[:, 1:].mean(dim=1)
        tuned = select(entropies.mean(dim=1), gains, self.order[0])
        for i in tuned:
            self.order.remove(i)
            self.order.append(i)
            self.used[i] += 1
        views = entropies[tuned].mean(dim=0).argsort(stable=True)[: fraction_of(len(features), ratio)]
        gradients = torch.zeros_like(self.offsets)
        for i in cancellable_loop(tuned):
            gradients[i] += gradient_of(prompts, self._context(i), features[views], entropy_of_mean) / len(tuned)
        self.offsets = adamw_first_step(self.offsets, gradients, learning_rate=rate, weight_decay=decay)
        return self._logits(features[:1], tuned)[:, 0].mean(dim=0)

    def _context(self, i: int) -> Tensor:
        return self._prompts.init + self.offsets[i]

    def _logits(self, features: Tensor, contexts: Sequence[int]) -> Tensor:
        """Compute logits (contexts, V, C) of views (V, D); contexts without an offset share their texts."""
        texts = {
            i: self._prompts.encode(self._context(i)) if bool(self.offsets[i].any()) else self._prompts.text_features
            for i in cancellable_loop(dict.fromkeys(contexts))
        }
        return torch.stack([self._prompts.logits(features, texts[i]) for i in contexts])


def gradient_of(prompts: PromptState, context: Tensor, views: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the gradient with respect to a context (m, W) of a loss of the logits (k, C) of views (k, D)."""
    line = Linearisation(prompts.encoder, prompts.encoder_input(context))
    with torch.enable_grad():
        texts = line.text_features.detach().requires_grad_()
        value = loss(prompts.logits(views, texts[0]))
    (cotangent,) = torch.autograd.grad(value, texts)
    return line.vjp(cotangent)[0]


@dataclass(frozen=True)
class HisSettings:
    """Settings of HisTPT: the SGD step, the sizes of the memories, the decay of the global one, and the views."""

    his_rate: Positive = 5e-3
    his_momentum: Probability = 0.9
    his_decay: NonNegative = 1e-4
    his_memory: Entries = 32
    his_hard: Count = 16
    his_keep: Probability = 0.99
    his_ratio: Fraction = 0.1


@dataclass
class _Memories:
    """Memories of texts.

    Attributes:
        recent: (n, C, D), texts of the last images, the last one first.
        entropies: (n,), entropies of these images.
        hard: (n, C, D), means of recent texts of large entropy.
        long_term: (C, D), running mean, the "global" memory.
    """

    recent: Tensor
    entropies: Tensor
    hard: Tensor
    long_term: Tensor

    @classmethod
    def of_first(cls, texts: Tensor, entropy: Tensor, size: int) -> _Memories:
        """Return the memories after the first image."""
        recent = texts.expand(size, -1, -1)
        return cls(recent, entropy.expand(size), recent, texts)

    def means(self) -> list[Tensor]:
        """Return the unit means (C, D) of the memories."""
        return [normalize(texts, dim=-1) for texts in (self.long_term, self.recent.mean(0), self.hard.mean(0))]

    def add(self, texts: Tensor, entropy: Tensor, hard: int, keep: float) -> None:
        """Add the texts of an image."""
        self.recent = torch.cat([texts[None], self.recent[:-1]])
        self.entropies = torch.cat([entropy[None], self.entropies[:-1]])
        hardest = self.recent[self.entropies.argsort(descending=True, stable=True)[:hard]].mean(dim=0)
        self.hard = torch.cat([hardest[None], self.hard[:-1]])
        mean = (self.recent.mean(dim=0) + self.hard.mean(dim=0)) / 2
        self.long_term = keep * self.long_term + (1 - keep) * mean


@dataclass
class _TunedContext:
    """State of HisTPT: the context (n, W), its momentum, and the memories; None before the first image."""

    context: Tensor
    momentum: Tensor | None = None
    memories: _Memories | None = None


@adaptation(
    only=_INITS,
    shared_texts=True,
    source="Zhang et al., NeurIPS 2024, arXiv 2410.20346; as the benchmark TTABC computes it, the authors' code is for "
    "segmentation",
    caution="this is a third party's port to classification, which takes views; with the clean view alone its gradient "
    "is zero.",
)
def his_tpt(
    features: Tensor,
    logits: Tensor,
    prompt_state: PromptState,
    state: State,
    settings: HisSettings = HisSettings(),
) -> Tensor:
    """HisTPT: one context is tuned along the stream towards the predictions of remembered texts.

    The target is t = Σ_k w_k p_k of the clean view under the means of three memories of texts (global, recent, hard),
    w = softmax(−H(p_k)). One SGD step with momentum on the mean cross-entropy −Σ t·log p of the int(V·ratio) most
    confident views. Then the tuned texts enter the recent memory (32), the mean of its 16 entries of largest entropy
    the hard one, and global ← 0.99·global + 0.01·(recent mean + hard mean)/2. The state holds 65·C·D numbers.
    """
    stream = carried(state, "stream", lambda: _TunedContext(prompt_state.init.clone()))
    context = stream.context
    features = features.to(context.device)
    texts = prompt_state.encode(context)
    now = prompt_state.logits(features, texts)
    chosen = select_fraction(now, settings.his_ratio)
    remembered = [texts] if stream.memories is None else stream.memories.means()
    target = fused(prompt_state, features[:1], remembered)[0]

    def loss(of_views: Tensor) -> Tensor:
        return -(target * of_views.log_softmax(dim=-1)).sum(dim=-1).mean()

    gradient = gradient_of(prompt_state, context, features[chosen], loss) + settings.his_decay * context
    momentum = gradient if stream.momentum is None else settings.his_momentum * stream.momentum + gradient
    stream.momentum = momentum
    stream.context = context - settings.his_rate * momentum
    tuned = prompt_state.encode(stream.context)
    entropy = view_entropies(now[chosen]).mean()
    if stream.memories is None:
        stream.memories = _Memories.of_first(tuned, entropy, settings.his_memory)
    else:
        stream.memories.add(tuned, entropy, settings.his_hard, settings.his_keep)
    return in_first_row(prompt_state.logits(features[:1], tuned)[0].to(logits), logits)


def fused(prompts: PromptState, clean: Tensor, memories: Sequence[Tensor]) -> Tensor:
    """Compute Σ_k w_k p_k (1, C) of a clean view (1, D) under texts (C, D), w = softmax(−H(p_k))."""
    logits = torch.stack([prompts.logits(clean, texts) for texts in memories])
    weights = (-view_entropies(logits)).softmax(dim=0)
    return (weights[..., None] * logits.softmax(dim=-1)).sum(dim=0)
