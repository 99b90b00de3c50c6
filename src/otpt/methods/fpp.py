"""FPP: a context trained for a class list, without images, whose text features hardly change under noise.

With T(θ) the unit text features (C, D) under a context θ, and T⁰ those of words, each step minimises

    A = (1/C) Σ_c ‖T_c(θ) − T⁰_c‖²                                  alignment
    F = mean over noises n and classes c of T_c(θ) · T_c(θ + n)       flatness: a cosine
    loss = A − λ·F

A noise n is drawn for every token vector, including the context, and is the same for all classes; the noisy texts carry
no gradient. In a causal tower noise on padding has no effect, because no token attends to later ones.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from tqdm.auto import tqdm

from otpt._version import __version__
from otpt.backbones import Backbone, text_encoder
from otpt.errors import OtptError
from otpt.files import Json
from otpt.methods.method import Method
from otpt.methods.path import PromptGroup
from otpt.methods.preparation import Init, Setup, register_init
from otpt.methods.protocol import Protocol
from otpt.methods.task import Task
from otpt.prompts import MEMORY_BUDGET, Linearisation, Prompt, prompt_encoder, tokenize_prompts
from otpt.prompts.tokens import every_token, whole_context
from otpt.registry import Multiplies
from otpt.threads import cancellable_loop, in_threads, one_thread

_made: WeakKeyDictionary[Backbone, dict[str, Prompt]] = WeakKeyDictionary()
"""Contexts by backbone and key, reused when a classifier prepares other methods."""


@register_init
class Fpp(Init):
    """FPP: a context trained for the class list, without images; the defaults are from the released code.

    The published noise levels 0.02 and 0.005 are **variances**: the standard deviations are √0.02 ≈ 0.141 and
    √0.005 ≈ 0.071.
    """

    name: ClassVar[str] = "fpp"
    random_start: ClassVar[bool] = True

    fpp_words: str = Field("a photo of a", description="prompt whose text features the context is aligned with")
    fpp_tokens: int = Field(4, ge=1, description="length of a randomly initialised context")
    fpp_start_variance: float = Field(0.02, ge=0, allow_inf_nan=False, description="variance of a random init")
    fpp_noises: Annotated[int, Multiplies("texts")] = Field(
        4, ge=1, description="number of noisy copies of all texts per step"
    )
    fpp_context_variance: float = Field(
        0.005, ge=0, allow_inf_nan=False, description="variance of noise on the context"
    )
    fpp_token_variance: float = Field(0.02, ge=0, allow_inf_nan=False, description="variance of noise on other tokens")
    fpp_weight: float = Field(1.0, ge=0, allow_inf_nan=False, description="w in λ = w + p/C on fine-grained sets")
    fpp_weight_per_class: float = Field(15.0, ge=0, allow_inf_nan=False, description="p in λ = w + p/C, with C classes")
    fpp_shift_weight: float = Field(1.25, ge=0, allow_inf_nan=False, description="λ on distribution shifts")
    fpp_steps: Annotated[int, Multiplies("texts")] = Field(1000, ge=1, description="number of AdamW steps")
    fpp_rate: float = Field(1e-2, ge=0, allow_inf_nan=False, description="initial learning rate (cosine schedule)")
    fpp_final_rate: float = Field(1e-4, ge=0, allow_inf_nan=False, description="final learning rate")
    fpp_weight_decay: float = Field(0.01, ge=0, allow_inf_nan=False, description="weight decay of AdamW")
    fpp_seed: int = Field(0, description="seed of init and noise; all seeds of a run share one context")

    def flatness_weight(self, classes: int, family: str) -> float:
        """Return λ; the paper's text has 0.15 instead of 15 for the weight per class."""
        return self.fpp_shift_weight if family == "shift" else self.fpp_weight + self.fpp_weight_per_class / classes

    def rate(self, step: int) -> float:
        """Return the learning rate of a step in 0 … ``fpp_steps`` − 1."""
        decay = (1 + math.cos(math.pi * step / self.fpp_steps)) / 2
        return self.fpp_final_rate + (self.fpp_rate - self.fpp_final_rate) * decay

    def check(self, setup: Setup) -> None:
        """See :class:`Init`."""
        for prompt in (words_prompt(setup.backbone, self), initial_prompt(setup.backbone, self)):
            tokenize_prompts(text_encoder(setup.backbone), setup.task.classes, prompt)

    def prepare(self, setup: Setup) -> Sequence[PromptGroup]:
        """See :class:`Init`."""
        return [setup.group(self.name, fpp_prompt(setup, self))]

    def facts(self, task: Task, protocol: Protocol, method: Method) -> Mapping[str, Json]:
        """See :class:`Init`."""
        return {"fpp": self.model_dump()}


@register_init
class FppWords(Fpp):
    """FPP from the words of the reference prompt instead of random vectors."""

    name: ClassVar[str] = "fpp-words"
    random_start: ClassVar[bool] = False


def fpp_prompt(setup: Setup, fpp: Fpp) -> Prompt:
    """Return the prompt trained by FPP for the classes of the task, cached in memory and on disk."""
    backbone, protocol, cache = setup.backbone, setup.protocol, setup.cache
    facts = {  # everything that determines the context, rounding included
        "backbone": backbone.fingerprint,
        "precision": backbone.precision,
        "device": backbone.device.type,
        "classes": setup.task.classes,
        "family": protocol.place[0],
        "fpp": fpp.model_dump(),
        "from_words": not fpp.random_start,
        "memory": protocol.memory_budget,
        "versions": [__version__, torch.__version__],
    }
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    prompts = _made.setdefault(backbone, {})
    stored = None if cache is None else cache.get(key, kind="contexts")
    if key not in prompts and stored is not None:
        start = initial_prompt(backbone, fpp)
        prompts[key] = replace(start, vectors=torch.from_numpy(np.array(stored)))
    elif key not in prompts:
        prompts[key] = pretrain(
            backbone, setup.task.classes, fpp, family=protocol.place[0], memory_budget=protocol.memory_budget
        )
    prompt = prompts[key]
    if cache is not None and stored is None and prompt.vectors is not None:
        cache.put(key, prompt.vectors.numpy(), kind="contexts")
    return prompt


