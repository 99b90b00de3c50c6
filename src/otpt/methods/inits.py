"""Inits: initial prompts and text features, prepared once per class list.

This module registers inits from words and templates; :mod:`otpt.methods.coop`, :mod:`otpt.methods.maple` and
:mod:`otpt.methods.fpp` register further ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from otpt.backbones import Backbone, is_backbone
from otpt.calibration import fixed_temperature
from otpt.errors import OtptError
from otpt.features.cache import FeatureCache
from otpt.methods.attributes import names_with_attributes
from otpt.methods.finish import Output
from otpt.methods.method import INITS, Kind, Method, Methods, kind_of, recipe_for
from otpt.methods.path import Batch, PromptGroup
from otpt.methods.state import PromptState, prompt_state
from otpt.prompts import (
    DEFAULT_PROMPTS,
    FixedTexts,
    Prompt,
    Templates,
    TextFeatures,
    dataset_templates,
    published_templates,
    tokenize_prompts,
)
from otpt.prompts.learned import CocoopContext, CoopContext, MaplePrompts, fingerprint
from otpt.prompts.tokens import check_lengths, whole_context
from otpt.registry import number_for
from otpt.settings import Settings

_Learned = TypeVar("_Learned", CoopContext, CocoopContext, MaplePrompts)

Column = tuple[str, str]
"""(prompt, method) names of a column of the results."""


class Group(Protocol):
    """Prepared methods that share an initial prompt; ``prompt`` is its name in the results."""

    prompt: str
    methods: Methods

    def outputs(self, batch: Batch) -> list[list[Output]]:
        """Return the outputs of all images, method by method."""


def prompts_of(settings: Settings, method: Method) -> Sequence[Prompt | str]:
    """Return the word prompts that a method starts from, or the name of another init."""
    names = kind_of(method).names or INITS[method.init].names
    return [method.init] if names is None else names(settings, method)


def columns(settings: Settings, methods: Sequence[Method]) -> tuple[Column, ...]:
    """Return (prompt, method) of each output of an image.

    The first prompt of every method comes first, then the second prompt of every method, and so on.
    """
    prompts = {
        method.name: [each if isinstance(each, str) else each.name for each in prompts_of(settings, method)]
        for method in methods
    }
    most = max(len(each) for each in prompts.values())
    return tuple((each[i], name) for i in range(most) for name, each in prompts.items() if i < len(each))


# ---- preparing methods ----------------------------------------------------------------------------------------------


def check_fit(
    backbone: Any, settings: Settings, methods: Sequence[Method], *, texts: bool = True, trained: bool = True
) -> None:
    """Raise an :class:`OtptError` early if methods or prompts do not fit the backbone.

    Checks of class names are skipped if there are none, and tokenisation without ``texts``. Without ``trained``,
    methods with their own network or with a first pass over the set are rejected.
    """
    if not methods:
        raise OtptError("No methods were given; expected at least one.")
    for method in methods:
        kind = kind_of(method)
        if not trained and (kind.trained or method.sees_all_first):
            why = "predicts with a network trained for it" if kind.trained else "sees all images of a set first"
            raise OtptError(f"Method {method.name!r} {why}; run it with 'otpt evaluate' or otpt.evaluation.evaluate.")
        if is_backbone(backbone) != kind.needs_text_tower:
            needed = "a CLIP-like model with a text tower" if kind.needs_text_tower else "an image-only model"
            raise OtptError(f"Method {method.name!r} needs {needed}; choose one instead of {backbone.name!r}.")
        recipe_for(settings, method)
        if method.calibrate == "temperature" and method.temperature is None:
            fixed_temperature(backbone.family)
        if settings.texts is not None and settings.classes:
            _check_texts(backbone, settings, settings.texts, method)
    if settings.classes and texts:
        for kind, own in by_kind(methods).items():
            kind.check(backbone, settings, own)


def by_kind(methods: Sequence[Method]) -> dict[Kind, Methods]:
    """Group the methods by how they are prepared, in their order."""
    found: dict[Kind, Methods] = {}
    for method in methods:
        found[kind_of(method)] = (*found.get(kind_of(method), ()), method)
    return found


def refuse_views(
    methods: Sequence[Method], origin: str, views: int = 1, family: str = "fine-grained", dataset: str = ""
) -> None:
    """Raise an :class:`OtptError` for a method that needs more than the features of ``views``."""
    for method in methods:
        kind = kind_of(method)
        if kind.needs_image(method) or not kind.needs_features:
            raise OtptError(f"Method {method.name!r} needs pixels of images, but {origin!r} contains only features.")
        if views == 1 and method.needs_views(family, dataset):
            raise OtptError(
                f"Method {method.name!r} needs several views per image, but {origin!r} has one feature per image; pass "
                "images or features of all views, or choose a single-view method such as 'zero-shot' or 'tda'."
            )


def _check_texts(backbone: Backbone, settings: Settings, texts: FixedTexts, method: Method) -> None:
    """Raise an :class:`OtptError` if a method cannot use fixed texts instead of a prompt."""
    own_templates = isinstance(texts, Templates)
    if own_templates and method.init == "templates":
        return
    what = "templates" if own_templates else texts.name
    if method.needs_context or not kind_of(method).needs_features:
        raise OtptError(
            f"Method {method.name!r} tunes a context, but the classes were set with {what}, which have none; use a "
            "prompt of words, or a method that tunes no context, such as 'zero-shot'."
        )
    if method.init != "words":
        raise OtptError(
            f"Method {method.name!r} starts from {method.init!r}, which conflicts with classes set with {what}; remove "
            "one of them."
        )
    if isinstance(texts, TextFeatures) and texts.features.shape != (len(settings.classes), backbone.embed_dim):
        raise OtptError(
            f"The text features have shape {tuple(texts.features.shape)}; expected "
            f"{(len(settings.classes), backbone.embed_dim)}, one row per class from the same model."
        )


def text_state(
    backbone: Backbone, settings: Settings, prompt: Prompt | FixedTexts, methods: Methods, **more: Any
) -> PromptState:
    """Prepare the text features of the settings' classes from a prompt or from fixed texts."""
    if settings.all_tokens and isinstance(prompt, Prompt):
        prompt = whole_context(backbone.text, prompt)
    return prompt_state(
        backbone,
        settings.classes,
        prompt,
        memory_budget=settings.memory_budget,
        tunes=any(method.tunes for method in methods),
        **more,
    )


