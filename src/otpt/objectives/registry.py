"""Objectives by name: what a context step may minimise. Nothing heavy is imported until a function is called.

An objective sees the logits of the selected views, f(logits (…, k, C)), or the text features, f(text_features
(…, C, D)), and gives one number per image (…). A further argument is the reference range of the logits
(:mod:`otpt.objectives.ranges`), or the text features at the init. View objectives may also ask by name for
``zero_shot``, (…, k, C) logits of the selected views under the initial prompt, ``cosines``, (…, k, C) of their features
with the texts there, and ``all_views``, (…, V, C) logits of all views, all without gradient; text objectives for
``attributes``, how many texts a class has in a row (one, unless the init is made of attributes). Arguments with a
default are settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from otpt.errors import OtptError, unknown
from otpt.functions import describe, parameters, part_name, reason, resolve, settings_of, source_digest

VIEWS, TEXTS = "views", "texts"
_BY_NAME = ("zero_shot", "all_views", "cosines", "attributes")
_Weight = TypeVar("_Weight")


@dataclass(frozen=True)
class Objective:
    """A function to minimise.

    Attributes:
        on: "views" or "texts", what it is a function of.
        source: the function, or "module:name" of it.
        maximise: minimise its negative.
        weight: that a user's objective has in names of methods.
        settings: names of the function's arguments that a method may set.
        digest: of the source code of a user's function; "" for ours.
    """

    name: str
    on: str
    source: str | Callable[..., Any]
    maximise: bool = False
    weight: float = 1.0
    settings: tuple[str, ...] = ()
    digest: str = ""

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The function itself, imported when first asked for."""
        return resolve(self.source)

    @cached_property
    def takes_reference(self) -> bool:
        """Whether it asks for a second argument: the reference range, or the text features at the init."""
        return any(name not in _BY_NAME for name in parameters(self.function)[1:])

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (self.function.__doc__ or "").strip().partition("\n")[0]

    def __call__(
        self, values: Any, reference: Any, settings: Mapping[str, float], by_name: Mapping[str, Any] | None = None
    ) -> Any:
        """The value (…) to minimise, of ``values`` (…, k, C) or (…, C, D).

        ``by_name`` has what objectives may ask for by name.
        """
        more = {"attributes": 1} | dict(by_name or {})
        arguments = (values, *(more.get(name, reference) for name in parameters(self.function)[1:]))
        own = self.own_settings(settings)
        found = self._of_user(arguments, own) if self.digest else self.function(*arguments, **own)
        return -found if self.maximise else found

    def own_settings(self, settings: Mapping[str, float]) -> dict[str, float]:
        """Those of a method's settings that are this function's."""
        return {name: value for name, value in settings.items() if name in self.settings}

    def _of_user(self, arguments: tuple[Any, ...], settings: Mapping[str, float]) -> Any:
        """A user's function may raise and return anything."""
        from torch import Tensor

        values = arguments[0]
        where = f"{'logits' if self.on == VIEWS else 'text features'} of shape {tuple(values.shape)}"
        try:
            found = self.function(*arguments, **settings)
        except Exception as error:
            raise OtptError(f"The objective {self.name!r} failed on {where}: {reason(error)}.") from error
        expected = tuple(values.shape[:-2])
        if not isinstance(found, Tensor) or tuple(found.shape) != expected:
            said = describe(found) if isinstance(found, Tensor) else f"a {type(found).__name__}"  # numpy has shapes too
            raise OtptError(
                f"The objective {self.name!r} returned {said} for {where}; expected a tensor of shape {expected}, one "
                "number per image."
            )
        if values.requires_grad and not found.requires_grad:
            raise OtptError(f"The objective {self.name!r} returned a number without gradient for {where}.")
        if bool(values.isfinite().all()) and not bool(found.isfinite().all()):
            raise OtptError(f"The objective {self.name!r} returned nan or infinity for {where}.")
        return found


