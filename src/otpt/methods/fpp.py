"""FPP: a context made for a class list, without images, whose text features hardly change under noise.

With T(θ) the unit text features (C, D) under a context θ, and T⁰ those of words, each step minimises

    A = (1/C) Σ_c ‖T_c(θ) − T⁰_c‖²                                  alignment
    F = mean over noises n and classes c of T_c(θ) · T_c(θ + n)       flatness: a cosine
    loss = A − λ·F

A noise n is drawn for every token vector, the context's too, and is the same for all classes; the noisy texts carry no
gradient. In a causal tower the noise on padding changes nothing, because no token sees what comes after it.
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
from otpt.methods.inits import text_state
from otpt.methods.kinds import INITS, Kind, Methods
from otpt.methods.path import PromptGroup
from otpt.prompts import MEMORY_BUDGET, Linearisation, Prompt, PromptTokens, prompt_encoder, tokenize_prompts
from otpt.prompts.tokens import every_token, whole_context
from otpt.settings import Fpp, Settings
from otpt.threads import in_threads, one_thread

FROM_WORDS = "fpp-words"
"""The init that starts from words in place of random vectors."""
_SHOWN_AFTER = 10.0
"""Seconds until the progress bar."""

_made: WeakKeyDictionary[Backbone, dict[str, Prompt]] = WeakKeyDictionary()
"""Contexts by backbone and key: a classifier prepares its texts again for each set of methods."""


def fpp_prompt(
    backbone: Backbone, settings: Settings, *, from_words: bool = False, cache: FeatureCache | None = None
) -> Prompt:
    """The prompt that FPP makes for the classes of the settings; cached in memory and on disk."""
    known = _made.setdefault(backbone, {})
    key = _key(backbone, settings, from_words)
    stored = None if cache is None else cache.get(key, kind="contexts")
    if key not in known and stored is not None:
        start = initial_prompt(backbone, settings.fpp, from_words=from_words)
        known[key] = replace(start, vectors=torch.from_numpy(np.array(stored)))
    elif key not in known:
        known[key] = pretrain(
            backbone,
            settings.classes,
            settings.fpp,
            family=settings.place[0],
            from_words=from_words,
            memory_budget=settings.memory_budget,
        )
    found = known[key]
    if cache is not None and stored is None and found.vectors is not None:
        cache.put(key, found.vectors.numpy(), kind="contexts")
    return found


def _key(backbone: Backbone, settings: Settings, from_words: bool) -> str:
    """64 hexadecimal digits of all that the context depends on, rounding included."""
    facts = {
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
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def draw(seed: int, what: str, *shape: int) -> Tensor:
    """Standard normal float64 numbers on the CPU that depend on (seed, what, shape) alone."""
    key = hashlib.sha256(f"otpt fpp 1\n{seed}\n{what}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "big"))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def draw_noise(seed: int, step: int, *, noises: int, tokens: int, length: int, width: int) -> tuple[Tensor, Tensor]:
    """Noise of one step, of variance one, the same for all classes.

    On the context (noises, tokens, W), and on the other token vectors by their position in the text (noises, L, W).
    """
    drawn = draw(seed, f"step {step}", noises, tokens + length, width)
    return drawn[:, :tokens], drawn[:, tokens:]


def alignment(text_features: Tensor, reference: Tensor) -> Tensor:
    """(1/C) Σ_c ‖T_c − T⁰_c‖², of (C, D) and (C, D)."""
    return (text_features - reference).square().sum(dim=-1).mean()


def flatness(text_features: Tensor, noisy: Tensor) -> Tensor:
    """The mean cosine between unit text features (C, D) and noisy ones (N, C, D)."""
    return (text_features * noisy).sum(dim=-1).mean()


def initial_prompt(backbone: Backbone, settings: Fpp, *, from_words: bool) -> Prompt:
    """Return the initial prompt: the words, or random vectors before the class name."""
    if from_words:
        return words_prompt(backbone, settings)
    vectors = math.sqrt(settings.start_variance) * draw(settings.seed, "start", settings.tokens, backbone.text.width)
    return Prompt.learned(vectors.to(backbone.dtype))


def words_prompt(backbone: Backbone, settings: Fpp) -> Prompt:
    """The prompt whose text features are the reference."""
    return whole_context(backbone.text, Prompt(settings.words))


def check_names(backbone: Backbone, names: Sequence[str], settings: Fpp, *, from_words: bool) -> None:
    """An error now if the texts of a class do not fit the text tower."""
    for prompt in (words_prompt(backbone, settings), initial_prompt(backbone, settings, from_words=from_words)):
        tokenize_prompts(backbone.text, names, prompt)


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
    """The prompt that FPP makes for a class list, in the backbone's type.

    Args:
        names: (C,) class names.
        family: "fine-grained" or "shift", which λ depends on.
        from_words: start from ``settings.words`` in place of random vectors.
    """
    prompt = initial_prompt(backbone, settings, from_words=from_words)
    tokens = tokenize_prompts(backbone.text, names, prompt)
    encoder = prompt_encoder(backbone.text, tokens, memory_budget=memory_budget)
    noisy_texts = _NoisyTexts(backbone, tokens, settings, memory_budget)
    reference = _texts_of_words(backbone, names, settings, memory_budget)
    weight = settings.flatness_weight(len(names), family)
    context = tokens.start.to(backbone.device, backbone.dtype).clone()
    optimiser = torch.optim.AdamW([context], weight_decay=settings.weight_decay)
    title = f"FPP, {len(names)} classes"
    for step in tqdm(range(settings.steps), desc=title, unit="step", delay=_SHOWN_AFTER, leave=False, disable=None):
        contexts = noisy_texts.contexts(step, context)
        if backbone.device.type == "cpu":
            noisy = torch.stack(in_threads(noisy_texts.encode, list(contexts)))
        else:
            noisy = torch.stack([noisy_texts.encode(each) for each in contexts])
        line = Linearisation(encoder, context[None])
        with torch.enable_grad():
            features = line.text_features[0].detach().requires_grad_()
            loss = alignment(features, reference) - weight * flatness(features, noisy)
        (cotangent,) = torch.autograd.grad(loss, features)
        context.grad = line.vjp(cotangent[None])[0]
        optimiser.param_groups[0]["lr"] = settings.rate(step)
        optimiser.step()
        if not context.isfinite().all():
            raise OtptError(
                f"FPP: the context is no longer finite after step {step + 1}; expected smaller learning rates or "
                "variances."
            )
    return replace(prompt, vectors=context.detach().cpu())


def _texts_of_words(backbone: Backbone, names: Sequence[str], settings: Fpp, memory_budget: int) -> Tensor:
    """T⁰, (C, D)."""
    tokens = tokenize_prompts(backbone.text, names, words_prompt(backbone, settings))
    return prompt_encoder(backbone.text, tokens, memory_budget=memory_budget).encode(tokens.start[None])[0]


class _NoisyTexts:
    """Text features with noise on every token vector."""

    def __init__(self, backbone: Backbone, tokens: PromptTokens, settings: Fpp, memory_budget: int) -> None:
        every, positions = every_token(backbone.text, tokens)
        self._encoder = prompt_encoder(backbone.text, every, memory_budget=memory_budget)
        self._others = every.start[len(tokens.start) :]
        self._positions = positions.to(backbone.device)
        self._length, self._settings = tokens.ids.shape[1], settings

    def contexts(self, step: int, context: Tensor) -> Tensor:
        """All token vectors (N, K, W) under the noises of a step."""
        settings = self._settings
        on_context, on_others = draw_noise(
            settings.seed,
            step,
            noises=settings.noises,
            tokens=len(context),
            length=self._length,
            width=context.shape[1],
        )
        on_context = (math.sqrt(settings.context_variance) * on_context).to(context)
        on_others = (math.sqrt(settings.token_variance) * on_others).to(context)
        return torch.cat([context + on_context, self._others + on_others[:, self._positions]], dim=1)

    def encode(self, vectors: Tensor) -> Tensor:
        """(K, W) → unit text features (C, D)."""
        return self._encoder.encode(vectors[None])[0]


def _make(backbone: Backbone, settings: Settings, methods: Methods, cache: FeatureCache | None) -> list[PromptGroup]:
    init = methods[0].init
    prompt = fpp_prompt(backbone, settings, from_words=init == FROM_WORDS, cache=cache)
    return [PromptGroup(init, methods, backbone, text_state(backbone, settings, prompt, methods), settings)]


def _check(backbone: Backbone, settings: Settings, methods: Methods) -> None:
    check_names(backbone, settings.classes, settings.fpp, from_words=methods[0].init == FROM_WORDS)


for _name in ("fpp", FROM_WORDS):
    INITS[_name] = Kind(_make, _check, facts=lambda settings, method: {"fpp": settings.fpp.model_dump()}, uses="fpp")
