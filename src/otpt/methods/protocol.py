"""How images become probabilities: methods, views, and the published numbers that apply."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import cached_property
from os import PathLike
from typing import ClassVar, Literal, SupportsIndex

from pydantic import Field, InstanceOf, field_serializer, field_validator, model_validator

from otpt.errors import OtptError, unknown
from otpt.files import Json
from otpt.methods.method import Method, Methods
from otpt.methods.names import get_method, get_methods, method_of_table
from otpt.methods.task import Task
from otpt.prompts import MEMORY_BUDGET
from otpt.records import ELSEWHERE, NO_OPTION, NOT_SERVED, Frozen, join_spelling
from otpt.registry import STREAM
from otpt.views import ViewRecipe

DEFAULT_METHOD = "confident-half"
"""Method for one label per image, described by texts."""
MULTI_LABEL = "multi-label"
"""Method for several labels per image, and for a single one."""
EXAMPLES_METHOD = "gda"
"""Default method with example images."""

Family = Literal["fine-grained", "shift"]


class Protocol(Frozen):
    """How images become probabilities.

    ``method`` is accepted for a single one of ``methods``. Without methods, the task decides
    (:meth:`for_task`): "confident-half", "gda" with example images, "multi-label" for independent labels.

    Example:
        >>> Protocol(method="o-tpt", views=16).recipe.n_views
        16
    """

    spellings: ClassVar[Mapping[str, str]] = {"method": "methods"}

    methods: tuple[InstanceOf[Method], ...] = Field(
        (),
        description="method names (see 'otpt methods') or TOML files (default: by the task)",
        json_schema_extra=ELSEWHERE,
    )
    views: int | InstanceOf[ViewRecipe] = Field(
        64, description="number of views per image, including the clean view", json_schema_extra=ELSEWHERE
    )
    augmix: bool | None = Field(
        None,
        description="AugMix instead of crops and flips only (default: depends on method and data set)",
        json_schema_extra=ELSEWHERE,
    )
    budget: int | None = Field(
        None,
        ge=1,
        description="maximum number of views; fewer if the first 8 or 32 agree; replaces views",
        json_schema_extra=ELSEWHERE,
    )
    seed: int = Field(0, description="random seed of the views", json_schema_extra=ELSEWHERE)
    family: Family | None = Field(
        None,
        description="family of published weights (default: the data set's, else fine-grained)",
        json_schema_extra=ELSEWHERE,
    )
    dataset: str = Field(
        "",
        description="registered data set whose published templates and numbers are used",
        json_schema_extra={
            **ELSEWHERE,
            NOT_SERVED: "numbers of a data set are for evaluations; choose a family",
            NO_OPTION: "'otpt evaluate' takes it from the data set; for other images write --family",
        },
    )
    stream_length: int | None = Field(
        None,
        ge=1,
        description="number of images, for stream methods that require it (set by evaluations)",
        json_schema_extra={
            **ELSEWHERE,
            NOT_SERVED: "stream methods, which have a length, are not served",
            NO_OPTION: "'otpt evaluate' takes it from the data set",
        },
    )
    official_precision: bool = Field(
        False, description="round logits and softmax to float16 as the official scripts do"
    )
    official_orientation: bool = Field(
        False,
        description="ignore the EXIF orientation of images as the official scripts do",
        json_schema_extra={NOT_SERVED: "the service shows and predicts images upright"},
    )
    memory_budget: int = Field(
        MEMORY_BUDGET,
        ge=1,
        description="memory limit for the graphs of text features, in bytes",
        json_schema_extra={
            NOT_SERVED: "the service decides how much memory a request may use",
            NO_OPTION: "set it in Python",
        },
    )

    @model_validator(mode="before")
    @classmethod
    def _read(cls, values: dict[str, object]) -> dict[str, object]:
        values = dict(values)
        join_spelling(values, "method", "methods")
        if values.get("views", 0) is None:
            del values["views"]
        if values.get("budget") is not None and "views" in values:
            raise OtptError(
                f"Both views ({values['views']!r:.80}) and a budget ({values['budget']!r}) are set; pass only one of "
                "them."
            )
        return values

    @field_validator("methods", mode="before")
    @classmethod
    def _read_methods(cls, value: object) -> Methods:
        if isinstance(value, (str, PathLike, Method, Mapping)):
            value = [value]
        if not isinstance(value, Sequence):
            raise OtptError(f"The methods are {value!r:.80}; expected a list of names, such as ['o-tpt'].")
        return get_methods([method_from_json(item) if isinstance(item, Mapping) else item for item in value])

    @field_validator("views", mode="before")
    @classmethod
    def _read_views(cls, value: object) -> int | ViewRecipe:
        make: Callable[..., ViewRecipe] = ViewRecipe  # it validates its arguments
        if isinstance(value, ViewRecipe):
            return value
        if isinstance(value, Mapping):
            return _recipe_of_table(value)
        return make(n_views=value).n_views

    @field_validator("seed", mode="before")
    @classmethod
    def _read_seed(cls, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, SupportsIndex):
            raise OtptError(f"The seed is {value!r}; expected an integer.")
        try:
            return operator.index(value)
        except TypeError:  # an array
            raise OtptError(f"The seed is {value!r:.80}; expected an integer.") from None

    @field_serializer("methods", when_used="json")
    def _methods_to_json(self, value: Methods) -> Json:
        return [method_to_json(method) for method in value]

    @field_serializer("views", when_used="json")
    def _views_to_json(self, value: int | ViewRecipe) -> Json:
        if self.budget is not None:
            return None  # the budget decides
        if isinstance(value, int):
            return value
        recipe = {field.name: getattr(value, field.name) for field in fields(value)}
        return {name: list(item) if isinstance(item, tuple) else item for name, item in recipe.items()}

    @property
    def place(self) -> tuple[str, str]:
        """(family, data set), which select the published numbers of a method."""
        return self.family or "fine-grained", self.dataset

    @cached_property
    def recipe(self) -> ViewRecipe:
        """View recipe of methods that use several views."""
        if self.budget is not None:
            return ViewRecipe.within(self.budget)
        return self.views if isinstance(self.views, ViewRecipe) else ViewRecipe(n_views=self.views)

    @property
    def upright(self) -> bool:
        """Whether the EXIF orientation of images is applied."""
        return not self.official_orientation

    def replace(self, **changes: object) -> Protocol:
        """Return a validated copy with some fields changed; views and a budget replace each other."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        if changes.get("views") is not None:
            values.pop("budget", None)
        if changes.get("budget") is not None:
            values.pop("views", None)
        return Protocol(**{**values, **changes})

    def with_recipe(self, recipe: ViewRecipe) -> Protocol:
        """Return a copy with another view recipe, also in place of a budget."""
        return self.replace(views=recipe)

    def for_task(self, task: Task) -> Protocol:
        """Return a copy with the default method of the task if no methods are set; check that the two fit."""
        protocol = self
        if not self.methods:
            default = DEFAULT_METHOD if task.examples is None else EXAMPLES_METHOD
            protocol = self.replace(methods=(MULTI_LABEL if task.independent_labels else default,))
        if task.multi_label:
            protocol.check_independent_labels()
        for method in protocol.methods:
            _check_task(method, task)
        uses_prompt = any(method.starts_from_words for method in protocol.methods)
        if task.has_own_prompt and not uses_prompt and not (task.examples is not None and task.examples.texts):
            named = ", ".join(repr(method.name) for method in protocol.methods)
            raise OtptError(f"The prompt is {task.prompt.name!r}, but {named} does not start from words; leave it out.")
        return protocol

    def check_independent_labels(self) -> None:
        """Raise an :class:`OtptError` for settings without an effect on several labels, which see a grid of crops."""
        default = Protocol()
        for name in type(self).model_fields:
            if name not in ("methods", "memory_budget", "official_orientation") and getattr(self, name) != getattr(
                default, name
            ):
                raise OtptError(
                    f"{name} is {getattr(self, name)!r:.80}, but several labels per image, and a single class, are "
                    "predicted from a fixed grid of crops; leave it out."
                )

    def recipe_for(self, method: Method) -> ViewRecipe | None:
        """Return the view recipe of a method, or None for a method on whole images."""
        prepared = method.prepared
        if not prepared.needs_features and len(method.preparations) > 1:
            return None
        recipe = self.recipe
        augmix = next((value for value in (self.augmix, method.augmix) if value is not None), recipe.augmix)
        views = recipe.n_views if method.views is None else method.views
        if views == 1 and method.needs_all_views(*self.place):
            raise OtptError(
                f"Method {method.name!r} needs several views per image, but the settings have one; increase the number "
                "of views."
            )
        if not method.needs_views(*self.place):
            return replace(recipe, n_views=1, rounds=(), augmix=augmix)
        # methods that take pixels, or carry a state, always see all views
        in_rounds = not prepared.needs_image and method.scope != STREAM
        rounds = tuple(count for count in recipe.rounds if in_rounds and count < views)
        return replace(recipe, augmix=augmix, n_views=views, rounds=rounds)

    def recipes_for(self, methods: Sequence[Method]) -> tuple[ViewRecipe, ...]:
        """Return the largest required recipe of each kind of views, in rounds if all methods share them."""
        recipes: dict[str, ViewRecipe] = {}
        for method in methods:
            recipe = self.recipe_for(method)
            if recipe is None or not method.preparation.needs_features:
                continue
            other = recipes.get(recipe.kind, recipe)
            largest = recipe if recipe.n_views >= other.n_views else other
            same = recipe == other or min(recipe.n_views, other.n_views) == 1
            recipes[recipe.kind] = largest if same else largest.of(largest.n_views)
        return tuple(recipes.values())


