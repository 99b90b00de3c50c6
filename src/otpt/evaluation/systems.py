"""Systems that extend an evaluation: variants of data sets, checks, and their own models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from otpt.data import Dataset
from otpt.files import Json
from otpt.methods import Method, System


class EvaluationSystem(System):
    """System with its own part in evaluations; the base class adds nothing to :class:`otpt.methods.System`."""

    def check_evaluation(self, seeds: Sequence[int], methods: Sequence[Method]) -> None:
        """Raise ``OtptError`` if the methods do not support the seeds of an evaluation."""

    def variants(self, dataset: Dataset, methods: Sequence[Method]) -> Sequence[Dataset]:
        """Return the variants of the data set to evaluate, such as one per target class.

        The settings of the system on a variant are :attr:`Dataset.system`.
        """
        return [dataset]

    def settings_on(self, dataset: Dataset) -> Mapping[str, Json]:
        """Return settings of the system that depend on the data set, such as a published prompt."""
        return {}
