"""Convert requests to queries of the engine: look up names and check limits, without computing anything."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from otpt.backbones import Backbone
from otpt.calibration import Calibrated, Calibration
from otpt.classifier import calibrations_by_method
from otpt.data.classes import ClassList
from otpt.errors import OtptError, unknown
from otpt.methods import Method, Output, calibration_facts, columns, compose, kind_of, recipe_for, templates_of
from otpt.methods.method import INITS
from otpt.prediction import Prediction, predictions
from otpt.prompts import Templates
from otpt.registry import STREAM
from otpt.serve.config import Limits
from otpt.serve.errors import RequestError, check_count
from otpt.serve.schemas import Asked
from otpt.settings import MULTI_LABEL, Settings
from otpt.views import ViewRecipe

_T = TypeVar("_T")
_DEEPEST = 8  # levels of groups


@dataclass(frozen=True)
class Query:
    """A model name with the settings of a request."""

    model: str
    settings: Settings

    @cached_property
    def key(self) -> Hashable:
        """Cache key of the text features and all other state that images share."""
        own = self.settings
        texts = (own.classes, own.prompts, own.texts, own.templates)
        return (self.model, texts, own.methods, own.recipe, own.family, own.reject)

    @cached_property
    def calibrations(self) -> Mapping[str, Calibrated]:
        """The calibrations by the name of their method."""
        return calibrations_by_method(self.settings.calibrated, self.settings.methods)

    @cached_property
    def texts(self) -> int:
        """Number of texts to encode: classes × templates, summed over what the methods start from."""
        per_class: dict[str, int] = {}
        for method in self.settings.methods:
            if not INITS[method.init].tunable:
                per_class[method.init] = len(templates_of(self.settings, method).sentences)
            else:
                per_class["words"] = len(getattr(self.settings.texts, "sentences", "1"))
        return len(self.settings.classes) * sum(per_class.values())

    def predictions(self, outputs: Sequence[Output]) -> dict[str, Prediction]:
        """The predictions of an image by method."""
        return predictions(self.settings.methods, outputs, self.settings, self.calibrations)

    def for_crops(self) -> Query:
        """The same classes under zero-shot alone, for heat maps."""
        without: dict[str, Any] = dict.fromkeys(("groups", "reject", "coverage", "risk"))
        changes = {"methods": ("zero-shot",), "multi_label": False, "calibrations": (), **without}
        return Query(self.model, self.settings.replace(**changes))


@dataclass(frozen=True)
class Catalogue:
    """Models, class lists and calibrations that requests can name, and the defaults."""

    models: Mapping[str, Backbone]  # the default first
    method: str
    views: int
    seed: int
    classes: Mapping[str, ClassList]
    calibrations: Mapping[str, Calibration]

    def queries(self, asked: Asked, images: int, limits: Limits) -> list[Query]:
        """Return the query of each image; ``OtptError`` or ``RequestError`` for invalid requests."""
        given = asked.labels
        lists: Sequence[Any] = given if given and isinstance(given[0], list) else [given]
        if lists is given and len(lists) != images:
            raise OtptError(f"The request has {len(lists)} lists of labels and {images} images; expected one for each.")
        made: dict[Any, Query] = {}
        for own in lists:
            listed = self._class_list(asked.classes, own, limits)
            if listed.names not in made:
                made[listed.names] = self._query(asked, listed, limits)
        texts = sum(each.texts for each in made.values())
        if asked.classes is None or texts > len(next(iter(made.values())).settings.classes):
            check_count("texts", texts, limits.texts)  # a list of the operator may be longer
        return [made[tuple(own)] for own in lists] if lists is given else list(made.values()) * images

    def _class_list(self, name: str | None, labels: Sequence[str] | None, limits: Limits) -> ClassList:
        if (labels is None) == (name is None):
            given = "Neither labels nor classes were" if labels is None else "Both labels and classes were"
            raise OtptError(f"{given} given; expected one of them.")
        if name is not None:
            return _look_up("class list", name, self.classes)
        found = tuple(labels or ())
        if not found:
            raise OtptError("The list of labels is empty; expected some labels.")
        check_count("labels", len(found), limits.labels)
        _check_texts("label", found, limits.label_length)
        return ClassList(found, found)

    def _query(self, asked: Asked, listed: ClassList, limits: Limits) -> Query:
        model = asked.model or next(iter(self.models))
        backbone = _look_up("model", model, self.models)
        several = asked.multi_label or len(listed.names) == 1
        names = asked.methods or [MULTI_LABEL if several else self.method]
        views = asked.views or self.views
        groups, templates = _group_names(asked.groups), asked.templates or []
        check_count("methods", len(names), limits.methods)
        check_count("views", views, limits.views)
        check_count("templates", len(templates), limits.templates)
        check_count("groups", len(groups), limits.groups)
        check_count("calibrations", len(asked.calibration or []), len(names))
        _check_texts("template", (*templates, asked.template or ""), limits.label_length)
        _check_texts("group", groups, limits.label_length)
        if isinstance(asked.explain, str) and asked.explain not in listed.names:
            raise unknown("label", asked.explain, listed.names)
        if several and len(names) > 1:
            raise OtptError("Several methods were given with multi_label or a single label; expected one.")
        if asked.explain and len(listed.names) == 1:
            raise OtptError("A heat map compares labels; expected two at least.")
        calibrations = [_look_up("calibration", each, self.calibrations) for each in asked.calibration or ()]
        own = None if asked.templates is None else Templates("templates", templates)
        words = asked.template if asked.template is not None or own is not None else listed.prompt
        settings = Settings(
            methods=tuple(served_method(each) for each in names),
            classes=listed.names,
            multi_label=asked.multi_label,
            groups=asked.groups,
            prompts=None if words is None else (words,),
            templates=own,
            texts=own,
            family=listed.family or "fine-grained",
            views=ViewRecipe(n_views=views, augmix=True if listed.augmix is None else listed.augmix),
            seed=self.seed if asked.seed is None else asked.seed,
            calibrations=tuple(Calibrated(each, coverage=asked.coverage, risk=asked.risk) for each in calibrations),
            coverage=asked.coverage,
            risk=asked.risk,
            reject=asked.reject,
        )
        found = Query(model, settings)
        for method in settings.methods:
            recipe_for(settings, method)  # raises for too few views
            check_count("views", method.views or 1, limits.views)
            check_count("steps", method.steps, limits.steps)
            if method.name in found.calibrations:
                ((prompt, _),) = columns(settings, [method])
                facts = calibration_facts(backbone, method, prompt, settings)
                found.calibrations[method.name].calibration.check(facts)
        return found


def served_method(name: str) -> Method:
    """A method by name, never a file; methods that need files, train first or remember other images are refused."""
    if len(name) > 200:
        raise OtptError(f"The name of a method has {len(name)} characters; expected one of GET /v1/methods.")
    method = compose(name)
    if method.scope == STREAM:
        raise OtptError(
            f"Method {name!r} depends on the images before, which here are those of other clients; run it with 'otpt "
            "evaluate', or take a method of GET /v1/methods."
        )
    if not kind_of(method).served:
        raise OtptError(f"Method {name!r} needs files that requests cannot bring; take a method of GET /v1/methods.")
    return method


def _look_up(what: str, name: str, known: Mapping[str, _T]) -> _T:
    if not known:
        raise OtptError(f"The service has no {what}, so {name[:200]!r} is unknown.")
    if name not in known:
        raise unknown(what, name[:200], known)
    return known[name]


def _group_names(given: Any, level: int = 1) -> list[str]:
    """The names of all groups, those inside others included."""
    if not isinstance(given, Mapping):
        return []
    if level > _DEEPEST:
        raise OtptError(f"Groups are nested more than {_DEEPEST} deep.")
    return [*given, *(name for inside in given.values() for name in _group_names(inside, level + 1))]


def _check_texts(what: str, texts: Sequence[str], longest: int) -> None:
    """Raise 422 for texts that are too long or not printable."""
    for text in texts:
        if len(text) > longest:
            message = f"A {what} has {len(text):,} characters: {text[:40]!r}…."
            raise RequestError(422, f"{what}-too-long", message, given=len(text), expected=f"at most {longest}")
        if not text.isprintable() and any(each < " " or "\ud800" <= each <= "\udfff" for each in text):
            message = f"A {what} has a control character or half a character: {text[:40]!r}."
            raise RequestError(422, f"{what}-unreadable", message, given=repr(text[:40]), expected="printable text")
