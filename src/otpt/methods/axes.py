"""The axes: which values there are on each. Nothing heavy is imported until a function is called.

| axis | question | a value is |
|---|---|---|
| init | what is the initial prompt? | words, prompts learned before, templates, or a context made for the class list |
| adapt | how do the views of this image change texts or logits? | steps on the context, or a function of its own |
| calibrate | how are logits rescaled? | a function of (logits, zero_shot), both (…, C), that gives logits |
| aggregate | which views decide, and how? | a function of the views' logits or probabilities (V, C) that gives (C,) |
| gate | adapt this image, or keep zero-shot? | a function of the zero-shot logits (V, C) that gives True or False |

Functions name what they need as parameters; see :data:`AVAILABLE`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from otpt.errors import unknown
from otpt.functions import Value, register, values

_Function = TypeVar("_Function", bound=Callable[..., Any])

NONE, CLEAN = "none", "clean"
IMAGE, STREAM = "image", "stream"
STATE = "state"
LOGITS, TEXTS = "logits", "texts"

ATTRIBUTES = "attributes"
OF_WORDS = ("words", ATTRIBUTES)
"""Inits whose context is made of words, not learned before."""
LEARNED = ("coop", "cocoop", "maple")
"""Inits that are read from a file."""
TEMPLATES = ("templates-7", "templates-80", "dataset-templates", "templates")
"""Inits that are text features averaged over sentences: there is no context to tune."""
FPP = ("fpp", "fpp-words")
INITS = (*OF_WORDS, *LEARNED, *TEMPLATES, *FPP)

AVAILABLE = (
    "logits",
    "zero_shot",
    "probabilities",
    "uncalibrated",
    "features",
    "text_features",
    "adapted_text_features",
    "mean_cosine",
    "logit_scale",
)
"""What a function of an image may ask for by the names of its parameters:

| name | shape | |
|---|---|---|
| ``logits`` | (V, C) | of all views after the steps before this one, the clean view first |
| ``zero_shot`` | (V, C) | under the initial prompt |
| ``probabilities`` | (V, C) | softmax of ``logits`` |
| ``uncalibrated`` | (V, C) | logits before calibration; of aggregations only |
| ``features`` | (V, D) | unit image features |
| ``text_features`` | (C, D) | unit text features under the initial prompt |
| ``adapted_text_features`` | (C, D) | those that an adaptation left; of calibrations and aggregations only |
| ``mean_cosine`` | number | between ``adapted_text_features`` of different classes |
| ``logit_scale`` | number | logits = scale · features · text_featuresᵀ + bias |