def draw(seed: int, what: str, *shape: int) -> Tensor:
    """Draw standard normal float64 numbers on the CPU, determined by (seed, what, shape)."""
    key = hashlib.sha256(f"otpt fpp 1\n{seed}\n{what}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "big"))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def draw_noise(seed: int, step: int, *, noises: int, tokens: int, length: int, width: int) -> tuple[Tensor, Tensor]:
    """Draw the noise of one step, of variance one, shared by all classes.

    Returns noise on the context (noises, tokens, W) and on the other token vectors by position (noises, L, W).
    """
    drawn = draw(seed, f"step {step}", noises, tokens + length, width)
    return drawn[:, :tokens], drawn[:, tokens:]


def alignment(text_features: Tensor, reference: Tensor) -> Tensor:
    """Compute (1/C) Σ_c ‖T_c − T⁰_c‖² of features T and T⁰ (C, D)."""
    return (text_features - reference).square().sum(dim=-1).mean()


def flatness(text_features: Tensor, noisy: Tensor) -> Tensor:
    """Compute the mean cosine between unit text features (C, D) and noisy ones (N, C, D)."""
    return (text_features * noisy).sum(dim=-1).mean()


def initial_prompt(backbone: Backbone, fpp: Fpp) -> Prompt:
    """Return a prompt of the words, or of random vectors before the class name."""
    if not fpp.random_start:
        return words_prompt(backbone, fpp)
    drawn = draw(fpp.fpp_seed, "start", fpp.fpp_tokens, text_encoder(backbone).width)
    return Prompt.learned((math.sqrt(fpp.fpp_start_variance) * drawn).to(backbone.dtype))


def words_prompt(backbone: Backbone, fpp: Fpp) -> Prompt:
    """Return the prompt whose text features are the alignment reference."""
    return whole_context(text_encoder(backbone), Prompt(fpp.fpp_words))


@one_thread()
def pretrain(
    backbone: Backbone,
    names: Sequence[str],
    fpp: Fpp,
    *,
    family: str = "fine-grained",
    memory_budget: int = MEMORY_BUDGET,
) -> Prompt:
    """Train the prompt for a class list, in the backbone's type.

    Args:
        backbone: model with a text tower.
        names: (C,) class names.
        fpp: hyperparameters; its class decides between random vectors and words as the start.
        family: "fine-grained" or "shift"; determines λ.
        memory_budget: memory limit for the graphs of text features, in bytes.
    """
    tower = text_encoder(backbone)
    prompt = initial_prompt(backbone, fpp)
    tokens = tokenize_prompts(tower, names, prompt)
    encoder = prompt_encoder(tower, tokens, memory_budget=memory_budget)
    words = tokenize_prompts(tower, names, words_prompt(backbone, fpp))
    reference = prompt_encoder(tower, words, memory_budget=memory_budget).encode(words.start[None])[0]
    every, positions = every_token(tower, tokens)  # a context of all token vectors, for the noise
    noisy_encoder = prompt_encoder(tower, every, memory_budget=memory_budget)
    others, positions = every.start[len(tokens.start) :], positions.to(backbone.device)

    def encode_noisy(vectors: Tensor) -> Tensor:
        return noisy_encoder.encode(vectors[None])[0]

    weight = fpp.flatness_weight(len(names), family)
    context = tokens.start.to(backbone.device, backbone.dtype).clone()
    sizes = {"tokens": len(context), "length": tokens.ids.shape[1], "width": context.shape[1]}
    optimiser = torch.optim.AdamW([context], weight_decay=fpp.fpp_weight_decay)
    title = f"FPP, {len(names)} classes"
    for step in tqdm(
        cancellable_loop(range(fpp.fpp_steps)),
        total=fpp.fpp_steps,
        desc=title,
        unit="step",
        delay=10,
        leave=False,
        disable=None,
    ):
        on_context, on_others = draw_noise(fpp.fpp_seed, step, noises=fpp.fpp_noises, **sizes)
        on_context = (math.sqrt(fpp.fpp_context_variance) * on_context).to(context)
        on_others = (math.sqrt(fpp.fpp_token_variance) * on_others).to(context)
        noisy = torch.cat([context + on_context, others + on_others[:, positions]], dim=1)  # (N, K, W)
        each = map(encode_noisy, noisy) if backbone.device.type != "cpu" else in_threads(encode_noisy, list(noisy))
        line = Linearisation(encoder, context[None])
        with torch.enable_grad():
            features = line.text_features[0].detach().requires_grad_()
            loss = alignment(features, reference) - weight * flatness(features, torch.stack(list(each)))
        (cotangent,) = torch.autograd.grad(loss, features)
        context.grad = line.vjp(cotangent[None])[0]
        optimiser.param_groups[0]["lr"] = fpp.rate(step)
        optimiser.step()
        if not context.isfinite().all():
            raise OtptError(
                f"FPP diverged: the context is not finite after step {step + 1}; reduce the learning rate or the "
                "variances."
            )
    return replace(prompt, vectors=context.detach().cpu())
