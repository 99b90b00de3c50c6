"""Estimates of the work of a task before anything is computed.

The unit is a pass of one text through the text tower: 0.1 ms of the model "pocket" on one slow core, some milliseconds
of a ViT-B/16. Everything else is small next to the passes of texts and views, apart from settings that say how often
something is done (:class:`otpt.registry.Multiplies`). Estimates depend on the request alone, so that a limit means the
same on every machine.
"""

from __future__ import annotations

from otpt.methods.inits import TemplatesInit
from otpt.methods.method import Method
from otpt.methods.multi_label import grid_boxes
from otpt.methods.preparation import init_of
from otpt.methods.protocol import Protocol
from otpt.methods.task import Task
from otpt.prompts import Templates
from otpt.registry import Setting, number_for

NUMBERS_PER_PASS = 100_000
"""Numbers of logits or features that are read in about the time of one pass."""
VIEW = 20
"""Passes of a text that take as long as one view; between 15 and 30 with the towers of CLIP and "pocket"."""
_GRADIENT = 3
"""Passes of a text for one step: to the loss, back, and to the tuned features."""
_LARGEST = 10**18


def sentences(task: Task, protocol: Protocol) -> int:
    """Return the number of texts to encode: classes × templates, summed over the inits of the methods."""
    per_class: dict[str, int] = {}
    for method in protocol.methods:
        init = init_of(method)
        texts = init.sentences(task, protocol) if isinstance(init, TemplatesInit) else task.texts
        per_class[init.name] = len(texts.sentences) if isinstance(texts, Templates) else 1
    return len(task.classes) * sum(per_class.values())


def image_passes(task: Task, protocol: Protocol) -> int:
    """Return the estimated passes of one image: its views, and steps and rounds of each method.

    >>> task = Task(classes=["cat", "dog"])
    >>> [image_passes(task, Protocol(methods=[name], views=8)) for name in ("zero-shot", "tpt", "tpt[steps=10]")]
    [21, 167, 221]
    """
    views = sum(recipe.n_views for recipe in protocol.recipes_for(protocol.methods))
    if task.independent_labels:
        views += len(grid_boxes(1, 1))
    passes = VIEW * views + sum(_method_passes(method, len(task.classes), protocol) for method in protocol.methods)
    return min(passes, _LARGEST)


def _method_passes(method: Method, classes: int, protocol: Protocol) -> int:
    """Return the passes of a method for one image, the views apart."""
    recipe = protocol.recipe_for(method)
    views = 1 if recipe is None else recipe.n_views
    passes = 1
    if method.tunes:
        passes += _GRADIENT * classes * method.steps * (2 if method.two_step else 1)
    chosen = method.settings_for(*protocol.place)
    for function in method.functions:
        for setting in function.settings.values():
            value = chosen.get(setting.name, number_for(setting.default, *protocol.place))
            passes += _setting_passes(setting, value, classes, views)
    return passes


def _setting_passes(setting: Setting, value: object, classes: int, views: int) -> int:
    """Return the passes that a setting multiplies."""
    if setting.multiplies is None or not isinstance(value, (int, float)):
        return 0
    count = int(value)
    if setting.multiplies.work == "texts":
        return _GRADIENT * classes * count
    read = classes * (views if setting.multiplies.work == "logits" else 1)
    return count * (NUMBERS_PER_PASS + read) // NUMBERS_PER_PASS
