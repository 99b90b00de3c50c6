"""Kinds of methods: what a method starts from (its init) or brings along (a network), and what that needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from otpt.errors import OtptError
from otpt.hooks import EvaluationHook
from otpt.registry import ADAPTATIONS, STREAM, Component
from otpt.views import ViewRecipe

if TYPE_CHECKING:
    from otpt.features.cache import FeatureCache
    from otpt.methods.inits import Group
    from otpt.methods.method import Method
    from otpt.prompts import Prompt
    from otpt.settings import Settings

Methods = tuple["Method", ...]


@dataclass(frozen=True, eq=False)
class Kind:
    """Methods that are prepared in the same way: those of an init, or of an adaptation with a network of its own.

    Attributes:
        make: (backbone, settings, methods, cache) → their groups, computed once per class list.
        check: raises an :class:`OtptError` for what ``make`` would refuse, without computing anything.
        names: what a method starts from: prompts of words, or a name in the results; by default as its init says.
        facts: what decides that besides a prompt of words, for ``config.json``.
        needs_image: whether a method takes the image itself.
        needs_features: whether the methods take features of views.
        needs_text_tower: False for methods on an image tower alone.
        from_words: the initial context is made of words.
        uses: field of :class:`otpt.settings.Settings` that these methods alone read.
        tunable: there is a context to tune.
        one_text: a class has one text, so that other adaptations than steps on the context apply.
        shares_texts: all images have the same text features.
        base_classes: it was learned on classes of its own, which calibrators may ask for (``base_texts``).
        served: the service has all that it needs.
        options: fields of :class:`otpt.Method` that only these methods use.
        trained: whether they predict with a network that was trained for them, which only an evaluation reads.
        evaluation: what they add to an evaluation.
    """

    make: Callable[[Any, Settings, Methods, FeatureCache | None], Sequence[Group]]
    check: Callable[[Any, Settings, Methods], None] = lambda backbone, settings, methods: None
    names: Callable[[Settings, Method], Sequence[Prompt | str]] | None = None
    facts: Callable[[Settings, Method], Mapping[str, Any]] = lambda settings, method: {}
    needs_image: Callable[[Method], bool] = lambda method: False
    needs_features: bool = True
    needs_text_tower: bool = True
    from_words: bool = False
    uses: str = ""
    tunable: bool = True
    one_text: bool = True
    shares_texts: bool = True
    base_classes: bool = False
    served: bool = False
    options: tuple[str, ...] = ()
    trained: bool = False
    evaluation: EvaluationHook = field(default_factory=EvaluationHook)


INITS: dict[str, Kind] = {}
NETWORKS: dict[str, Kind] = {}
"""By adaptation: methods that bring a network of their own."""


def register_kind(name: str, kind: Kind, *, only: Mapping[str, tuple[str, ...]]) -> None:
    """Register an adaptation whose methods are prepared and run by a plugin.

    Args:
        name: value of a method's ``adapt``.
        only: by axis, the values that it can be combined with; any on other axes.
    """
    NETWORKS[name] = kind
    ADAPTATIONS[name] = Component(name, only=only)


def kind_of(method: Method) -> Kind:
    """How a method is prepared."""
    return NETWORKS[method.adapt] if method.adapt in NETWORKS else INITS[method.init]


def recipe_for(settings: Settings, method: Method) -> ViewRecipe | None:
    """The views that a method needs; None for one that takes the image itself."""
    recipe, kind = settings.recipe, kind_of(method)
    if not kind.needs_features and kind is not INITS[method.init]:
        return None
    augmix = next((each for each in (settings.augmix, method.augmix) if each is not None), recipe.augmix)
    views = recipe.n_views if method.views is None else method.views
    if views == 1 and method.needs_all_views(*settings.place):
        raise OtptError(
            f"Method {method.name!r} needs several views of an image, but the settings have one; give a larger number "
            "of views."
        )
    if not method.needs_views(*settings.place):
        return replace(recipe, n_views=1, rounds=(), augmix=augmix)
    # methods that take pixels, or remember the images before, always see all views
    in_rounds = not kind.needs_image(method) and method.scope != STREAM
    rounds = tuple(each for each in recipe.rounds if in_rounds and each < views)
    return replace(recipe, augmix=augmix, n_views=views, rounds=rounds)


def recipes_for(settings: Settings, methods: Sequence[Method]) -> tuple[ViewRecipe, ...]:
    """The features that methods need, each kind of views once, with the largest number.

    In rounds if all methods that need several views of the kind have them in the same rounds.
    """
    found: dict[str, ViewRecipe] = {}
    for method in methods:
        recipe = recipe_for(settings, method)
        if recipe is None or not kind_of(method).needs_features:
            continue
        other = found.get(recipe.kind, recipe)
        largest = recipe if recipe.n_views >= other.n_views else other
        same = recipe == other or min(recipe.n_views, other.n_views) == 1
        found[recipe.kind] = largest if same else largest.of(largest.n_views)
    return tuple(found.values())
