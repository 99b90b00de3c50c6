"""Classes by example images, with or without texts: ``set_classes(examples={"ours": […], "theirs": […]})``.

With unit features g_j of the examples, n_c of class c, and the image feature f, the logits are

    ℓ_c = t·ℓ_c(text) + s·a_c(f)

| init | a_c(f) |
|---|---|
| ``prototypes`` | f·m_c, m_c the mean of g_j over class c, of norm one |
| ``tip-adapter`` | mean over class c of exp(−β(1 − f·g_j)), β = 5.5 |
| ``gda`` | f·Λμ_c − ½ μ_c·Λμ_c, μ_c the means, Λ = ((1 − ρ)·S·D/tr S + ρ·I)⁻¹, S the covariance within classes |

The weights t and s, and ρ out of 0.1, 0.3, 0.6 and 1, minimise the NLL of examples that were held out in ten folds,
which is leave-one-out for up to ten images per class. A mean over fewer images is noisier: the variance of f − μ_c is
(1 + 1/n_c)·Σ, so s is multiplied by n/(n + 1) · (n' + 1)/n', with n' the images that were left per class.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax
from torch import Tensor
from torch.nn import functional as F

from otpt.backbones import Backbone
from otpt.calibration.maps import stratified_folds
from otpt.data.own import image_folder
from otpt.errors import OtptError, unknown
from otpt.features.cache import FeatureCache
from otpt.features.pipeline import embed
from otpt.images import LIMITS, UrlLimits
from otpt.methods import Method, Methods, register_methods, text_state
from otpt.methods.gaussians import ridge_precision
from otpt.methods.method import INITS, Kind
from otpt.methods.path import PromptGroup
from otpt.methods.state import PromptState
from otpt.prompts import DEFAULT_PROMPTS, TextFeatures
from otpt.settings import Settings

Floats = npt.NDArray[np.float64]

BETA = 5.5
SHRINKAGES = (0.1, 0.3, 0.6, 1.0)
FOLDS = 10
ALONE, WITH_TEXTS = 0.45, 0.16
"""Weight s without and with texts, as a fraction of the logit scale, where the examples are too few to fit it; the
centres of a normal prior of standard deviation 1 on log s."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Example images of each class.

    Attributes:
        names: of the classes.
        texts: whether the names are used as texts too.
        images: of each class; empty after :meth:`encode`.
        features: (N, D) unit float64 features; None before :meth:`encode`.
        labels: (N,) of the features.
    """

    names: tuple[str, ...]
    texts: bool
    images: tuple[tuple[Any, ...], ...] = ()
    features: Tensor | None = None
    labels: Tensor | None = None

    @classmethod
    def read(cls, given: Any, classes: Sequence[str] = ()) -> Examples:
        """Read examples from {name: images} or a folder with a sub-folder per class; ``classes`` add texts."""
        if isinstance(given, Examples):
            return given
        if isinstance(given, (str, Path)):
            data = image_folder(Path(given).expanduser())
            found: dict[str, list[Any]] = {name: [] for name in data.class_names}
            for i, label in enumerate(data.labels):
                found[data.class_names[label]].append(data.source(i))
            given = found
        if not isinstance(given, Mapping) or not given:
            raise OtptError(f"The examples are {given!r:.80}; expected {{class name: images}}, or a folder.")
        names = tuple(classes or given)
        for name in given:
            if name not in names:
                raise unknown("class of example images:", name, names)
        for name in names:
            own = given.get(name, ())
            if isinstance(own, (str, bytes)) or not hasattr(own, "__len__") or not len(own):
                raise OtptError(
                    f"The class {name!r} has no example images ({own!r:.80}); expected a list of one or more."
                )
        return cls(names, bool(classes), tuple(tuple(given[name]) for name in names))

    def encode(self, backbone: Backbone, urls: UrlLimits | None = LIMITS) -> Examples:
        """Encode the clean view of each image and release the images."""
        single = [name for name, own in zip(self.names, self.images, strict=True) if len(own) == 1]
        if single:
            more = "" if len(single) == 1 else f" (and {len(single) - 1} others)"
            warnings.warn(
                f"The class {single[0]!r}{more} has one example image: it cannot be held out, and confidences are "
                "fitted on the other classes, or are rough if there are none.",
                stacklevel=4,
            )
        features = list(embed(backbone, chain.from_iterable(self.images), urls=urls))
        for each in features:
            if isinstance(each, OtptError):
                raise each
        labels = [c for c, own in enumerate(self.images) for _ in own]
        return replace(
            self, images=(), features=torch.from_numpy(np.array(features)).double(), labels=torch.tensor(labels)
        )

    @property
    def digest(self) -> str:
        """32 hexadecimal digits of features and labels."""
        assert self.features is not None
        assert self.labels is not None
        data = self.features.numpy().tobytes() + self.labels.numpy().tobytes() + bytes([self.texts])
        return hashlib.sha256(data).hexdigest()[:32]


class Linear(NamedTuple):
    """f·w_c + b_c: (…, D) → (…, C)."""

    weights: Tensor
    biases: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        return features @ self.weights.mT + self.biases


class Cache(NamedTuple):
    """Σ_j v_jc·exp(−β(1 − f·g_j)) of keys g (N, D) and values v (N, C): (…, D) → (…, C)."""

    keys: Tensor
    values: Tensor
    beta: float

    def __call__(self, features: Tensor) -> Tensor:
        return torch.exp(self.beta * (features @ self.keys.mT - 1)) @ self.values


Scorer = Linear | Cache


def class_means(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the class means (C, D) of features (N, D), zero for empty classes."""
    members = F.one_hot(labels, classes).to(features)
    return (members / members.sum(dim=0).clamp_min(1)).mT @ features


