"""Convert requests to queries of the engine: look up names and check limits, without computing anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from typing import NamedTuple, TypeVar, cast, get_args

from pydantic import JsonValue

from otpt.backbones import Backbone
from otpt.calibration import Calibrated, Calibration
from otpt.data.classes import ClassList
from otpt.decision import Decision
from otpt.errors import OtptError, unknown
from otpt.explain import CROPS
from otpt.groups import Groups
from otpt.methods import (
    MULTI_LABEL,
    Method,
    Output,
    Protocol,
    Task,
    calibration_facts,
    compose,
)
from otpt.methods.work import VIEW, image_passes, sentences
from otpt.prediction import Prediction, make_predictions
from otpt.records import sort_keywords
from otpt.registry import STREAM
from otpt.rejection import Rejection
from otpt.serve.config import Limits
from otpt.serve.errors import RequestError, check_count
from otpt.serve.fields import RECORDS
from otpt.serve.schemas import ImageRequest

_T = TypeVar("_T")
DEFAULT = "default"
"""Name of the class list that the service was started with, in words instead of a file."""
_SHOWN = 20  # names of class lists in an error
_MAX_LEVELS = 8  # of nested groups
_MAX_METHOD_NAME = 200  # characters


class TextsKey(NamedTuple):
    """Model and arguments of a :class:`otpt.methods.Predictor`: key of the texts that images share."""

    model: str
    task: Task
    protocol: Protocol
    rejection: Rejection | None


@dataclass(frozen=True)
class Query:
    """What is asked of an image: the name of a model, and the records of a request."""

    model: str
    task: Task
    protocol: Protocol
    decision: Decision

    @cached_property
    def key(self) -> TextsKey:
        """Arguments of the predictor; images with different seeds share one, since a task has its own seed."""
        return TextsKey(self.model, self.task, self.protocol.replace(seed=0), self.decision.rejection)

    @cached_property
    def calibrations(self) -> Mapping[str, Calibrated]:
        """Calibrations by the name of their method."""
        return self.decision.by_method(self.protocol.methods)

    @cached_property
    def texts(self) -> int:
        """Number of texts to encode: classes × templates, summed over the inits of the methods."""
        return sentences(self.task, self.protocol)

    @cached_property
    def image_work(self) -> int:
        """Estimated work of one image, in passes of a text."""
        return image_passes(self.task, self.protocol)

    def predictions(self, outputs: Sequence[Output]) -> dict[str, Prediction]:
        """Return the predictions of an image by method."""
        return make_predictions(self.protocol.methods, outputs, self.task, self.calibrations, decision=self.decision)

    def position(self, index: int) -> int:
        """Return the position in the class list of class ``index`` of a prediction."""
        within, groups = self.decision.within, self.task.groups
        return index if within is None or groups is None else groups.members[within][index]

    def for_crops(self) -> Query:
        """Return the query of a heat map: the same classes under zero-shot."""
        task = self.task.replace(groups=None, multi_label=False)
        return Query(self.model, task, self.protocol.replace(methods=("zero-shot",)), Decision())


@dataclass(frozen=True)
class Catalogue:
    """Models, class lists and calibrations that requests can name, and the defaults.

    Attributes:
        models: backbones by name, the default first.
        method: name of the default method.
        views: default number of views.
        seed: default seed of the views.
        classes: class lists by name.
        calibrations: calibrations by name.
        groups: groups of the default class list, for requests that name no others.
    """

    models: Mapping[str, Backbone]
    method: str
    views: int
    seed: int
    classes: Mapping[str, ClassList]
    calibrations: Mapping[str, Calibration]
    groups: dict[str, JsonValue] | None = None

    def queries(self, request: ImageRequest, images: int, limits: Limits) -> list[Query]:
        """Return the query of each image; ``OtptError`` or ``RequestError`` for invalid requests."""
        class_lists = self._class_lists(request, images, limits)
        queries: dict[tuple[str, ...], Query] = {}
        for class_list in class_lists:
            if class_list.names not in queries:
                queries[class_list.names] = self._query(request, class_list, limits)
        texts = sum(query.texts for query in queries.values())
        if request.classes is None or texts > len(class_lists[0]):
            check_count("texts", texts, limits.texts)  # a list of the operator may be longer
        _check_work(request, [queries[class_list.names] for class_list in class_lists], limits)
        return [queries[class_list.names] for class_list in class_lists]

    def _class_lists(self, request: ImageRequest, images: int, limits: Limits) -> list[ClassList]:
        """Return the classes of each image."""
        labels, name = request.labels, request.classes
        if labels is not None and name is not None:
            raise OtptError("Both labels and classes were given; expected one of them.")
        if labels is None and name is None:
            name = self._default_classes()
        if name is not None:
            return [_look_up("class list", name, self.classes)] * images
        if request.has_lists:
            lists = cast("list[list[str]]", labels)
            if len(lists) != images:
                raise OtptError(
                    f"The request has {len(lists)} lists of labels and {images} images; expected one for each."
                )
            return [_class_list(names, limits) for names in lists]
        return [_class_list(cast("list[str]", labels), limits)] * images

    @property
    def default(self) -> str | None:
        """Name of the class list of requests without labels: "default", or the only one; else None."""
        if DEFAULT in self.classes:
            return DEFAULT
        return next(iter(self.classes)) if len(self.classes) == 1 else None

    def with_groups(self, groups: object) -> Catalogue:
        """Return a copy with groups of the default class list, given as for :class:`otpt.Task`."""
        if groups is None:
            return self
        if self.default is None:
            raise OtptError("Groups were given without a default class list; expected class names, or a single list.")
        names = self.classes[self.default].names
        members = Groups.read(groups, names).members
        return replace(self, groups={group: [names[i] for i in places] for group, places in members.items()})

    def _default_classes(self) -> str:
        if self.default is not None:
            return self.default
        if not self.classes:
            raise OtptError("No labels were given, and the service has no class list; expected labels.")
        names = ", ".join(repr(name) for name in list(self.classes)[:_SHOWN])
        more = f" and {len(self.classes) - _SHOWN} more" if len(self.classes) > _SHOWN else ""
        raise OtptError(f"Neither labels nor classes were given; expected labels, or one of the classes {names}{more}.")

    def _groups(self, request: ImageRequest) -> object:
        """Return the groups of a request: its own, or those of the service's default class list."""
        if request.groups is not None or request.labels is not None or request.classes not in (None, self.default):
            return request.groups
        return self.groups

    def _query(self, request: ImageRequest, class_list: ClassList, limits: Limits) -> Query:
        _check_sizes(request, limits)
        model = request.model or next(iter(self.models))
        backbone = _look_up("model", model, self.models)
        task, protocol, decision = self._records(request, class_list)
        query = Query(model, task, protocol, decision)
        _check_heat_map(request, task, decision)
        check_count("methods", len(protocol.methods), limits.methods)
        check_count("views", protocol.recipe.n_views, limits.views)
        for method in protocol.methods:
            check_count("views", method.views or 1, limits.views)
            protocol.recipe_for(method)  # raises for too few views
            if method.name in query.calibrations:
                facts = calibration_facts(backbone, task, protocol, method)
                query.calibrations[method.name].calibration.check(facts)
        return query

    def _records(self, request: ImageRequest, class_list: ClassList) -> tuple[Task, Protocol, Decision]:
        """Return the records of a request; its own values take precedence over the class list's and the service's."""
        of_task, of_protocol, of_decision = sort_keywords(request.record_values(), RECORDS)

        of_task |= {"classes": class_list.names, "groups": self._groups(request)}
        of_task |= {"prompt": request.prompt, "templates": request.templates}
        task = Task(**of_task)

        defaults: dict[str, object] = {}
        if not task.independent_labels:  # which have neither views nor published numbers
            defaults = {"seed": self.seed, "family": class_list.family}
            if "budget" not in of_protocol:
                defaults["views"] = self.views
        names = request.methods or [MULTI_LABEL if task.independent_labels else self.method]
        methods = tuple(served_method(name) for name in names)
        from_words = any(method.starts_from_words for method in methods)
        if class_list.prompt is not None and from_words and request.prompt is None and request.templates is None:
            task = task.replace(prompt=class_list.prompt)
        protocol = Protocol(**{**defaults, **of_protocol, "methods": methods}).for_task(task)
        if task.independent_labels:
            protocol.check_independent_labels()
        if class_list.augmix is not None and not task.independent_labels:
            protocol = protocol.with_recipe(replace(protocol.recipe, augmix=class_list.augmix))
        if task.independent_labels and len(methods) > 1:
            raise OtptError(f"{len(methods)} methods were given with {task.question}; expected one.")

        names = request.calibration or []
        check_count("calibrations", len(names), len(methods))
        of_decision["calibrations"] = tuple(_look_up("calibration", name, self.calibrations) for name in names)
        of_decision["reject"] = request.reject
        decision = Decision(**of_decision)
        decision.check_task(task)
        if "threshold" in of_decision and task.groups is None and not task.independent_labels:
            raise OtptError(
                f"The threshold is {decision.threshold:g}, but there is nothing that could reach it; expected groups, "
                "multi_label or a single label."
            )
        return task, protocol, decision


