"""What methods start from, and how that is prepared once per class list: prompts, views, text features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from otpt.backbones import Backbone
from otpt.calibration import BaseTexts, fixed_temperature
from otpt.errors import OtptError
from otpt.features.cache import FeatureCache
from otpt.methods.attributes import names_with_attributes
from otpt.methods.fpp import check_names, fpp_prompt
from otpt.methods.kinds import KINDS, Group, Kind, Methods, kind_name, kind_of
from otpt.methods.maple import MapleState, prompted_tower
from otpt.methods.method import Method
from otpt.methods.path import PromptGroup
from otpt.methods.prompt_tuning.state import ConditionalState, PromptState, prompt_state
from otpt.prompts import (
    FixedTexts,
    Prompt,
    Templates,
    TextFeatures,
    dataset_templates,
    published_templates,
    tokenize_prompts,
)
from otpt.prompts.learned import CocoopContext, CoopContext, LearnedPrompt, MaplePrompts
from otpt.prompts.tokens import check_lengths, whole_context
from otpt.registry import ATTRIBUTES, FPP, STREAM, TEMPLATES
from otpt.settings import Settings
from otpt.views import ViewRecipe

Column = tuple[str, str]
"""(prompt, method) of a row of the results."""


def prompts_of(settings: Settings, method: Method) -> Sequence[Prompt | str]:
    """What a method starts from: prompts of words, or the name of something else."""
    kind = kind_of(method)
    if kind.prompt is not None:
        return [kind.prompt]
    if method.init in TEMPLATES:
        return [templates_of(settings, method).name]
    if not method.starts_from_words:
        return [method.init]
    own = settings.plugins.get(method.adapt, {}).get("prompt")
    if own is not None:
        return [own]
    return word_prompts(settings) if settings.texts is None else [settings.texts.name]


def word_prompts(settings: Settings) -> tuple[Prompt, ...]:
    """The prompts of words."""
    return settings.prompts or (Prompt(),)


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


def prompt_name(prompt: Prompt | str) -> str:
    """What a prompt is called in the results."""
    return prompt if isinstance(prompt, str) else prompt.name


def columns(settings: Settings, methods: Sequence[Method]) -> tuple[Column, ...]:
    """(prompt, method) of the outputs of an image, in their order.

    The first prompt of each method, in the order of the methods; then further prompts, one after the other.
    """
    prompts = {method.name: [prompt_name(each) for each in prompts_of(settings, method)] for method in methods}
    most = max(len(each) for each in prompts.values())
    return tuple((each[i], name) for i in range(most) for name, each in prompts.items() if i < len(each))


def recipe_for(settings: Settings, method: Method) -> ViewRecipe | None:
    """The views that a method needs; None for one that takes the image itself."""
    kind, recipe, place = kind_of(method), settings.recipe, (settings.family or "fine-grained", settings.dataset)
    if not kind.needs_features and kind_name(method) == method.adapt:
        return None
    augmix = next((each for each in (settings.augmix, method.augmix) if each is not None), recipe.augmix)
    views = recipe.n_views if method.views is None else method.views
    if method.needs_all_views(*place) and views == 1:
        raise OtptError(
            f"Method {method.name!r} needs several views of an image, but the settings have one; give a larger number "
            "of views."
        )
    if not method.needs_views(*place):
        return replace(recipe.of(1), augmix=augmix)
    # methods that take pixels, or remember the images before, always see all views
    in_rounds = not kind.needs_image(method) and method.scope != STREAM
    rounds = tuple(each for each in recipe.rounds if in_rounds and each < views)
    return replace(recipe, augmix=augmix, n_views=views, rounds=rounds)


def needs_images(methods: Sequence[Method]) -> bool:
    """Whether some method takes the image itself, besides or instead of its features."""
    return any(kind_of(method).needs_image(method) for method in methods)


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
        largest = max(recipe, other, key=lambda each: each.n_views)
        same = recipe == other or min(recipe.n_views, other.n_views) == 1
        found[recipe.kind] = largest if same else largest.of(largest.n_views)
    return tuple(found.values())


def check_fit(backbone: Any, settings: Settings, methods: Sequence[Method]) -> None:
    """Raise an :class:`OtptError`, before anything is computed, if methods or prompts do not fit the backbone.

    Without class names only what does not depend on them is checked.
    """
    for method in methods:
        kind = kind_of(method)
        if isinstance(backbone, Backbone) != kind.needs_text_tower:
            needed = "a text tower, that is a CLIP-like model" if kind.needs_text_tower else "a model without texts"
            raise OtptError(f"Method {method.name!r} needs {needed}; the model {backbone.name!r} is not of that kind.")
        recipe_for(settings, method)
        if method.calibrate == "temperature" and method.temperature is None:
            fixed_temperature(backbone.family)
        if settings.classes:
            _check_texts(backbone, settings, method)
    if settings.classes:
        for name, own in _by_kind(methods).items():
            KINDS[name].check(backbone, settings, own)


def make_groups(
    backbone: Any, settings: Settings, methods: Sequence[Method], *, cache: FeatureCache | None = None
) -> list[Group]:
    """Prepare the methods by their initial prompt; contexts that take long to make may be cached."""
    return [
        group for name, own in _by_kind(methods).items() for group in KINDS[name].make(backbone, settings, own, cache)
    ]


def refuse_trained(methods: Sequence[Method]) -> None:
    """Raise an :class:`OtptError` for methods with a network of their own, which only an evaluation reads."""
    for method in methods:
        if kind_of(method).trained:
            raise OtptError(
                f"Method {method.name!r} predicts with a network that was trained for it; run it with 'otpt evaluate', "
                "in Python with otpt.evaluation.evaluate."
            )


def _by_kind(methods: Sequence[Method]) -> dict[str, Methods]:
    names = dict.fromkeys(kind_name(method) for method in methods)
    return {name: tuple(method for method in methods if kind_name(method) == name) for name in names}


def _check_texts(backbone: Any, settings: Settings, method: Method) -> None:
    """Raise an :class:`OtptError` if a method cannot start from texts that replace the prompt."""
    texts = settings.texts
    if texts is None or (method.init == "templates" and isinstance(texts, Templates)):
        return
    what = "templates" if isinstance(texts, Templates) else texts.name
    if method.tunes or not kind_of(method).needs_features:
        raise OtptError(
            f"Method {method.name!r} tunes the words of a context, but the classes were set with {what}, which leave "
            "none; set them with a prompt of words, or take a method that tunes no context, such as 'zero-shot'."
        )
    if method.init != "words":
        raise OtptError(
            f"Method {method.name!r} starts from {method.init!r}, but the classes were set with {what}; leave one of "
            "them out."
        )
    if isinstance(texts, TextFeatures):
        rows, width = texts.features.shape
        if rows != len(settings.classes):
            remedy = "transpose them" if width == len(settings.classes) else "expected one row per class"
            raise OtptError(f"There are text features of {rows} classes, but {len(settings.classes)} names; {remedy}.")
        if width != backbone.embed_dim:
            raise OtptError(
                f"The text features have {width} dimensions; those of this model have {backbone.embed_dim}. Compute "
                "them with the same model."
            )


def text_state(
    backbone: Backbone, settings: Settings, prompt: Prompt | FixedTexts, methods: Methods, **more: Any
) -> PromptState:
    """The state of the settings' classes under a prompt, or under texts that replace one."""
    return prompt_state(
        backbone,
        settings.classes,
        tunable(backbone, settings, prompt) if isinstance(prompt, Prompt) else prompt,
        allow_duplicates=settings.allow_duplicates,
        memory_budget=settings.memory_budget,
        tunes=any(method.tunes for method in methods),
        **more,
    )