OBJECTIVES: dict[str, Objective] = {
    each.name: each
    for each in (
        Objective("entropy", VIEWS, "otpt.objectives.entropy:entropy_of_mean"),
        Objective("pointwise-entropy", VIEWS, "otpt.objectives.entropy:mean_of_entropies"),
        Objective("weighted-entropy", VIEWS, "otpt.objectives.entropy:weighted_entropies"),
        Objective("clip-reward", VIEWS, "otpt.objectives.reward:clip_reward", settings=("sampled_classes",)),
        Objective("rescaled-entropy", VIEWS, "otpt.objectives.ranges:rescaled_entropy"),
        Objective("range-penalty", VIEWS, "otpt.objectives.ranges:range_penalty"),
        Objective(
            "ensemble-cross-entropy",
            VIEWS,
            "otpt.objectives.ensemble:ensemble_cross_entropy",
            settings=("se_power",),
        ),
        Objective("orthogonality", TEXTS, "otpt.objectives.gram:orthogonality"),
        Objective("orthogonality-rows", TEXTS, "otpt.objectives.gram:row_orthogonality"),
        Objective("orthogonality-frobenius", TEXTS, "otpt.objectives.gram:frobenius_orthogonality"),
        Objective("orthogonality-squared", TEXTS, "otpt.objectives.gram:squared_orthogonality"),
        Objective("dispersion", TEXTS, "otpt.objectives.dispersion:text_dispersion", maximise=True),
        Objective("nearest-angle", TEXTS, "otpt.objectives.angle:nearest_angle", maximise=True),
        Objective("nearest-angle-narrowed", TEXTS, "otpt.objectives.angle:nearest_angle"),
        Objective("huber", TEXTS, "otpt.objectives.huber:huber_cosine", settings=("huber_delta",)),
        Objective("coordinates", TEXTS, "otpt.objectives.coordinates:coordinate_divergence", settings=("reverse_kl",)),
        Objective("moments", TEXTS, "otpt.objectives.moments:moment_distance"),
        Objective("attribute-inter", TEXTS, "otpt.objectives.attributes:attribute_inter", maximise=True),
        Objective("attribute-intra", TEXTS, "otpt.objectives.attributes:attribute_intra"),
    )
}
"""All objectives, ours and those that were registered. Their order is that in which a loss adds them up."""


def find_objective(name: str) -> Objective:
    """An objective by name; an error with the nearest names if there is none."""
    if name not in OBJECTIVES:
        raise unknown("objective", name, OBJECTIVES)
    return OBJECTIVES[name]


def objective(
    function: Callable[..., Any] | None = None, *, on: str = TEXTS, weight: float = 1.0, maximise: bool = False
) -> Any:
    """Register a function as an objective (a decorator); ``tpt+name`` minimises it beside TPT's entropy.

    Args:
        on: "texts" for a function of the text features (…, C, D), "views" for one of the selected views' logits
            (…, k, C). It gives one number per image (…), differentiable.
        weight: in names of methods; in :class:`otpt.Method` and TOML files any other.
        maximise: minimise its negative.
    """
    if on not in (VIEWS, TEXTS):
        raise unknown("kind of objective", on, (VIEWS, TEXTS))

    def register_it(function: Callable[..., Any]) -> Callable[..., Any]:
        new = Objective(
            part_name(function), on, function, maximise, weight, settings_of(function), source_digest(function)
        )
        known = OBJECTIVES.get(new.name)
        if known is not None and known.digest != new.digest:
            raise OtptError(f"There is an objective {new.name!r} already; give yours another name.")
        OBJECTIVES[new.name] = new
        return function

    return register_it if function is None else register_it(function)


def in_order(weights: Mapping[str, _Weight]) -> list[tuple[str, _Weight]]:
    """(name, weight) pairs, view objectives first, each kind in the order of the registry."""
    rank = {name: (each.on != VIEWS, i) for i, (name, each) in enumerate(OBJECTIVES.items())}
    return sorted(weights.items(), key=lambda pair: rank.get(pair[0], (True, math.inf)))
