"""What decides a method's answers, as plain data: its numbers, its prompt, and what a calibration of it is for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from otpt.methods.inits import prompts_of
from otpt.methods.kinds import INITS, kind_of, recipe_for
from otpt.methods.method import Method
from otpt.prompts import Prompt, TextFeatures
from otpt.registry import number_for
from otpt.settings import Settings


def prompt_facts(name: str, method: Method, settings: Settings) -> dict[str, Any]:
    """The prompt that is called ``name``, or what takes its place."""
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
    """What a method computes, as plain data; of functions of the user's, digests of their source code."""
    unused = {name for kind in INITS.values() for name in kind.options} - set(INITS[method.init].options)
    words = {"name", "summary", "source", "caution"} | unused
    values = {key: getattr(method, key) for key in method.__dataclass_fields__ if key not in words}
    own = {each.name: each.digest for each in method.functions if each.digest}
    values["settings"] = {**method.defaults, **method.settings}
    return plain({**values, **({"own_functions": own} if own else {})})


def plain(value: Any) -> Any:
    """Tuples as lists and mappings as dictionaries, as JSON gives them back."""
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if hasattr(value, "items"):
        return {key: plain(each) for key, each in value.items()}
    return value


def calibration_facts(backbone: Any, method: Method, prompt: str, settings: Settings) -> dict[str, Any]:
    """What a calibration of a method under a prompt is for; see :class:`otpt.calibration.Calibration`."""
    recipe = recipe_for(settings, method)
    return column_facts(
        {"name": backbone.name, "fingerprint": backbone.fingerprint},
        {
            "name": method.name,
            "numbers": numbers_on(method_numbers(method), *settings.place),
        },
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
    """The same from what a run says of a column; the recipe of a single view, the clean one, does not matter."""
    several = None if views is None or " n=1 " in views else views
    return {
        "model": dict(model),
        "method": dict(method),
        "classes": list(classes),
        "prompt": dict(prompt),
        "views": several,
        "official_precision": official_precision,
    }


def numbers_on(numbers: Mapping[str, Any], family: str, dataset: str) -> dict[str, Any]:
    """The numbers of a method on one data set: of those by family or data set only the one that counts there."""

    def chosen(value: Any) -> Any:
        return number_for(value, family, dataset)

    by_name = {key: {k: chosen(v) for k, v in numbers[key].items()} for key in ("objectives", "settings")}
    return {**numbers, **by_name, "learning_rate": chosen(numbers["learning_rate"])}
