"""Plugins that ship with the package, and what any plugin can add to an evaluation.

Other entry points: the decorators of :mod:`otpt.registry`, ``otpt.methods.register_methods`` and ``register_kind``,
``otpt.backbones.register_source``, ``otpt.data.register_dataset``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otpt.data import Dataset
    from otpt.methods import Method
    from otpt.settings import Settings

BUILT_IN = {
    "backbones": ("otpt.medical.medclip",),
    "data": ("otpt.medical.data",),
    "methods": ("otpt.medical.baple", "otpt.medical.fpt", "otpt.medical.promptsmooth"),
    "commands": ("otpt.medical.options",),
}
"""Modules by what they register when they are imported. Those of "commands" are imported by the command line: each has
``COMMANDS``, {group: {command: ("module:function", help)}}, and ``Options``, options of an evaluation."""


def import_plugins(registry: str) -> list[ModuleType]:
    """Import the modules that add to a registry."""
    return [import_module(name) for name in BUILT_IN[registry]]


class EvaluationHook:
    """What methods of a kind add to an evaluation; by default nothing.

    ``settings`` are an :class:`otpt.evaluation.EvaluationSettings`.
    """

    def check(self, settings: Any, methods: Sequence[Method]) -> None:
        """Raise ``OtptError`` for settings that the methods cannot use."""

    def variants(self, settings: Any, dataset: Dataset, methods: Sequence[Method]) -> Sequence[Dataset]:
        """Return the forms in which the data set is evaluated, such as one per target class."""
        return [dataset]

    def plugins(self, settings: Any, dataset: Dataset) -> Mapping[str, Any]:
        """Return what to add to ``Settings.plugins`` for a data set."""
        return {}

    def facts(self, settings: Any) -> Mapping[str, Any]:
        """Return what decides the rows, for ``config.json``."""
        return {}

    def prompt_facts(self, settings: Settings, method: Method) -> Mapping[str, Any]:
        """Return what takes the place of a prompt, for ``config.json``."""
        return {}

    def learned_from(self, settings: Any) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield what was trained, and the keys of the images it was trained on."""
        return iter(())
