"""The hook by which plugin methods extend an evaluation.

A separate module, because plugins derive from it while ``otpt.methods`` is still being imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otpt.data import Dataset
    from otpt.methods.method import Method
    from otpt.settings import Settings


class EvaluationHook:
    """Extends an evaluation for one kind of methods; by default it adds nothing.

    ``settings`` are an :class:`otpt.evaluation.EvaluationSettings`.
    """

    def check(self, settings: Any, methods: Sequence[Method]) -> None:
        """Raise ``OtptError`` for settings that the methods cannot use."""

    def variants(self, settings: Any, dataset: Dataset, methods: Sequence[Method]) -> Sequence[Dataset]:
        """Return the forms in which the data set is evaluated, such as one per target class."""
        return [dataset]

    def plugins(self, settings: Any, dataset: Dataset) -> Mapping[str, Any]:
        """Return the entries to add to ``Settings.plugins`` for a data set."""
        return {}

    def facts(self, settings: Any) -> Mapping[str, Any]:
        """Return the facts that determine the rows, for ``config.json``."""
        return {}

    def prompt_facts(self, settings: Settings, method: Method) -> Mapping[str, Any]:
        """Return the facts recorded in place of a prompt in ``config.json``."""
        return {}

    def learned_from(self, settings: Any) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield (name of a trained component, keys of its training images)."""
        return iter(())