def prototypes(features: Tensor, labels: Tensor, classes: int) -> Linear:
    """Return a linear scorer of unit class means."""
    means = F.normalize(class_means(features, labels, classes), dim=-1)
    return Linear(means, means.new_zeros(classes))


def tip_adapter(features: Tensor, labels: Tensor, classes: int, *, beta: float = BETA, balanced: bool = True) -> Cache:
    """Return Tip-Adapter's cache (Zhang et al., ECCV 2022); ``balanced`` averages over the images of a class.

    Published: a sum, so that classes with more images win.
    """
    members = F.one_hot(labels, classes).to(features)
    return Cache(features, members / members.sum(dim=0).clamp_min(1) if balanced else members, beta)


def gda(features: Tensor, labels: Tensor, classes: int, *, shrinkage: float | None = 0.3) -> Linear:
    """Fit Gaussians with one covariance (Wang et al., ICLR 2024); ``shrinkage=None`` is the published precision."""
    means = class_means(features, labels, classes)
    residuals = features - means[labels]
    if shrinkage is None:
        weights = means @ ridge_precision(residuals)
    else:
        scatter = residuals.mT @ residuals
        width, trace = len(scatter), float(scatter.trace())
        identity = torch.eye(width).to(scatter)
        spread = scatter * (width / trace) if trace > 1e-12 else identity
        weights = torch.linalg.solve((1 - shrinkage) * spread + shrinkage * identity, means.mT).mT
    return Linear(weights, -(weights * means).sum(dim=-1) / 2)


SCORERS: Mapping[str, Callable[..., Scorer]] = {"prototypes": prototypes, "tip-adapter": tip_adapter, "gda": gda}


@dataclass(frozen=True)
class Fitted:
    """Logits of an image with features f: ``weight`` · scorer(f) + ``text_weight`` · text logits.

    Attributes:
        nll: of held-out examples, in nats per image; nan if none could be held out.
        shrinkage: ρ of ``gda``; None for others.
    """

    scorer: Scorer
    weight: float
    text_weight: float
    nll: float = float("nan")
    shrinkage: float | None = None

    def to(self, device: torch.device, dtype: torch.dtype) -> Fitted:
        """Move the scorer to a device."""
        moved: list[Any] = [each.to(device, dtype) if isinstance(each, Tensor) else each for each in self.scorer]
        return replace(self, scorer=type(self.scorer)(*moved))


def fit_examples(
    init: str, features: Tensor, labels: Tensor, classes: int, *, logit_scale: float, texts: Tensor | None = None
) -> Fitted:
    """Fit a scorer to examples (N, D) with labels (N,), and its weights to held-out examples.

    Args:
        init: of :data:`SCORERS`.
        classes: C; each has an example.
        logit_scale: of the model; the weights are near it.
        texts: text logits (N, C) of the examples; None without texts.
    """
    fold = torch.from_numpy(stratified_folds(labels.numpy(), FOLDS))
    counts = torch.bincount(labels, minlength=classes)
    others = torch.stack([torch.bincount(labels[fold != k], minlength=classes) for k in range(FOLDS)])
    left = others[fold]  # (N, C): examples of each class without the fold of an example
    known = left.gather(1, labels[:, None])[:, 0] > 0
    starts = np.array([ALONE * logit_scale] if texts is None else [1.0, WITH_TEXTS * logit_scale])
    options: list[dict[str, float]] = [{"shrinkage": each} for each in SHRINKAGES] if init == "gda" else [{}]
    if not bool(known.any()):
        scorer = SCORERS[init](features, labels, classes, **options[-1])
        return Fitted(scorer, float(starts[-1]), float(starts[0]) if texts is not None else 0.0, **options[-1])
    best: tuple[float, Floats, dict[str, float]] | None = None
    for own in options:
        held_out = torch.empty(len(labels), classes, dtype=features.dtype)
        for k in fold.unique():
            inside = fold != k
            held_out[~inside] = SCORERS[init](features[inside], labels[inside], classes, **own)(features[~inside])
        terms = [held_out] if texts is None else [texts, held_out]
        seen = (left > 0)[known].numpy()
        nll, weights = fit_weights(torch.stack(terms)[:, known].numpy(), seen, labels[known].numpy(), starts)
        if best is None or nll < best[0]:
            best = nll, weights, own
    assert best is not None
    nll, weights, own = best
    n, fewer = (float(each.double().mean()) for each in (counts[labels[known]], left.gather(1, labels[:, None])[known]))
    weight = float(weights[-1]) * n / (n + 1) * (fewer + 1) / fewer
    scorer = SCORERS[init](features, labels, classes, **own)
    return Fitted(scorer, weight, float(weights[0]) if texts is not None else 0.0, nll, **own)


