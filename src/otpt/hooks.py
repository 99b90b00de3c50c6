"""Base class of the hooks with which plugin methods extend an evaluation.

Plugins import it while ``otpt.methods`` is being imported, so it is a separate module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otpt.data import Dataset
    from otpt.methods.method import Method
    from otpt.settings import Settings


class EvaluationHook:
    """Hook that extends an evaluation for one kind of methods; the base class adds nothing.

    ``settings`` is an :class:`otpt.evaluation.EvaluationSettings` unless annotated otherwise.
    """

    def check(self, settings: Any, methods: Sequence[Method]) -> None:
        """Raise ``OtptError`` if the methods do not support the settings."""

    def variants(self, settings: Any, dataset: Dataset, methods: Sequence[Method]) -> Sequence[Dataset]:
        """Return the variants of the data set to evaluate, such as one per target class."""
        return [dataset]

    def plugins(self, settings: Any, dataset: Dataset) -> Mapping[str, Any]:
        """Return entries to add to ``Settings.plugins`` for a data set."""
        return {}

    def facts(self, settings: Any) -> Mapping[str, Any]:
        """Return facts that determine the results, for ``config.json``."""
        return {}

    def prompt_facts(self, settings: Settings, method: Method) -> Mapping[str, Any]:
        """Return facts that replace the prompt in ``config.json``."""
        return {}

    def learned_from(self, settings: Any) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield (name of a trained component, keys of its training images)."""
        return iter(())
