"""Work items → parts: the loop of an evaluation, in one process, without a word about files or other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from operator import itemgetter

import torch
from torch import Tensor

from otpt.backbones import Backbone
from otpt.classifier import Classifier, Prediction
from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.evaluation.cache import FeatureCache
from otpt.evaluation.features import FeatureStream
from otpt.evaluation.parts import Part
from otpt.evaluation.rows import PartRows
from otpt.evaluation.run import WorkItem
from otpt.evaluation.settings import Settings, prompt_name
from otpt.evaluation.threads import PictureThreads, single_thread
from otpt.prompts import Prompt
from otpt.prompts.tokens import real_lengths
from otpt.tuning import TextSide

_PICTURES_TOGETHER = 8  # on a GPU; as many contexts go through its text tower together


@dataclass(frozen=True)
class Judged:
    """A picture that is done, as progress is told: predictions by (prompt, method); none if it could not be read."""

    item: WorkItem
    label: int
    predictions: Sequence[Prediction]


@dataclass(frozen=True)
class _Texts:
    """The class texts of a data set under every prompt; ``at_once``: pictures that memory has room for at a time."""

    classifier: Classifier
    sides: list[TextSide]
    at_once: int


class Evaluator:
    """Judges pictures by all prompts and methods: each picture is decoded, augmented and encoded once.

    Args:
        cache: of image features; None to encode everything.
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
        self._features = FeatureStream(backbone, datasets, settings, cache=cache, threads=threads)
        self._on_picture = on_picture
        self._prepared: tuple[int, _Texts] | None = None

    def __call__(self, items: Iterable[WorkItem]) -> Iterator[tuple[WorkItem, Part]]:
        """Each item with its part, in the order of the items, which are read a few pictures ahead."""
        on_cpu = self._backbone.device.type == "cpu"
        threads = PictureThreads(torch.get_num_threads() if on_cpu else 1)
        together = torch.get_num_threads() if on_cpu else _PICTURES_TOGETHER
        try:
            for item, pictures in groupby(self._features(items), key=itemgetter(0)):
                dataset = self._datasets[item.dataset]
                prompts = self._settings.prompts_for(dataset)
                columns = tuple((prompt_name(p), m.name) for p in prompts for m in self._settings.chosen)
                save = self._settings.save_probabilities
                rows = PartRows(columns, len(dataset.class_names), save_probabilities=save)
                while batch := [(index, found) for _, index, found in islice(pictures, together)]:
                    self._judge_batch(item, batch, rows, threads)
                yield item, rows.part()
        finally:
            threads.close()

    def _judge_batch(
        self, item: WorkItem, batch: list[tuple[int, Tensor | OtptError]], rows: PartRows, threads: PictureThreads
    ) -> None:
        dataset = self._datasets[item.dataset]
        good = [found for _, found in batch if not isinstance(found, OtptError)]
        answers = iter(self._judge(item.dataset, good, threads))
        for index, found in batch:
            picture_id, label = dataset.ids[index], dataset.labels[index]
            predictions: list[Prediction] = []
            if isinstance(found, OtptError):
                rows.add_unreadable(index, picture_id, label, str(found))
            else:
                predictions = next(answers)
                rows.add(index, picture_id, label, predictions)
            if self._on_picture is not None:
                self._on_picture(Judged(item, label, predictions))

    def _judge(self, dataset: int, pictures: list[Tensor], threads: PictureThreads) -> list[list[Prediction]]:
        """Predictions of features (V, D): for each picture, prompt by prompt and method by method."""
        if not pictures:
            return []
        texts = self._texts(dataset)
        methods = self._settings.chosen

        def judge(views: Tensor) -> list[list[Prediction]]:
            answers = [texts.classifier.classify_features(views, methods, text=side) for side in texts.sides]
            return [[p for answer in of_picture for p in answer.values()] for of_picture in zip(*answers, strict=True)]

        if self._backbone.device.type == "cpu":
            found = threads.map(judge, [views[None] for views in pictures], at_once=texts.at_once)
            return [answer for (answer,) in found]
        return judge(torch.stack(pictures))

    def _texts(self, position: int) -> _Texts:
        """The class texts of a data set; those of the data set before are let go."""
        if self._prepared is None or self._prepared[0] != position:
            self._prepared = None
            self._prepared = (position, self._prepare_texts(self._datasets[position]))
        return self._prepared[1]

    def _prepare_texts(self, dataset: Dataset) -> _Texts:
        settings = self._settings
        tunes = any(method.objectives for method in settings.chosen)
        left = settings.memory_budget if tunes else 0
        sides: list[TextSide] = []
        made_anew = 1  # bytes of the largest graph that each picture's thread makes for itself
        with single_thread():
            for prompt in settings.prompts_for(dataset):
                side = TextSide(
                    self._backbone,
                    dataset.class_names,
                    whole_context(prompt, self._backbone) if settings.all_tokens else prompt,
                    allow_duplicates=dataset.allow_duplicates,
                    memory_budget=settings.memory_budget,
                )
                sides.append(side)
                kept = side.linearisation.graph_bytes
                if 0 < kept <= left:
                    left -= kept
                    continue
                side.linearisation.release()
                if tunes:
                    made_anew = max(made_anew, kept or settings.memory_budget)
        at_once = max(settings.memory_budget // made_anew, 1)
        return _Texts(classifier_for(self._backbone, dataset, settings), sides, at_once)


def classifier_for(backbone: Backbone, dataset: Dataset, settings: Settings) -> Classifier:
    """The classifier of a data set; an error now if one of the methods does not fit the backbone."""
    family = settings.family_for(dataset)
    made = [
        Classifier(
            backbone,
            method,
            family=family,
            official_precision=settings.official_precision,
            memory_budget=settings.memory_budget,
        )
        for method in settings.chosen
    ]
    return made[0]


def whole_context(prompt: Prompt, backbone: Backbone) -> Prompt:
    """The prompt with all tokens of its context tuned, also where words are more than one token."""
    if prompt.tokens is not None or prompt.vectors is not None:
        return prompt
    whole, empty = real_lengths(backbone.text.tokenize([prompt.context, ""]).cpu()).tolist()
    return replace(prompt, tokens=whole - empty)