def tunable(backbone: Backbone, settings: Settings, prompt: Prompt) -> Prompt:
    """The prompt; with ``all_tokens`` all tokens of its context are tuned, also where words are several tokens."""
    return whole_context(backbone.text, prompt) if settings.all_tokens else prompt


def learned_prompt(settings: Settings, kind: str, methods: Sequence[Method]) -> LearnedPrompt:
    """The learned prompt of a kind; an error that names the method which starts from it if there is none."""
    if kind not in settings.learned:
        name = next(method.name for method in methods if method.init == kind)
        raise OtptError(
            f"Method {name!r} starts from a learned prompt of the kind {kind!r}; give its file with --context (in "
            f"Python contexts=[…]), or make one with 'otpt train'."
        )
    return settings.learned[kind]


def _group(
    prompt: str,
    methods: Methods,
    backbone: Backbone,
    state: PromptState,
    settings: Settings,
    base_texts: BaseTexts | None = None,
) -> PromptGroup:
    recipes = [recipe_for(settings, method) for method in methods]
    found = [recipe for recipe in recipes if recipe is not None]
    return PromptGroup(prompt, methods, state, settings, found, tower=backbone.family, base_texts=base_texts)


def _check_tokens(backbone: Backbone, settings: Settings, prompts: Sequence[Prompt]) -> None:
    for prompt in prompts:
        tokenize_prompts(backbone.text, settings.classes, tunable(backbone, settings, prompt))