def served_method(name: str) -> Method:
    """Return a method by name, never from a file.

    Methods that need files, train first or remember other images are refused.
    """
    if len(name) > _MAX_METHOD_NAME:
        raise OtptError(f"The name of a method has {len(name)} characters; expected one of GET /v1/methods.")
    method = compose(name)
    if method.scope == STREAM:
        raise OtptError(
            f"Method {name!r} depends on the images before, which here are those of other clients; run it with 'otpt "
            "evaluate', or take a method of GET /v1/methods."
        )
    if not all(preparation.served for preparation in method.preparations):
        raise OtptError(
            f"Method {name!r} needs files, example images or training, which requests cannot bring; take a method of "
            "GET /v1/methods."
        )
    for setting, kind in method.input_settings.items():
        if setting in method.settings and names_file(kind.kind):
            raise OtptError(
                f"Method {name!r} sets {setting.replace('_', '-')}, which may be a file; requests cannot name files of "
                "the service."
            )
    return method


def names_file(annotation: object) -> bool:
    """Return whether a type accepts paths.

    >>> from pathlib import Path
    >>> names_file(str | Path | None), names_file(str)
    (True, False)
    """
    if isinstance(annotation, type) and issubclass(annotation, PathLike):
        return True
    return any(names_file(argument) for argument in get_args(annotation))


