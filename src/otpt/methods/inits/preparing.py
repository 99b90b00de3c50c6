"""From the inits of methods to their groups: text features are prepared, and what does not fit is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from otpt.backbones import Backbone
from otpt.errors import OtptError
from otpt.features.cache import FeatureCache
from otpt.methods.inits.attributes import names_with_attributes
from otpt.methods.inits.classes import check_texts
from otpt.methods.inits.initial_texts import (
    attribute_side,
    base_classes,
    base_texts,
    coop_context,
    learned_prompt,
    text_side,
    tunable,
)
from otpt.methods.method import Method
from otpt.methods.running.groups import ConditionalGroup, Group, TextGroup
from otpt.methods.task import ON_PIXELS, Task
from otpt.prompts import Prompt, Templates, check_class_names, tokenize_prompts
from otpt.prompts.learned import CocoopContext, MaplePrompts
from otpt.prompts.tokens import check_lengths
from otpt.registry import ATTRIBUTES, FPP, LEARNED, TEMPLATES

Methods = tuple[Method, ...]
_Maker = Callable[[Any, Task, Methods], list[Group]]


def make_groups(
    backbone: Any, task: Task, methods: Sequence[Method], *, cache: FeatureCache | None = None
) -> list[Group]:
    """The methods by their initial prompt; text features are computed here, contexts that take long may be cached."""
    found: list[Group] = []
    makers: dict[str, _Maker] = {**_MAKERS, **dict.fromkeys(FPP, partial(_fpp, cache=cache))}
    for kind in dict.fromkeys(_kind(method) for method in methods):
        own = tuple(method for method in methods if _kind(method) == kind)
        found += makers[kind](_checked(backbone, own), task, own)
    return found


def check_fit(backbone: Any, task: Task, methods: Sequence[Method], *, classes: bool = True) -> None:
    """An error now, before anything is computed, if methods, class names or prompts do not fit the backbone.

    Without ``classes`` there are no class names yet.
    """
    for method in methods:
        _checked(backbone, (method,))
        task.recipe_for(method)
        if method.calibrate == "temperature" and method.temperature is None:
            from otpt.calibration import fixed_temperature

            fixed_temperature(backbone.family)
    if not classes:
        return
    if own := [method for method in methods if method.adapt == "fpt"]:
        from otpt.methods.fpt.group import fpt_networks

        fpt_networks(backbone, task, own)
        return
    names = check_class_names(task.class_names, allow_duplicates=task.allow_duplicates)
    for method in methods:
        check_texts(backbone, task, method)
    if own := [method for method in methods if method.adapt == "baple"]:
        from otpt.methods.baple.group import baple_models

        baple_models(backbone, task, own)
    for method in methods:
        for prompt in task.prompts_of(method):
            if isinstance(prompt, Prompt):
                own_names = names_with_attributes(names, task.attributes) if method.init == ATTRIBUTES else names
                tokenize_prompts(backbone.text, own_names, tunable(backbone, task, prompt))
    if isinstance(task.texts, Templates):
        check_lengths(backbone.text, task.texts.texts(names))
    for method in methods:
        if method.init in TEMPLATES:
            check_lengths(backbone.text, task.templates_of(method).texts(names))
        elif method.init in FPP:
            from otpt.methods.fpp.pretraining import check_names

            check_names(backbone, names, task.fpp, from_words=method.init == "fpp-words")
    for kind in dict.fromkeys(method.init for method in methods if method.init in LEARNED):
        learned = learned_prompt(task, kind, methods)
        if isinstance(learned, MaplePrompts):
            from otpt.methods.maple.two_tower import prompted_tower

            prompted_tower(backbone, learned)
            continue
        if isinstance(learned, CocoopContext):
            learned.check_fits(backbone.embed_dim)
        else:
            base_classes(learned, methods)
        tokenize_prompts(backbone.text, names, learned.prompt())


def _kind(method: Method) -> str:
    return method.adapt if method.adapt in ON_PIXELS else method.init


def _checked(backbone: Any, methods: Methods) -> Any:
    is_clip = isinstance(backbone, Backbone)
    if is_clip == (methods[0].adapt == "fpt"):
        needed = "a text tower, that is a CLIP-like model" if not is_clip else "a frozen ViT in place of a CLIP"
        raise OtptError(f"Method {methods[0].name!r} needs {needed}; the model {backbone.name!r} is not of that kind.")
    return backbone


def _words(backbone: Backbone, task: Task, methods: Methods) -> list[Group]:
    starts = task.prompts if task.texts is None else (task.texts,)
    return [TextGroup(each.name, methods, backbone, text_side(backbone, task, each), task) for each in starts]


def _attributes(backbone: Backbone, task: Task, methods: Methods) -> list[Group]:
    return [
        TextGroup(prompt.name, methods, backbone, attribute_side(backbone, task, prompt), task)
        for prompt in task.prompts
    ]


def _coop(backbone: Backbone, task: Task, methods: Methods) -> list[Group]:
    learned = coop_context(task, methods)
    base = base_classes(learned, methods)
    texts = None if base is None else base_texts(backbone, task, learned, base)
    return [TextGroup("coop", methods, backbone, text_side(backbone, task, learned.prompt()), task, base_texts=texts)]


def _templates(backbone: Backbone, task: Task, methods: Methods) -> list[Group]:
    templates = task.templates_of(methods[0])
    return [TextGroup(templates.name, methods, backbone, text_side(backbone, task, templates), task)]


def _fpp(backbone: Backbone, task: Task, methods: Methods, *, cache: FeatureCache | None) -> list[Group]:
    from otpt.methods.fpp import fpp_prompt

    init = methods[0].init
    prompt = fpp_prompt(backbone, task, from_words=init == "fpp-words", cache=cache)
    return [TextGroup(init, methods, backbone, text_side(backbone, task, prompt), task)]


def _cocoop(backbone: Backbone, task: Task, methods: Methods) -> list[Group]:
    learned = learned_prompt(task, "cocoop", methods)
    assert isinstance(learned, CocoopContext)
    text = text_side(backbone, task, learned.prompt())
    return [
        ConditionalGroup(
            "cocoop",
            tuple(method for method in methods if method.condition == condition),
            backbone,
            text,
            task,
            context=learned,
            condition=condition,
        )
        for condition in dict.fromkeys(method.condition for method in methods)
    ]


def _maple(backbone: Backbone, task: Task, methods: Methods) -> list[Group]:
    from otpt.methods.maple.group import MapleGroup

    learned = learned_prompt(task, "maple", methods)
    assert isinstance(learned, MaplePrompts)
    return [MapleGroup(methods, backbone, learned, task)]


def _promptsmooth(backbone: Backbone, task: Task, methods: Methods) -> list[Group]:
    from otpt.methods.promptsmooth.group import PromptSmoothGroup

    words = tuple(method for method in methods if method.init == "words")
    prompts = task.prompts if task.noise_prompt is None else (task.noise_prompt,)
    found: list[Group] = [PromptSmoothGroup(each.name, words, backbone, each, task) for each in prompts if words]
    learned = tuple(method for method in methods if method.init == "coop")
    if learned:
        found.append(PromptSmoothGroup("coop", learned, backbone, coop_context(task, methods).prompt(), task))
    return found


def _baple(backbone: Backbone, task: Task, methods: Methods) -> list[Group]:
    from otpt.methods.baple.group import BapleGroup

    return [BapleGroup(methods, backbone, task)]


def _fpt(backbone: Any, task: Task, methods: Methods) -> list[Group]:
    from otpt.methods.fpt.group import FptGroup

    return [FptGroup(methods, backbone, task)]


_MAKERS: dict[str, _Maker] = {
    "words": _words,
    ATTRIBUTES: _attributes,
    "coop": _coop,
    "cocoop": _cocoop,
    "maple": _maple,
    "promptsmooth": _promptsmooth,
    "baple": _baple,
    "fpt": _fpt,
    **dict.fromkeys(TEMPLATES, _templates),
}
