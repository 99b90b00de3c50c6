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
from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from otpt._version import __version__
from otpt.backbones import Backbone
from otpt.errors import OtptError
from otpt.features.cache import FeatureCache
from otpt.methods.inits import text_group
from otpt.methods.method import INITS, Kind, Methods
from otpt.methods.path import PromptGroup
from otpt.prompts import MEMORY_BUDGET, Linearisation, Prompt, prompt_encoder, tokenize_prompts
from otpt.prompts.tokens import every_token, whole_context
from otpt.settings import Fpp, Settings
from otpt.threads import in_threads, one_thread

FROM_WORDS = "fpp-words"
"""Name of the init that starts from words instead of random vectors."""
_made: WeakKeyDictionary[Backbone, dict[str, Prompt]] = WeakKeyDictionary()
"""Contexts by backbone and key, reused when a classifier prepares other methods."""


def fpp_prompt(
    backbone: Backbone, settings: Settings, *, from_words: bool = False, cache: FeatureCache | None = None
) -> Prompt:
    """Return the prompt trained by FPP for the classes of the settings, cached in memory and on disk."""
    facts = {  # everything that determines the context, rounding included
        "backbone": backbone.fingerprint,
        "precision": backbone.precision,
        "device": backbone.device.type,
        "classes": settings.classes,
        "family": settings.place[0],
        "fpp": settings.fpp.model_dump(),
        "from_words": from_words,
        "memory": settings.memory_budget,
        "versions": [__version__, torch.__version__],
    }
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    known = _made.setdefault(backbone, {})
    stored = None if cache is None else cache.get(key, kind="contexts")
    if key not in known and stored is not None:
        start = initial_prompt(backbone, settings.fpp, from_words=from_words)
        known[key] = replace(start, vectors=torch.from_numpy(np.array(stored)))
    elif key not in known:
        place, budget = settings.place[0], settings.memory_budget
        known[key] = pretrain(
            backbone, settings.classes, settings.fpp, family=place, from_words=from_words, memory_budget=budget
        )
    found = known[key]
    if cache is not None and stored is None and found.vectors is not None:
        cache.put(key, found.vectors.numpy(), kind="contexts")
    return found


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


def initial_prompt(backbone: Backbone, settings: Fpp, *, from_words: bool) -> Prompt:
    """Return a prompt of the words, or of random vectors before the class name."""
    if from_words:
        return words_prompt(backbone, settings)
    vectors = math.sqrt(settings.start_variance) * draw(settings.seed, "start", settings.tokens, backbone.text.width)
    return Prompt.learned(vectors.to(backbone.dtype))


def words_prompt(backbone: Backbone, settings: Fpp) -> Prompt:
    """Return the prompt whose text features are the alignment reference."""
    return whole_context(backbone.text, Prompt(settings.words))


@one_thread()
def pretrain(
    backbone: Backbone,
    names: Sequence[str],
    settings: Fpp,
    *,
    family: str = "fine-grained",
    from_words: bool = False,
    memory_budget: int = MEMORY_BUDGET,
) -> Prompt:
    """Train the prompt for a class list, in the backbone's type.

    Args:
        names: (C,) class names.
        family: "fine-grained" or "shift"; determines λ.
        from_words: start from ``settings.words`` instead of random vectors.
    """
    prompt = initial_prompt(backbone, settings, from_words=from_words)
    tokens = tokenize_prompts(backbone.text, names, prompt)
    encoder = prompt_encoder(backbone.text, tokens, memory_budget=memory_budget)
    words = tokenize_prompts(backbone.text, names, words_prompt(backbone, settings))
    reference = prompt_encoder(backbone.text, words, memory_budget=memory_budget).encode(words.start[None])[0]
    every, positions = every_token(backbone.text, tokens)  # a context of all token vectors, for the noise
    noisy_encoder = prompt_encoder(backbone.text, every, memory_budget=memory_budget)
    others, positions = every.start[len(tokens.start) :], positions.to(backbone.device)

    def encode_noisy(vectors: Tensor) -> Tensor:
        return noisy_encoder.encode(vectors[None])[0]

    weight = settings.flatness_weight(len(names), family)
    context = tokens.start.to(backbone.device, backbone.dtype).clone()
    sizes = {"tokens": len(context), "length": tokens.ids.shape[1], "width": context.shape[1]}
    optimiser = torch.optim.AdamW([context], weight_decay=settings.weight_decay)
    title = f"FPP, {len(names)} classes"
    for step in tqdm(range(settings.steps), desc=title, unit="step", delay=10, leave=False, disable=None):
        on_context, on_others = draw_noise(settings.seed, step, noises=settings.noises, **sizes)
        on_context = (math.sqrt(settings.context_variance) * on_context).to(context)
        on_others = (math.sqrt(settings.token_variance) * on_others).to(context)
        noisy = torch.cat([context + on_context, others + on_others[:, positions]], dim=1)  # (N, K, W)
        each = map(encode_noisy, noisy) if backbone.device.type != "cpu" else in_threads(encode_noisy, list(noisy))
        line = Linearisation(encoder, context[None])
        with torch.enable_grad():
            features = line.text_features[0].detach().requires_grad_()
            loss = alignment(features, reference) - weight * flatness(features, torch.stack(list(each)))
        (cotangent,) = torch.autograd.grad(loss, features)
        context.grad = line.vjp(cotangent[None])[0]
        optimiser.param_groups[0]["lr"] = settings.rate(step)
        optimiser.step()
        if not context.isfinite().all():
            raise OtptError(
                f"FPP diverged: the context is not finite after step {step + 1}; reduce the learning rate or the "
                "variances."
            )
    return replace(prompt, vectors=context.detach().cpu())


def _make(backbone: Backbone, settings: Settings, methods: Methods, cache: FeatureCache | None) -> list[PromptGroup]:
    init = methods[0].init
    prompt = fpp_prompt(backbone, settings, from_words=init == FROM_WORDS, cache=cache)
    return [text_group(init, backbone, settings, prompt, methods)]


def _check(backbone: Backbone, settings: Settings, methods: Methods) -> None:
    start = initial_prompt(backbone, settings.fpp, from_words=methods[0].init == FROM_WORDS)
    for prompt in (words_prompt(backbone, settings.fpp), start):
        tokenize_prompts(backbone.text, settings.classes, prompt)


for _name in ("fpp", FROM_WORDS):
    INITS[_name] = Kind(_make, _check, facts=lambda settings, method: {"fpp": settings.fpp.model_dump()}, uses="fpp")