def fit_weights(terms: Floats, seen: Any, labels: Any, starts: Floats) -> tuple[float, Floats]:
    """Fit positive weights w (K,) of terms (K, N, C) to Σ_n −log softmax(Σ_k w_k·terms_k)[y_n] under a prior.

    log w is normal around log ``starts`` with standard deviation 1. Classes that were not ``seen`` (N, C) are no
    candidates. Returns the NLL per image, prior included, and w.
    """
    terms, rows = np.where(seen, terms, 0.0), np.arange(len(labels))

    def loss(point: Floats) -> tuple[float, Floats]:
        scaled = np.exp(point)[:, None, None] * terms
        logs = log_softmax(np.where(seen, scaled.sum(axis=0), -np.inf), axis=1)
        residual = np.exp(logs)
        residual[rows, labels] -= 1.0
        off = point - np.log(starts)
        gradient = np.array([(residual * each).sum() for each in scaled]) + off
        return float(-logs[rows, labels].sum() + off @ off / 2), gradient

    found = minimize(loss, np.log(starts), jac=True, method="L-BFGS-B", bounds=[(-12.0, 8.0)] * len(starts))
    return float(found.fun) / len(labels), np.exp(found.x)


class ExampleState(PromptState):
    """Logits of texts and examples; the text features are the prototypes where there are no texts."""

    def __init__(self, *args: Any, scorer: str, examples: Examples, model: Backbone, **more: Any) -> None:
        super().__init__(*args, **more)
        features, labels = examples.features, examples.labels
        assert features is not None
        assert labels is not None
        texts = None
        if examples.texts:
            own = features.to(model.device, model.dtype)
            texts = super().logits(own, self.text_features).double().cpu()
        fitted = fit_examples(scorer, features, labels, len(examples.names), logit_scale=self.logit_scale, texts=texts)
        self.fitted = fitted.to(model.device, model.dtype)

    def logits(self, image_features: Tensor, text_features: Tensor) -> Tensor:
        """Compute t · text logits + s · scorer(v): (…, V, D) and (…, C, D) → (…, V, C)."""
        found = self.fitted.weight * self.fitted.scorer(image_features)
        if self.fitted.text_weight:
            found = found + self.fitted.text_weight * super().logits(image_features, text_features)
        return found


def _examples(settings: Settings, methods: Methods) -> Examples:
    if settings.examples is None:
        raise OtptError(
            f"Method {methods[0].name!r} starts from example images; give some as set_classes(examples={{…}}), on the "
            "command line as --examples FOLDER."
        )
    found: Examples = settings.examples
    return found


def _make(backbone: Backbone, settings: Settings, methods: Methods, cache: FeatureCache | None) -> list[PromptGroup]:
    examples = _examples(settings, methods)
    if examples.features is None:
        examples = examples.encode(backbone)
    assert examples.features is not None
    assert examples.labels is not None
    if examples.texts:
        start: Any = settings.texts or (settings.prompts or DEFAULT_PROMPTS)[0]
    else:
        start = TextFeatures(class_means(examples.features, examples.labels, len(examples.names)))
    init = methods[0].init
    state = text_state(
        backbone, settings, start, methods, kind=ExampleState, scorer=init, examples=examples, model=backbone
    )
    return [PromptGroup(init, methods, backbone, state, settings)]


def _check(backbone: Backbone, settings: Settings, methods: Methods) -> None:
    _examples(settings, methods)


def _facts(settings: Settings, method: Method) -> Mapping[str, Any]:
    examples = _examples(settings, (method,))
    prompt = settings.texts or (settings.prompts or DEFAULT_PROMPTS)[0]
    return {"examples": examples.digest, **({"words": prompt.name} if examples.texts else {})}


_SUMMARIES = {
    "gda": ("Gaussians with a common covariance", "ICLR 2024, arXiv 2402.04087"),
    "tip-adapter": ("similarity to each of them", "ECCV 2022, arXiv 2111.03930"),
    "prototypes": ("similarity to their mean", "Snell et al., NeurIPS 2017"),
}
for _name in _SUMMARIES:
    INITS[_name] = Kind(_make, _check, facts=_facts, uses="examples", tunable=False)
register_methods(
    {
        "parts": {
            name: {"axis": "init", "init": name, "summary": f"Classes by example images: {summary}.", "source": source}
            for name, (summary, source) in _SUMMARIES.items()
        }
    }
)
