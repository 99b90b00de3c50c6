"""Systems that extend an evaluation: checks, variants of data sets, settings by data set, and their own models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from otpt.backbones import Backbone
from otpt.data import Dataset
from otpt.files import Json
from otpt.methods import Method, System
from otpt.prompts import Prompt


class EvaluationSystem(System):
    """System with its own part in evaluations; the base class adds nothing to :class:`otpt.methods.System`.

    An evaluation asks one instance of each system, and hands it all methods of that system. Their inputs may differ;
    ``otpt.methods.preparer_of(method)`` returns the instance with the inputs of a method.
    """

    def load_model(self, spec: str | None, device: str, precision: str) -> Backbone | None:
        """Load the model that the system runs on, or return None for an ordinary backbone.

        Args:
            spec: name, file or folder of the model; None for the default of the system.
            device: "auto", "cpu", "cuda", "cuda:1" or "mps".
            precision: "float32" or another precision of :func:`otpt.load_backbone`.
        """
        return None

    def check_evaluation(self, seeds: Sequence[int], methods: Sequence[Method]) -> None:
        """Raise ``OtptError`` if the methods do not support the seeds or their settings in an evaluation."""

    def variants(self, dataset: Dataset, methods: Sequence[Method]) -> Sequence[Dataset]:
        """Return the variants of the data set to evaluate, such as one per target class.

        The settings of the system on a variant are :attr:`Dataset.system`.
        """
        return [dataset]

    def settings_on(self, dataset: Dataset, prompts: Sequence[Prompt] | None) -> Mapping[str, Json]:
        """Return settings of the system that depend on the data set, such as a published prompt.

        Args:
            dataset: data set, or one of its variants.
            prompts: prompts of the evaluation; None for the data set's own.
        """
        return {}