def text_group(
    name: str, backbone: Backbone, settings: Settings, prompt: Prompt | FixedTexts, methods: Methods, **more: Any
) -> PromptGroup:
    """Prepare methods that share text features; see :func:`text_state`."""
    return PromptGroup(name, methods, backbone, text_state(backbone, settings, prompt, methods, **more), settings)


def learned_prompt(settings: Settings, kind: type[_Learned], methods: Sequence[Method]) -> _Learned:
    """Return the learned prompt of a kind, or raise an :class:`OtptError` if it is missing."""
    found = settings.learned.get(kind.kind)
    if not isinstance(found, kind):
        name = next(method.name for method in methods if method.init == kind.kind)
        raise OtptError(
            f"Method {name!r} needs a learned prompt of kind {kind.kind!r}; pass its file with --context (in Python "
            f"contexts=[…]), or train one with 'otpt train'."
        )
    return found


def learned_facts(settings: Settings, method: Method) -> dict[str, Any]:
    return {"fingerprint": fingerprint(settings.learned[method.init])}


# ---- words, and words with attributes -------------------------------------------------------------------------------


def _word_names(settings: Settings, method: Method) -> Sequence[Prompt | str]:
    own = settings.plugins.get(method.adapt, {}).get("prompt")
    if own is not None:
        return [own]
    return settings.prompts or DEFAULT_PROMPTS if settings.texts is None else [settings.texts.name]


def _words(backbone: Backbone, settings: Settings, methods: Methods, cache: FeatureCache | None) -> list[PromptGroup]:
    prompts = settings.prompts or DEFAULT_PROMPTS
    starts: Sequence[Prompt | FixedTexts] = prompts if settings.texts is None else (settings.texts,)
    attributes = settings.class_attributes if methods[0].init == "attributes" else None
    return [text_group(each.name, backbone, settings, each, methods, attributes=attributes) for each in starts]


def _check_words(backbone: Backbone, settings: Settings, methods: Methods) -> None:
    if isinstance(settings.texts, Templates):
        check_lengths(backbone.text, settings.texts.texts(settings.classes))
    elif settings.texts is None:
        names = settings.classes
        if methods[0].init == "attributes":
            names = names_with_attributes(names, settings.class_attributes)
        for prompt in settings.prompts or DEFAULT_PROMPTS:
            tokenize_prompts(
                backbone.text, names, whole_context(backbone.text, prompt) if settings.all_tokens else prompt
            )


def _attribute_facts(settings: Settings, method: Method) -> dict[str, Any]:
    names = names_with_attributes(settings.classes, settings.class_attributes)
    return {"attributes": hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()[:32]}


_WORDS = Kind(_words, _check_words, names=_word_names, from_words=True)
INITS["words"] = replace(_WORDS, served=True)
INITS["attributes"] = replace(_WORDS, facts=_attribute_facts, uses="attributes", one_text=False)