An adaptation may also ask for ``state``, a dictionary that is carried from image to image: its scope is the stream.
Arguments with a default are settings: a method may give them another value (``--set delta=0.3``). A function returns
its tensor, or (tensor, {name: number}) to add columns to the results.
"""

BEFORE = tuple(name for name in AVAILABLE if name not in ("uncalibrated", "adapted_text_features", "mean_cosine"))
"""What is known before anything was adapted."""


_PROMPTSMOOTH = {"adapt": ("promptsmooth",)}
_MEAN = ("mean_fraction", "clean_weight")
_CACHED = ("cache_alpha", "cache_beta", "negative_weight", "mean_views", "stream_ratio")
_SAME_TEXTS = {"init": ("words", "coop", "maple")}  # prototypes start at the texts, which are not the image's own
_OWN_NETWORK = {"init": ("words",), "calibrate": (NONE,), "aggregate": (CLEAN,), "gate": (NONE,)}
_FROM_FEATURES = {"calibrate": (NONE,)}  # they make logits of their own, which nothing has rescaled
_SHIFT = ("shift_rate", "shift_ratio")

ADAPTATIONS = values(
    Value("context"),
    Value(
        "promptsmooth", only={**_OWN_NETWORK, "init": ("words", "coop"), "aggregate": (CLEAN, "votes", "certificate")}
    ),
    Value("baple", only=_OWN_NETWORK),
    Value("fpt", only=_OWN_NETWORK),
    Value("tps", "otpt.methods.text_shift:tps", views=True, gives_texts=True, settings=_SHIFT),
    Value("tps-shared", "otpt.methods.text_shift:tps_shared", views=True, gives_texts=True, settings=_SHIFT),
    Value("sts", "otpt.methods.text_shift:sts", views=True, gives_texts=True, settings=_SHIFT),
    Value("tda", "otpt.methods.caches.tda:tda", views_if=("mean_views",), in_order=True, settings=_CACHED),
    Value(
        "boostadapter",
        "otpt.methods.caches.boostadapter:boostadapter",
        views=True,
        in_order=True,
        settings=(*_CACHED, "boost_delta"),
    ),
    Value("boost", "otpt.methods.caches.boostadapter:boost", views=True, settings=(*_CACHED, "boost_delta")),
    Value(
        "dmn",
        "otpt.methods.caches.dmn:dmn",
        views=True,
        in_order=True,
        settings=("memory_weight", "memory_beta", "memory_size", "stream_ratio"),
    ),
    Value(
        "bca",
        "otpt.methods.caches.bca:bca",
        views_if=("mean_views",),
        only=_SAME_TEXTS,
        in_order=True,
        settings=("bca_count", "bca_centre_from", "bca_matrix_from", "mean_views", "stream_ratio"),
    ),
    Value(
        "dpe",
        "otpt.methods.caches.dpe:dpe",
        views_if=("mean_views", "mean_prediction"),
        only=_SAME_TEXTS,
        in_order=True,
        settings=(
            "cache_alpha",
            "cache_beta",
            "dpe_rate",
            "dpe_contrast",
            "mean_views",
            "mean_prediction",
            "stream_ratio",
        ),
    ),
)
AGGREGATIONS = values(
    Value(CLEAN),
    Value("votes", only=_PROMPTSMOOTH),
    Value("certificate", only=_PROMPTSMOOTH),
    Value("weak-strong", "otpt.methods.aggregations.ensembles:weak_strong", views=True, settings=("strong_ratio",)),
    Value("se", "otpt.methods.aggregations.ensembles:se", views=True, settings=("se_power", "strong_ratio")),
    Value("zero", "otpt.methods.aggregations.zero:zero", views=True, settings=("vote_ratio", "vote_temperature")),
    Value(
        "mta",
        "otpt.methods.aggregations.mean_shift:mta",
        views=True,
        only=_FROM_FEATURES,
        settings=("mta_neighbours", "mta_lambda_q", "mta_lambda_y"),
    ),
    Value(
        "reliability",
        "otpt.methods.aggregations.reliability:reliability",
        views=True,
        settings=("reliable_neighbours", "reliable_temperature"),
    ),
    Value("mean-probability", "otpt.methods.aggregations.view_means:mean_probability", views=True, settings=_MEAN),
    Value("mean-logit", "otpt.methods.aggregations.view_means:mean_logit", views=True, settings=_MEAN),
    Value(
        "mean-feature",
        "otpt.methods.aggregations.view_means:mean_feature",
        views=True,
        only=_FROM_FEATURES,
        settings=_MEAN,
    ),
)
GATES = values(
    Value(NONE),
    Value("agreement", "otpt.methods.gates:agreement", views=True, settings=("gate_ratio",)),
    Value("strong-agreement", "otpt.methods.gates:strong_agreement", views=True, settings=("strong_ratio",)),
    Value("cas", "otpt.methods.gates:cas", views=True, settings=("cas_threshold", "gate_ratio")),
)


def adaptation(function: _Function | None = None, *, gives: str = LOGITS) -> Any:
    """Register an adaptation (a decorator): a function that gives logits (V, C) of an image's views.

    With ``gives="texts"`` it gives unit text features (C, D) instead. One that takes ``state`` is a
    stream method: the dictionary is carried from image to image, in an order that the seed decides.
    """
    if gives not in (LOGITS, TEXTS):
        raise unknown("kind of adaptation", gives, (LOGITS, TEXTS))

    def register_it(function: _Function) -> _Function:
        register("adaptation", ADAPTATIONS, function, (*BEFORE, STATE), gives_texts=gives == TEXTS)
        return function

    return register_it if function is None else register_it(function)


def aggregation(function: _Function) -> _Function:
    """Register an aggregation (a decorator): a function of all views that gives probabilities (C,)."""
    register("aggregation", AGGREGATIONS, function, AVAILABLE)
    return function


def gate(function: _Function) -> _Function:
    """Register a gate (a decorator): a function that says whether an image is adapted (True) or keeps zero-shot."""
    register("gate", GATES, function, ("zero_shot", "features", "text_features"))
    return function