def _check_work(request: ImageRequest, queries: Sequence[Query], limits: Limits) -> None:
    """Raise 422 for images whose estimated work exceeds the budget of a request; texts have a limit of their own."""
    work = sum(query.image_work for query in queries)
    if request.explain:
        work += VIEW * CROPS
    if work > limits.work:
        message = f"The request needs the work of about {work:,} texts through the text tower."
        hint = "Send fewer images, labels, views, methods or steps."
        raise RequestError(422, "too-much-work", message, given=work, expected=f"at most {limits.work:,}", hint=hint)


def _look_up(what: str, name: str, known: Mapping[str, _T]) -> _T:
    if not known:
        raise OtptError(f"The service has no {what}, so {name[:200]!r} is unknown.")
    if name not in known:
        raise unknown(what, name[:200], known)
    return known[name]


def _class_list(labels: Sequence[str], limits: Limits) -> ClassList:
    if not labels:
        raise OtptError("The list of labels is empty; expected some labels.")
    check_count("labels", len(labels), limits.labels)
    _check_texts("label", labels, limits.label_length)
    return ClassList(tuple(labels), tuple(labels))


def _check_sizes(request: ImageRequest, limits: Limits) -> None:
    """Raise 422 if texts of the request are too many, too long or not printable."""
    templates = request.templates or []
    groups = _group_names(request.groups)
    check_count("methods", len(request.methods), limits.methods)
    check_count("templates", len(templates), limits.templates)
    check_count("groups", len(groups), limits.groups)
    _check_texts("template", templates, limits.label_length)
    _check_texts("prompt", (request.prompt or "",), limits.label_length)
    _check_texts("group", groups, limits.label_length)


def _check_heat_map(request: ImageRequest, task: Task, decision: Decision) -> None:
    classes = task.classes
    if decision.within is not None and task.groups is not None:
        classes = tuple(classes[position] for position in task.groups.members[decision.within])
    if isinstance(request.explain, str) and request.explain not in classes:
        raise unknown("label", request.explain, classes)
    if request.explain and len(task.classes) == 1:
        raise OtptError("A heat map compares labels; expected two at least.")


def _group_names(groups: object, level: int = 1) -> list[str]:
    """Return the names of all groups, also of nested ones."""
    if not isinstance(groups, Mapping):
        return []
    if level > _MAX_LEVELS:
        raise OtptError(f"Groups are nested more than {_MAX_LEVELS} deep.")
    names = list(groups)
    for members in groups.values():
        names += _group_names(members, level + 1)
    return names


def _check_texts(what: str, texts: Sequence[str], longest: int) -> None:
    """Raise 422 for texts that are too long or not printable."""
    for text in texts:
        if len(text) > longest:
            message = f"A {what} has {len(text):,} characters: {text[:40]!r}…."
            raise RequestError(422, f"{what}-too-long", message, given=len(text), expected=f"at most {longest}")
        if not text.isprintable() and any(letter < " " or "\ud800" <= letter <= "\udfff" for letter in text):
            message = f"A {what} has a control character or half a character: {text[:40]!r}."
            raise RequestError(422, f"{what}-unreadable", message, given=repr(text[:40]), expected="printable text")