# ---- templates: text features averaged over sentences, no context to tune -------------------------------------------


def templates_of(settings: Settings, method: Method) -> Templates:
    """Return the templates of a method."""
    if method.init == "dataset-templates":
        return dataset_templates(settings.dataset)
    if method.init != "templates":
        return published_templates(method.init)
    if settings.templates is None:
        raise OtptError(
            f"Method {method.name!r} needs custom templates, but none were given; pass them as "
            "--templates 'a photo of a {}.' …, in Python templates=['a photo of a {}.', …]."
        )
    return settings.templates


def _templates(
    backbone: Backbone, settings: Settings, methods: Methods, cache: FeatureCache | None
) -> list[PromptGroup]:
    templates = templates_of(settings, methods[0])
    return [text_group(templates.name, backbone, settings, templates, methods)]


def _check_templates(backbone: Backbone, settings: Settings, methods: Methods) -> None:
    check_lengths(backbone.text, templates_of(settings, methods[0]).texts(settings.classes))


for _name in ("templates-7", "templates-80", "dataset-templates", "templates"):
    INITS[_name] = Kind(
        _templates,
        _check_templates,
        names=lambda settings, method: [templates_of(settings, method).name],
        facts=lambda settings, method: {"templates": templates_of(settings, method).digest},
        uses="templates" if _name == "templates" else "",
        tunable=False,
        served=True,
    )


# ---- facts: plain data that determine the predictions of a method ---------------------------------------------------


def prompt_facts(name: str, method: Method, settings: Settings) -> dict[str, Any]:
    """Describe the prompt called ``name``, or the init that replaces it, as plain data."""
    kind = kind_of(method)
    found = {"name": name, **kind.facts(settings, method), **kind.evaluation.prompt_facts(settings, method)}
    if isinstance(settings.texts, TextFeatures):
        numbers = settings.texts.features.cpu().numpy().tobytes()
        found["features"] = hashlib.sha256(numbers).hexdigest()[:32]
    for given in prompts_of(settings, method):
        if isinstance(given, Prompt) and given.name == name:
            tokens = "all" if settings.all_tokens and given.tokens is None else given.tokens
            found |= {"words": given.words, "tokens": tokens, "vectors": given.digest}
    return found


def method_numbers(method: Method) -> dict[str, Any]:
    """Return the fields that determine a method's predictions, with source digests of custom functions."""
    unused = {name for kind in INITS.values() for name in kind.options} - set(INITS[method.init].options)
    words = {"name", "summary", "source", "caution"} | unused
    values = {key: getattr(method, key) for key in method.__dataclass_fields__ if key not in words}
    own = {each.name: each.digest for each in method.functions if each.digest}
    values["settings"] = {**method.defaults, **method.settings}
    return plain({**values, **({"own_functions": own} if own else {})})


def plain(value: Any) -> Any:
    """Convert tuples to lists and mappings to dictionaries, as a JSON round trip does."""
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if hasattr(value, "items"):
        return {key: plain(each) for key, each in value.items()}
    return value


def calibration_facts(backbone: Any, method: Method, prompt: str, settings: Settings) -> dict[str, Any]:
    """Return the facts of a column that a calibration applies to; see :class:`otpt.calibration.Calibration`."""
    recipe = recipe_for(settings, method)
    return column_facts(
        {"name": backbone.name, "fingerprint": backbone.fingerprint},
        {"name": method.name, "numbers": numbers_on(method_numbers(method), *settings.place)},
        settings.classes,
        prompt_facts(prompt, method, settings),
        None if recipe is None else recipe.key,
        settings.official_precision,
    )


def column_facts(
    model: Mapping[str, Any],
    method: Mapping[str, Any],
    classes: Any,
    prompt: Mapping[str, Any],
    views: str | None,
    official_precision: bool,
) -> dict[str, Any]:
    """Return :func:`calibration_facts` from the config of a run; the recipe of a single view is ignored."""
    return {
        "model": dict(model),
        "method": dict(method),
        "classes": list(classes),
        "prompt": dict(prompt),
        "views": None if views is None or " n=1 " in views else views,
        "official_precision": official_precision,
    }


def numbers_on(numbers: Mapping[str, Any], family: str, dataset: str) -> dict[str, Any]:
    """Resolve the numbers of a method that depend on the family or the data set."""
    found = {**numbers, "learning_rate": number_for(numbers["learning_rate"], family, dataset)}
    for key in ("objectives", "settings"):
        found[key] = {name: number_for(value, family, dataset) for name, value in numbers[key].items()}
    return found