def _words(backbone: Backbone, settings: Settings, methods: Methods, cache: FeatureCache | None) -> list[Group]:
    starts: Sequence[Prompt | FixedTexts] = word_prompts(settings) if settings.texts is None else (settings.texts,)
    return [
        _group(each.name, methods, backbone, text_state(backbone, settings, each, methods), settings) for each in starts
    ]


def _check_words(backbone: Backbone, settings: Settings, methods: Methods) -> None:
    if isinstance(settings.texts, Templates):
        check_lengths(backbone.text, settings.texts.texts(settings.classes))
    elif settings.texts is None:
        _check_tokens(backbone, settings, word_prompts(settings))


def _attributes(backbone: Backbone, settings: Settings, methods: Methods, cache: FeatureCache | None) -> list[Group]:
    return [
        _group(
            prompt.name,
            methods,
            backbone,
            text_state(backbone, settings, prompt, methods, attributes=settings.class_attributes),
            settings,
        )
        for prompt in word_prompts(settings)
    ]


def _check_attributes(backbone: Backbone, settings: Settings, methods: Methods) -> None:
    names = names_with_attributes(settings.classes, settings.class_attributes)
    for prompt in word_prompts(settings):
        tokenize_prompts(backbone.text, names, tunable(backbone, settings, prompt))


def _templates(backbone: Backbone, settings: Settings, methods: Methods, cache: FeatureCache | None) -> list[Group]:
    templates = templates_of(settings, methods[0])
    return [_group(templates.name, methods, backbone, text_state(backbone, settings, templates, methods), settings)]


def _check_templates(backbone: Backbone, settings: Settings, methods: Methods) -> None:
    check_lengths(backbone.text, templates_of(settings, methods[0]).texts(settings.classes))


def coop_context(settings: Settings, methods: Sequence[Method]) -> CoopContext:
    """The context of CoOp that the methods start from."""
    learned = learned_prompt(settings, "coop", methods)
    assert isinstance(learned, CoopContext)
    return learned


def _coop(backbone: Backbone, settings: Settings, methods: Methods, cache: FeatureCache | None) -> list[Group]:
    learned = coop_context(settings, methods)
    base, texts = _base_classes(learned, methods), None
    if base is not None:
        places = (settings, settings.replace(classes=base))
        prompts = (word_prompts(settings)[0], learned.prompt())
        found = [text_state(backbone, place, prompt, ()) for place in places for prompt in prompts]
        texts = BaseTexts(*(each.text_features.cpu() for each in found))
    state = text_state(backbone, settings, learned.prompt(), methods)
    return [_group("coop", methods, backbone, state, settings, texts)]


def _check_coop(backbone: Backbone, settings: Settings, methods: Methods) -> None:
    learned = coop_context(settings, methods)
    _base_classes(learned, methods)
    tokenize_prompts(backbone.text, settings.classes, learned.prompt())