def _check_task(method: Method, task: Task) -> None:
    """Raise an :class:`OtptError` for a method that does not fit a task."""
    if task.classes and task.independent_labels != (method.adapt == MULTI_LABEL):
        what = f"multi_label is {task.multi_label}" if len(task.classes) > 1 else f"there is {task.question}"
        raise OtptError(
            f"{what}, but the method is {method.name!r}; use {MULTI_LABEL!r} for several labels per image and for a "
            "single class, and any other method for one label."
        )
    if task.examples is not None and method.starts_from_words:
        raise OtptError(
            f"The method {method.name!r} does not use example images; use 'gda', 'tip-adapter' or 'prototypes', alone "
            "or combined with other parts, as in 'gda+confident-half'."
        )


def _recipe_of_table(table: Mapping[str, object]) -> ViewRecipe:
    """Return the view recipe of a table, as in JSON and TOML."""
    names = [field.name for field in fields(ViewRecipe)]
    for name in table:
        if name not in names:
            raise unknown("setting of the views", str(name), names)
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
    return ViewRecipe(**values)  # type: ignore[arg-type]  # validated there


def refuse_no_methods(keywords: Mapping[str, object]) -> None:
    """Raise an :class:`OtptError` for an empty list of methods that a user gave."""
    methods = keywords.get("methods")
    if isinstance(methods, Sequence) and len(methods) == 0:
        raise OtptError("methods is empty; expected at least one method, or none of this setting for the default.")


def method_to_json(method: Method) -> Json:
    """Return the name of a method, or its fields if it was made in memory."""
    with suppress(OtptError):
        if get_method(method.name) == method:
            return method.name
    values = {field.name: getattr(method, field.name) for field in fields(method)}
    return {name: plain(value) for name, value in values.items()}


def method_from_json(table: Mapping[str, object]) -> Method:
    """Return a method from the fields that :func:`method_to_json` wrote."""
    values = dict(table)
    name = values.pop("name", None)
    if not isinstance(name, str):
        raise OtptError(f"A method is {table!r:.80}; expected a name, or its fields with a name.")
    return method_of_table(name, values, "the settings")


def plain(value: object) -> Json:
    """Convert tuples to lists, mappings to dictionaries and objects to their digest, for JSON."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, PathLike):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    to_json = getattr(value, "to_json", None)
    return to_json() if to_json is not None else {type(value).__name__: str(getattr(value, "digest", ""))}
