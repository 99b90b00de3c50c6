"""From a request's fields to a query of the engine: names are looked up, limits checked, nothing computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from otpt.backbones import Backbone
from otpt.calibration import Calibrated, Calibration
from otpt.data.classes import ClassList
from otpt.errors import OtptError, unknown
from otpt.methods import Method, compose
from otpt.methods.facts import calibration_facts
from otpt.methods.kinds import kind_of
from otpt.methods.preparing import columns, recipe_for, refuse_trained
from otpt.prompts import Templates
from otpt.registry import ATTRIBUTES, FPP, LEARNED, STREAM
from otpt.serve.http.errors import RequestError
from otpt.serve.http.schemas import Asked
from otpt.serve.jobs import Query
from otpt.serve.limits import Limits
from otpt.settings import Settings
from otpt.views import ViewRecipe


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

    def query(self, asked: Asked, methods: Sequence[str], limits: Limits, *, show_views: bool = False) -> Query:
        """The query of a request; ``OtptError`` or ``RequestError`` if it asks for what there is not."""
        model = next(iter(self.models)) if asked.model is None else asked.model
        if model not in self.models:
            raise unknown("model", model[:200], self.models)
        _check_count("methods", len(methods), limits.methods)
        chosen = tuple(served_method(each) for each in methods)
        if len({each.name for each in chosen}) < len(chosen):
            raise OtptError("A method is given twice; expected each once.")
        listed = self._listed(asked, limits)
        settings = self._settings(asked, listed, limits)
        for method in chosen:
            recipe_for(settings, method)
            if method.views is not None:
                _check_count("views", method.views, limits.views)
        seed = self.seed if asked.seed is None else asked.seed
        found = Query(model, settings, chosen, seed=seed, classes=asked.classes, show_views=show_views)
        return replace(found, calibrations=self._calibrated(asked, found))

    def _listed(self, asked: Asked, limits: Limits) -> ClassList:
        if (asked.labels is None) == (asked.classes is None):
            given = "Neither labels nor classes were" if asked.labels is None else "Both labels and classes were"
            raise OtptError(f"{given} given; expected one of them.")
        if asked.classes is not None:
            if asked.classes not in self.classes:
                raise unknown("class list", asked.classes[:200], self.classes)
            return self.classes[asked.classes]
        labels = tuple(asked.labels or ())
        _check_count("labels", len(labels), limits.labels)
        for label in labels:
            _check_length("label", label, limits.label_length)
        return ClassList(labels, labels)

    def _settings(self, asked: Asked, listed: ClassList, limits: Limits) -> Settings:
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

    def _calibrated(self, asked: Asked, query: Query) -> dict[str, Calibrated]:
        names = [asked.calibration] if isinstance(asked.calibration, str) else asked.calibration or []
        if not names and (asked.coverage is not None or asked.risk is not None):
            raise OtptError(
                "A coverage or a risk was given without a calibration; expected both; name one that GET /v1/classes "
                "lists."
            )
        known = {method.name: method for method in query.methods}
        found: dict[str, Calibrated] = {}
        for name in names:
            if name not in self.calibrations:
                raise unknown("calibration", name[:200], self.calibrations)
            own = Calibrated(self.calibrations[name], coverage=asked.coverage, risk=asked.risk)
            method = known.get(str(own.calibration.facts["method"]["name"]))
            if method is None or method.name in found:
                raise OtptError(
                    f"The calibration {name!r} is of the method {own.calibration.facts['method']['name']!r}; expected "
                    "one calibration for each method that is asked for."
                )
            ((prompt, _),) = columns(query.settings, [method])
            own.calibration.check(calibration_facts(self.models[query.model], method, prompt, query.settings))
            found[method.name] = own
        return found


def served_method(name: str) -> Method:
    """A method by name; never a file. Those are refused that need files, train first, or remember other images."""
    if len(name) > 200:
        raise OtptError(f"The name of a method has {len(name)} characters; expected one of GET /v1/methods.")
    method = compose(name)
    refuse_trained([method])
    if method.scope == STREAM:
        raise OtptError(
            f"Method {name!r} depends on the images before, which here are those of other clients; run it with 'otpt "
            "evaluate', or take a method of GET /v1/methods."
        )
    if method.init in (*LEARNED, *FPP, ATTRIBUTES) or not kind_of(method).needs_features:
        raise OtptError(
            f"Method {name!r} needs files or training of its own, which requests cannot bring; take a method of GET "
            "/v1/methods."
        )
    return method


def _check_count(what: str, count: int, most: int) -> None:
    if count > most:
        raise RequestError(
            422, f"too-many-{what}", f"{count:,} {what} were given.", f"{most:,} at most", f"Ask for fewer {what}."
        )


def _check_length(what: str, text: str, most: int) -> None:
    if len(text) > most:
        raise RequestError(
            422,
            f"{what}-too-long",
            f"A {what} has {len(text):,} characters: {text[:40]!r}….",
            f"{most} characters at most",
            f"Shorten the {what}.",
        )
