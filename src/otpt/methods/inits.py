"""What methods start from, prepared once per class list: prompts, views, text features.

Here are the inits made of words and of templates; those of :mod:`otpt.methods.coop`, :mod:`otpt.methods.maple` and
:mod:`otpt.methods.fpp` register in the same way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from otpt.backbones import Backbone
from otpt.calibration import fixed_temperature
from otpt.errors import OtptError
from otpt.features.cache import FeatureCache
from otpt.methods.attributes import names_with_attributes
from otpt.methods.finish import Output
from otpt.methods.kinds import INITS, Kind, Methods, kind_of, recipe_for
from otpt.methods.method import Method
from otpt.methods.path import Batch, PromptGroup
from otpt.methods.prompt_tuning.state import PromptState, prompt_state
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
from otpt.settings import Settings

_Learned = TypeVar("_Learned", CoopContext, CocoopContext, MaplePrompts)

Column = tuple[str, str]
"""(prompt, method) of a row of the results."""


class Group(Protocol):
    """Methods that share an initial prompt, prepared for a class list.

    Attributes:
        prompt: its name in the results.
        methods: in their order.
    """

    prompt: str
    methods: Methods

    def outputs(self, batch: Batch) -> list[list[Output]]:
        """For each method the outputs of all images."""


# ---- prompts and views ----------------------------------------------------------------------------------------------


def prompts_of(settings: Settings, method: Method) -> Sequence[Prompt | str]:
    """What a method starts from: prompts of words, or the name of something else."""
    names = kind_of(method).names or INITS[method.init].names
    return [method.init] if names is None else names(settings, method)


def columns(settings: Settings, methods: Sequence[Method]) -> tuple[Column, ...]:
    """(prompt, method) of the outputs of an image, in their order.

    The first prompt of each method, in the order of the methods; then further prompts, one after the other.
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
    """Raise an :class:`OtptError`, before anything is computed, if methods or prompts do not fit the backbone.

    Without class names only what does not depend on them is checked; without ``texts`` nothing is tokenised; without
    ``trained`` methods with a network of their own, and those that see a whole set first, are refused.
    """
    if not methods:
        raise OtptError("No method was given; expected at least one.")
    for method in methods:
        kind = kind_of(method)
        if kind.trained and not trained:
            raise OtptError(
                f"Method {method.name!r} predicts with a network that was trained for it; run it with 'otpt evaluate', "
                "in Python with otpt.evaluation.evaluate."
            )
        if method.sees_all_first and not trained:
            raise OtptError(
                f"Method {method.name!r} sees all images of a set before it predicts the first; run it with 'otpt "
                "evaluate', in Python with otpt.evaluation.evaluate."
            )
        if isinstance(backbone, Backbone) != kind.needs_text_tower:
            needed = "a text tower, that is a CLIP-like model" if kind.needs_text_tower else "a model without texts"
            raise OtptError(f"Method {method.name!r} needs {needed}; the model {backbone.name!r} is not of that kind.")
        recipe_for(settings, method)
        if method.calibrate == "temperature" and method.temperature is None:
            fixed_temperature(backbone.family)
        if settings.texts is not None and settings.classes:
            _check_texts(backbone, settings, settings.texts, method)
    if settings.classes and texts:
        for kind, own in by_kind(methods).items():
            kind.check(backbone, settings, own)


def by_kind(methods: Sequence[Method]) -> dict[Kind, Methods]:
    """The methods by how they are prepared, in their order."""
    found: dict[Kind, Methods] = {}
    for method in methods:
        found[kind_of(method)] = (*found.get(kind_of(method), ()), method)
    return found


def refuse_views(
    methods: Sequence[Method], origin: str, views: int = 1, family: str = "fine-grained", dataset: str = ""
) -> None:
    """Raise an :class:`OtptError` that names a method which needs more of an image than features of ``views``."""
    for method in methods:
        kind = kind_of(method)
        if kind.needs_image(method) or not kind.needs_features:
            raise OtptError(f"Method {method.name!r} needs the pixels of images; {origin!r} has features alone.")
        if views == 1 and method.needs_views(family, dataset):
            raise OtptError(
                f"Method {method.name!r} needs several views of an image; {origin!r} has one feature per image. Give "
                "images or features of all views, or take a method of the clean view, such as 'zero-shot' or 'tda'."
            )


def _check_texts(backbone: Backbone, settings: Settings, texts: FixedTexts, method: Method) -> None:
    """Raise an :class:`OtptError` if a method cannot start from texts that replace the prompt."""
    own_templates = isinstance(texts, Templates)
    if own_templates and method.init == "templates":
        return
    what = "templates" if own_templates else texts.name
    if method.needs_context or not kind_of(method).needs_features:
        raise OtptError(
            f"Method {method.name!r} tunes the words of a context, but the classes were set with {what}, which leave "
            "none; set them with a prompt of words, or take a method that tunes no context, such as 'zero-shot'."
        )
    if method.init != "words":
        raise OtptError(
            f"Method {method.name!r} starts from {method.init!r}, but the classes were set with {what}; leave one of "
            "them out."
        )
    if isinstance(texts, TextFeatures) and texts.features.shape != (len(settings.classes), backbone.embed_dim):
        raise OtptError(
            f"The text features have the shape {tuple(texts.features.shape)}; expected "
            f"{(len(settings.classes), backbone.embed_dim)}, a row per class, computed with the same model."
        )


def text_state(
    backbone: Backbone, settings: Settings, prompt: Prompt | FixedTexts, methods: Methods, **more: Any
) -> PromptState:
    """The state of the settings' classes under a prompt, or under texts that replace one."""
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


def learned_prompt(settings: Settings, kind: type[_Learned], methods: Sequence[Method]) -> _Learned:
    """The learned prompt of a kind; an error that names the method which starts from it if there is none."""
    found = settings.learned.get(kind.kind)
    if not isinstance(found, kind):
        name = next(method.name for method in methods if method.init == kind.kind)
        raise OtptError(
            f"Method {name!r} starts from a learned prompt of the kind {kind.kind!r}; give its file with --context (in "
            f"Python contexts=[…]), or make one with 'otpt train'."
        )
    return found


def learned_facts(settings: Settings, method: Method) -> dict[str, Any]:
    """See :attr:`Kind.facts`."""
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
    states = [text_state(backbone, settings, each, methods, attributes=attributes) for each in starts]
    return [
        PromptGroup(each.name, methods, backbone, state, settings) for each, state in zip(starts, states, strict=True)
    ]


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


INITS["words"] = Kind(_words, _check_words, names=_word_names, from_words=True, served=True)
INITS["attributes"] = Kind(
    _words,
    _check_words,
    names=_word_names,
    facts=_attribute_facts,
    uses="attributes",
    from_words=True,
    one_text=False,
)


# ---- templates: text features averaged over sentences, no context to tune -------------------------------------------


def templates_of(settings: Settings, method: Method) -> Templates:
    """The templates of a method that starts from some."""
    if method.init == "dataset-templates":
        return dataset_templates(settings.dataset)
    if method.init != "templates":
        return published_templates(method.init)
    if settings.templates is None:
        raise OtptError(
            f"Method {method.name!r} starts from custom templates, but none were given; give some as "
            "--templates 'a photo of a {}.' …, in Python templates=['a photo of a {}.', …]."
        )
    return settings.templates


def _templates(
    backbone: Backbone, settings: Settings, methods: Methods, cache: FeatureCache | None
) -> list[PromptGroup]:
    templates = templates_of(settings, methods[0])
    state = text_state(backbone, settings, templates, methods)
    return [PromptGroup(templates.name, methods, backbone, state, settings)]


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
