"""From a request's fields to a query of the engine: names are looked up, limits checked, nothing computed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

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


@dataclass(frozen=True)
class Query:
    """What is asked about some images.

    Attributes:
        model: its name in the service.
        settings: classes, prompt, views.
        methods: one or more.
        calibrations: by the name of their method.
        seed: of the views.
        classes: the name of the class list; None where the labels came with the request.
        show_views: include the views in the answer.
    """

    model: str
    settings: Settings
    methods: tuple[Method, ...]
    calibrations: Mapping[str, Calibrated] = field(default_factory=dict)
    seed: int = 0
    classes: str | None = None
    show_views: bool = False

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
    """What requests can name.

    Attributes:
        models: by name, the default first.
        method: the default.
        views: per image, by default.
        seed: of the views, by default.
        classes: class lists by name.
        calibrations: by name.
    """

    models: Mapping[str, Backbone]
    method: str
    views: int = 64
    seed: int = 0
    classes: Mapping[str, ClassList] = field(default_factory=dict)
    calibrations: Mapping[str, Calibration] = field(default_factory=dict)

    def query(self, asked: Options, methods: Sequence[str], limits: Limits, *, show_views: bool = False) -> Query:
        """The query of a request; raises ``OtptError`` or ``RequestError`` for unknown names and above limits."""
        model = next(iter(self.models)) if asked.model is None else asked.model
        if model not in self.models:
            raise unknown("model", model[:200], self.models)
        _check_count("methods", len(methods), limits.methods)
        chosen = tuple(served_method(each) for each in methods)
        if len({each.name for each in chosen}) < len(chosen):
            raise OtptError("A method is given twice; expected each once.")
        settings = self._settings(asked, self._class_list(asked, limits), limits)
        for method in chosen:
            recipe_for(settings, method)
            if method.views is not None:
                _check_count("views", method.views, limits.views)
        seed = self.seed if asked.seed is None else asked.seed
        found = Query(model, settings, chosen, seed=seed, classes=asked.classes, show_views=show_views)
        if asked.classes is None or found.texts > len(settings.classes):  # a list of the operator may be longer
            _check_count("texts", found.texts, limits.texts)
        return replace(found, calibrations=self._calibrated(asked, found))

    def _class_list(self, asked: Options, limits: Limits) -> ClassList:
        if (asked.labels is None) == (asked.classes is None):
            given = "Neither labels nor classes were" if asked.labels is None else "Both labels and classes were"
            raise OtptError(f"{given} given; expected one of them.")
        if asked.classes is not None:
            if not self.classes:
                raise OtptError(f"The service has no class lists, so {asked.classes[:200]!r} is unknown; send labels.")
            if asked.classes not in self.classes:
                raise unknown("class list", asked.classes[:200], self.classes)
            return self.classes[asked.classes]
        labels = tuple(asked.labels or ())
        _check_count("labels", len(labels), limits.labels)
        for label in labels:
            _check_length("label", label, limits.label_length)
        return ClassList(labels, labels)

    def _settings(self, asked: Options, listed: ClassList, limits: Limits) -> Settings:
        views = self.views if asked.views is None else asked.views
        _check_count("views", views, limits.views)
        _check_count("templates", len(asked.templates or ()), limits.templates)
        for template in (*(asked.templates or ()), asked.template or ""):
            _check_length("template", template, limits.label_length)
        own = None if asked.templates is None else Templates("templates", asked.templates)
        words = asked.template if asked.template is not None or own is not None else listed.prompt
        return Settings(
            classes=listed.names,
            prompt=words,
            templates=own,
            texts=own,
            family=listed.family or "fine-grained",
            views=ViewRecipe(n_views=views, augmix=True if listed.augmix is None else listed.augmix),
            reject=asked.reject,
        )

    def _calibrated(self, asked: Options, query: Query) -> dict[str, Calibrated]:
        names = asked.calibration or []
        if not names and (asked.coverage is not None or asked.risk is not None):
            raise OtptError("A coverage or a risk was given without a calibration; name one of GET /v1/classes.")
        known = {method.name: method for method in query.methods}
        found: dict[str, Calibrated] = {}
        for name in names:
            if not self.calibrations:
                raise OtptError(f"The service has no calibrations, so {name[:200]!r} is unknown.")
            if name not in self.calibrations:
                raise unknown("calibration", name[:200], self.calibrations)
            own = Calibrated(self.calibrations[name], coverage=asked.coverage, risk=asked.risk)
            method = known.get(str(own.calibration.facts["method"]["name"]))
            if method is None or method.name in found:
                raise OtptError(
                    f"The calibration {name!r} is of the method {own.calibration.facts['method']['name']!r}; expected "
                    "one calibration for each method of the request."
                )
            ((prompt, _),) = columns(query.settings, [method])
            own.calibration.check(calibration_facts(self.models[query.model], method, prompt, query.settings))
            found[method.name] = own
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


def _check_count(what: str, count: int, most: int) -> None:
    if count > most:
        raise RequestError(
            422, f"too-many-{what}", f"The request has {count:,} {what}.", given=count, expected=f"at most {most:,}"
        )


def _check_length(what: str, text: str, most: int) -> None:
    if len(text) > most:
        message = f"A {what} has {len(text):,} characters: {text[:40]!r}…."
        raise RequestError(422, f"{what}-too-long", message, given=len(text), expected=f"at most {most}")