def _base_classes(learned: CoopContext, methods: Sequence[Method]) -> tuple[str, ...] | None:
    """The classes that a context was learned on, if a method asks for them."""
    asks = next((method.name for method in methods if method.calibrate == "dac-base"), None)
    if asks is None:
        return None
    if learned.class_names is None:
        raise OtptError(
            f"Method {asks!r} needs the classes that the context was learned on, but its file does not name them; make "
            "one with 'otpt train coop', or in Python give CoopContext(vectors, class_names)."
        )
    return learned.class_names


def _cocoop_context(settings: Settings, methods: Methods) -> CocoopContext:
    learned = learned_prompt(settings, "cocoop", methods)
    assert isinstance(learned, CocoopContext)
    return learned


def _cocoop(backbone: Backbone, settings: Settings, methods: Methods, cache: FeatureCache | None) -> list[Group]:
    learned = _cocoop_context(settings, methods)
    found: list[Group] = []
    for condition in dict.fromkeys(method.condition for method in methods):
        own = tuple(method for method in methods if method.condition == condition)
        state = text_state(
            backbone,
            settings,
            learned.prompt(),
            (),  # each image has a context of its own, so no graph is shared
            kind=ConditionalState,
            context=learned,
            model=backbone,
            raw=condition == "raw",
        )
        found.append(_group("cocoop", own, backbone, state, settings))
    return found


def _check_cocoop(backbone: Backbone, settings: Settings, methods: Methods) -> None:
    learned = _cocoop_context(settings, methods)
    learned.check_fits(backbone.embed_dim)
    tokenize_prompts(backbone.text, settings.classes, learned.prompt())


def _maple_prompts(settings: Settings, methods: Methods) -> MaplePrompts:
    learned = learned_prompt(settings, "maple", methods)
    assert isinstance(learned, MaplePrompts)
    return learned


def _maple(backbone: Backbone, settings: Settings, methods: Methods, cache: FeatureCache | None) -> list[Group]:
    place = (settings.family or "fine-grained", settings.dataset)
    selected = 0
    for method in methods:
        config, recipe = method.tuning(*place), recipe_for(settings, method)
        if method.tunes and config is not None and recipe is not None:
            selected = max(selected, config.selected_count(recipe.n_views))
    state = MapleState(
        backbone,
        settings.classes,
        _maple_prompts(settings, methods),
        allow_duplicates=settings.allow_duplicates,
        memory_budget=settings.memory_budget,
        tunes=any(method.tunes for method in methods),
        selected=selected,
    )
    return [_group("maple", methods, backbone, state, settings)]


def _check_maple(backbone: Backbone, settings: Settings, methods: Methods) -> None:
    prompted_tower(backbone, _maple_prompts(settings, methods))


def _fpp(backbone: Backbone, settings: Settings, methods: Methods, cache: FeatureCache | None) -> list[Group]:
    init = methods[0].init
    prompt = fpp_prompt(backbone, settings, from_words=init == "fpp-words", cache=cache)
    return [_group(init, methods, backbone, text_state(backbone, settings, prompt, methods), settings)]


def _check_fpp(backbone: Backbone, settings: Settings, methods: Methods) -> None:
    check_names(backbone, settings.classes, settings.fpp, from_words=methods[0].init == "fpp-words")


def _is_raw(method: Method) -> bool:
    return method.condition == "raw"


KINDS |= {
    "words": Kind(_words, _check_words),
    ATTRIBUTES: Kind(_attributes, _check_attributes),
    "coop": Kind(_coop, _check_coop),
    "cocoop": Kind(_cocoop, _check_cocoop, needs_image=_is_raw),
    "maple": Kind(_maple, _check_maple, needs_image=lambda method: True, needs_features=False),
    **dict.fromkeys(TEMPLATES, Kind(_templates, _check_templates)),
    **dict.fromkeys(FPP, Kind(_fpp, _check_fpp)),
}
