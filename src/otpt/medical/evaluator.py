"""Work items → parts, for medical systems: the counterpart of :class:`otpt.evaluation.Evaluator`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from PIL import Image

from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.evaluation.evaluator import Judged, enter_answers
from otpt.evaluation.features import look_ahead
from otpt.evaluation.parts import Part
from otpt.evaluation.rows import PartRows
from otpt.evaluation.run import WorkItem
from otpt.medical.judges import SystemJudge, system_judge
from otpt.medical.pictures import open_or_error
from otpt.medical.settings import MedicalSettings
from otpt.threads import one_thread

_TOGETHER = 8


class SystemEvaluator:
    """Judges pictures by all methods of one medical system.

    Args:
        threads: that decode ahead.
        on_picture: called after each picture.
    """

    def __init__(
        self,
        model: Any,
        datasets: Sequence[Dataset],
        settings: MedicalSettings,
        *,
        threads: int | None = None,
        on_picture: Callable[[Judged], None] | None = None,
    ) -> None:
        self._model, self._datasets, self._settings = model, datasets, settings
        self._threads = min(os.cpu_count() or 1, 4) if threads is None else threads
        self._on_picture = on_picture
        self._prepared: tuple[int, SystemJudge] | None = None
        for position in reversed(range(len(datasets))):  # what does not fit is told before the first picture
            self._judge_of(position)

    def __call__(self, items: Iterable[WorkItem]) -> Iterator[tuple[WorkItem, Part]]:
        """Each item with its part."""
        for item in items:
            dataset = self._datasets[item.dataset]
            columns = self._settings.columns_for(dataset)
            rows = PartRows(columns, len(dataset.class_names), save_probabilities=self._settings.save_probabilities)
            opened = look_ahead(partial(open_or_error, dataset), range(item.start, item.stop), self._threads)
            while batch := list(islice(opened, _TOGETHER)):
                self._judge_batch(item, batch, rows)
            yield item, rows.part()

    def _judge_batch(
        self, item: WorkItem, batch: list[tuple[int, tuple[Image.Image, str] | OtptError]], rows: PartRows
    ) -> None:
        dataset = self._datasets[item.dataset]
        judge = self._judge_of(item.dataset)
        good = [found for _, found in batch if not isinstance(found, OtptError)]
        labels = [judge.label(dataset.labels[index], seed=item.seed) for index, _ in batch]
        with one_thread():
            answers = judge(good, seed=item.seed) if good else []
        for judged in enter_answers(item, dataset, batch, labels, answers, rows):
            if self._on_picture is not None:
                self._on_picture(judged)

    def _judge_of(self, position: int) -> SystemJudge:
        if self._prepared is None or self._prepared[0] != position:
            self._prepared = None
            with one_thread():
                self._prepared = (position, system_judge(self._model, self._datasets[position], self._settings))
        return self._prepared[1]
