"""From a request's fields to a query of the engine: names are looked up, limits checked, nothing computed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from otpt.backbones import Backbone
from otpt.calibration import Calibrated, Calibration
from otpt.data.classes import ClassList
from otpt.errors import OtptError, unknown
from otpt.methods import Method, calibration_facts, columns, compose, kind_of, recipe_for, templates_of
from otpt.prompts import Templates
from otpt.registry import INITS, STREAM
from otpt.serve.config import Limits
from otpt.serve.errors import RequestError
from otpt.serve.schemas import Options
from otpt.settings import Settings
from otpt.views import ViewRecipe

_T = TypeVar("_T")


@dataclass(frozen=True)
class Query:
    """What is asked about some images: the model by name, classes, prompt, views and seed, methods."""

    model: str
    settings: Settings
    methods: tuple[Method, ...]
    calibrations: Mapping[str, Calibrated]  # by the name of their method

    @cached_property
    def key(self) -> Hashable:
        """What decides the text features and everything else that all images share."""
        own = self.settings
        texts = (own.classes, own.prompts, own.texts, own.templates)
        return (self.model, texts, self.methods, own.recipe, own.family, own.reject, own.reject_threshold)

    @cached_property
    def texts(self) -> int:
        """Number of texts to encode: classes × templates, summed over what the methods start from."""
        per_class: dict[str, int] = {}
        for method in self.methods:
            if not INITS[method.init].tunable:
                per_class[method.init] = len(templates_of(self.settings, method).sentences)
            else:
                per_class["words"] = len(getattr(self.settings.texts, "sentences", "1"))
        return len(self.settings.classes) * sum(per_class.values())


@dataclass(frozen=True)
class Catalogue:
    """What requests can name, and the defaults."""

    models: Mapping[str, Backbone]  # the default first
    method: str
    views: int
    seed: int
    classes: Mapping[str, ClassList]
    calibrations: Mapping[str, Calibration]

    def query(self, asked: Options, methods: Sequence[str], limits: Limits) -> Query:
        """The query of a request; raises ``OtptError`` or ``RequestError`` for unknown names and above limits."""
        model = asked.model or next(iter(self.models))
        _look_up("model", model, self.models)
        check_count("methods", len(methods), limits.methods)
        chosen = tuple(served_method(each) for each in methods or (self.method,))
        if len({each.name for each in chosen}) < len(chosen):
            raise OtptError("A method is given twice; expected each once.")
        settings = self._settings(asked, self._class_list(asked, limits), limits)
        for method in chosen:
            recipe_for(settings, method)
            check_count("views", method.views or 1, limits.views)
            check_count("steps", method.steps, limits.steps)
        found = Query(model, settings, chosen, self._calibrated(asked, model, settings, chosen))
        if asked.classes is None or found.texts > len(settings.classes):  # a list of the operator may be longer
            check_count("texts", found.texts, limits.texts)
        return found

    def _class_list(self, asked: Options, limits: Limits) -> ClassList:
        if (asked.labels is None) == (asked.classes is None):
            given = "Neither labels nor classes were" if asked.labels is None else "Both labels and classes were"
            raise OtptError(f"{given} given; expected one of them.")
        if asked.classes is not None:
            return _look_up("class list", asked.classes, self.classes)
        labels = tuple(asked.labels or ())
        check_count("labels", len(labels), limits.labels)
        _check_texts("label", labels, limits.label_length)
        return ClassList(labels, labels)

    def _settings(self, asked: Options, listed: ClassList, limits: Limits) -> Settings:
        views = asked.views or self.views
        check_count("views", views, limits.views)
        check_count("templates", len(asked.templates or ()), limits.templates)
        _check_texts("template", (*(asked.templates or ()), asked.template or ""), limits.label_length)
        own = None if asked.templates is None else Templates("templates", asked.templates)
        words = asked.template if asked.template is not None or own is not None else listed.prompt
        return Settings(
            classes=listed.names,
            prompts=None if words is None else (words,),
            templates=own,
            texts=own,
            family=listed.family or "fine-grained",
            views=ViewRecipe(n_views=views, augmix=True if listed.augmix is None else listed.augmix),
            seed=self.seed if asked.seed is None else asked.seed,
            reject=asked.reject,
        )

    def _calibrated(
        self, asked: Options, model: str, settings: Settings, methods: Sequence[Method]
    ) -> dict[str, Calibrated]:
        names = asked.calibration or []
        if not names and (asked.coverage is not None or asked.risk is not None):
            raise OtptError("A coverage or a risk was given without a calibration; name one of GET /v1/classes.")
        check_count("calibrations", len(names), len(methods))
        known = {method.name: method for method in methods}
        found: dict[str, Calibrated] = {}
        for name in names:
            calibration = _look_up("calibration", name, self.calibrations)
            method = known.get(str(calibration.facts["method"]["name"]))
            if method is None or method.name in found:
                raise OtptError(
                    f"The calibration {name!r} is of the method {calibration.facts['method']['name']!r}; expected one "
                    "calibration for each method of the request."
                )
            ((prompt, _),) = columns(settings, [method])
            calibration.check(calibration_facts(self.models[model], method, prompt, settings))
            found[method.name] = Calibrated(calibration, coverage=asked.coverage, risk=asked.risk)
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


def check_count(what: str, count: int, most: int) -> None:
    """422 above a limit."""
    if count > most:
        message = f"The request has {count:,} {what}."
        raise RequestError(422, f"too-many-{what}", message, given=count, expected=f"at most {most:,}")


def _check_texts(what: str, texts: Sequence[str], longest: int) -> None:
    """422 for texts that are too long, or that are no text."""
    for text in texts:
        if len(text) > longest:
            message = f"A {what} has {len(text):,} characters: {text[:40]!r}…."
            raise RequestError(422, f"{what}-too-long", message, given=len(text), expected=f"at most {longest}")
        if not text.isprintable() and any(each < " " or "\ud800" <= each <= "\udfff" for each in text):
            message = f"A {what} has a control character or half a character: {text[:40]!r}."
            raise RequestError(422, f"{what}-unreadable", message, given=repr(text[:40]), expected="printable text")
