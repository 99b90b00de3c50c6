"""Work items → parts: the loop of an evaluation, in one process, without a word about files or other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter

import torch
from torch import Tensor

from otpt.backbones import Backbone
from otpt.classifier import Prediction
from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.evaluation.cache import FeatureCache
from otpt.evaluation.features import FeatureStream
from otpt.evaluation.judge import DatasetJudge, check_fit
from otpt.evaluation.parts import Part
from otpt.evaluation.rows import PartRows
from otpt.evaluation.run import WorkItem
from otpt.evaluation.settings import Model, Settings
from otpt.threads import available_threads, in_threads

_PICTURES_TOGETHER = 8  # on a GPU; as many contexts go through its text tower together


@dataclass(frozen=True)
class Judged:
    """A picture that is done, as progress is told: predictions by (prompt, method); none if it could not be read."""

    item: WorkItem
    label: int
    predictions: Sequence[Prediction]


def enter_answers(
    item: WorkItem,
    dataset: Dataset,
    batch: Sequence[tuple[int, object]],
    labels: Sequence[int],
    answers: Iterable[Sequence[Prediction]],
    rows: PartRows,
) -> Iterator[Judged]:
    """Enters a batch into the rows: answers in the order of the pictures that were read, reasons for the others.

    ``batch`` holds positions in the data set, each with an ``OtptError`` if that picture could not be read.
    """
    given = iter(answers)
    for (index, found), label in zip(batch, labels, strict=True):
        predictions: list[Prediction] = []
        if isinstance(found, OtptError):
            rows.add_unreadable(index, dataset.ids[index], label, str(found))
        else:
            predictions = list(next(given))
            rows.add(index, dataset.ids[index], label, predictions)
        yield Judged(item, label, predictions)


class Evaluator:
    """Judges pictures by all prompts and methods: each picture is decoded, augmented and encoded once.

    Args:
        cache: of image features and first gradients; None to compute everything.
        threads: that decode and augment (see :class:`FeatureStream`).
        on_picture: called after each picture.
    """

    def __init__(
        self,
        backbone: Backbone,
        datasets: Sequence[Dataset],
        settings: Settings,
        *,
        cache: FeatureCache | None = None,
        threads: int | None = None,
        on_picture: Callable[[Judged], None] | None = None,
    ) -> None:
        self._backbone = backbone
        self._datasets = datasets
        self._settings = settings
        self._cache = cache
        self._features = FeatureStream(backbone, datasets, settings, cache=cache, threads=threads)
        self._on_picture = on_picture
        self._prepared: tuple[int, DatasetJudge] | None = None

    def __call__(self, items: Iterable[WorkItem]) -> Iterator[tuple[WorkItem, Part]]:
        """Each item with its part, in the order of the items, which are read a few pictures ahead."""
        together = available_threads() if self._backbone.device.type == "cpu" else _PICTURES_TOGETHER
        for item, pictures in groupby(self._features(items), key=itemgetter(0)):
            dataset = self._datasets[item.dataset]
            columns = self._settings.columns_for(dataset)
            save = self._settings.save_probabilities
            rows = PartRows(columns, len(dataset.class_names), save_probabilities=save)
            while batch := [(index, found) for _, index, found in islice(pictures, together)]:
                self._judge_batch(item, batch, rows)
            yield item, rows.part()

    def _judge_batch(self, item: WorkItem, batch: list[tuple[int, Tensor | OtptError]], rows: PartRows) -> None:
        dataset = self._datasets[item.dataset]
        good = [(index, found) for index, found in batch if not isinstance(found, OtptError)]
        labels = [dataset.labels[index] for index, _ in batch]
        answers = self._judge(item, good)
        for judged in enter_answers(item, dataset, batch, labels, answers, rows):
            if self._on_picture is not None:
                self._on_picture(judged)

    def _judge(self, item: WorkItem, good: list[tuple[int, Tensor]]) -> list[list[Prediction]]:
        """Predictions of pictures with features (V, D), column by column."""
        if not good:
            return []
        judge = self._judge_of(item.dataset)
        if self._backbone.device.type == "cpu":

            def one(picture: tuple[int, Tensor]) -> list[Prediction]:
                return judge([picture[0]], picture[1][None], seed=item.seed)[0]

            return in_threads(one, good, at_once=judge.at_once)
        indices, views = zip(*good, strict=True)
        return judge(indices, torch.stack(views), seed=item.seed)

    def _judge_of(self, position: int) -> DatasetJudge:
        """The judge of a data set; that of the data set before is let go."""
        if self._prepared is None or self._prepared[0] != position:
            self._prepared = None
            dataset = self._datasets[position]
            judge = DatasetJudge(self._backbone, dataset, self._settings, cache=self._cache)
            self._prepared = (position, judge)
        return self._prepared[1]


Parts = Callable[[Iterable[WorkItem]], Iterator[tuple[WorkItem, Part]]]
"""What makes parts of work items: an :class:`Evaluator`, or that of a medical system."""


def evaluator_for(
    backbone: Model,
    datasets: Sequence[Dataset],
    settings: Settings,
    *,
    cache: FeatureCache | None = None,
    threads: int | None = None,
    on_picture: Callable[[Judged], None] | None = None,
) -> Parts:
    """The evaluator that the settings' methods need; an error now if one of them does not fit model or data."""
    if settings.system:
        from otpt.medical.evaluator import SystemEvaluator
        from otpt.medical.settings import MedicalSettings

        assert isinstance(settings, MedicalSettings)
        return SystemEvaluator(backbone, datasets, settings, threads=threads, on_picture=on_picture)
    if not isinstance(backbone, Backbone):
        raise OtptError(f"The model {backbone.name!r} has no text tower, which {settings.chosen[0].name!r} needs.")
    for dataset in datasets:
        check_fit(backbone, dataset, settings)
    return Evaluator(backbone, datasets, settings, cache=cache, threads=threads, on_picture=on_picture)
