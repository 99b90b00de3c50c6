"""Evaluation loop from work items to shards in one process, and the recorded configuration."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from itertools import chain, groupby, product

from otpt._version import __version__
from otpt.backbones import Backbone
from otpt.calibration import Calibrated
from otpt.data import Dataset, FeatureDataset
from otpt.errors import OtptError
from otpt.evaluation.request import DatasetPlan, Evaluation, each_once
from otpt.features.cache import FeatureCache
from otpt.features.pipeline import EncodedImage, FeaturePipeline, ImageTask
from otpt.methods import (
    Column,
    Method,
    Output,
    Predictor,
    Task,
    calibration_facts,
    check_fit,
    columns,
    method_numbers,
    plain,
    preparer_of,
    prompt_facts,
    stream,
)
from otpt.registry import STREAM
from otpt.rejection import get_threshold
from otpt.runs import ColumnConfig, DatasetConfig, ModelConfig, RunConfig, Scoring, Shard, ShardRows, WorkItem

_VERSIONS = ("numpy", "open-clip-torch", "pillow", "torch")


def run_config(
    backbone: Backbone, datasets: Sequence[DatasetConfig], evaluation: Evaluation, *, command: str | None = None
) -> RunConfig:
    """Return the configuration of a run; ``command`` is informational."""
    numbers = {**evaluation.protocol.recorded(), **evaluation.recorded()}
    if evaluation.multi_label:
        numbers["multi_label"] = True
    rejection = evaluation.decision.rejection
    if rejection is not None:
        numbers["reject"] = {"score": rejection.score, "above": get_threshold(*rejection)}
    return RunConfig(
        versions={
            "otpt": __version__,
            "python": ".".join(platform.python_version_tuple()[:2]),
            **{name: metadata.version(name) for name in _VERSIONS},
        },
        backbone=ModelConfig(
            name=backbone.name,
            fingerprint=backbone.fingerprint,
            architecture=backbone.architecture,
            family=backbone.family,
            precision=backbone.precision,
            compiled=backbone.compiled,
            device=backbone.device.type,
            preprocessing=plain(backbone.preprocessing.facts()),
        ),
        shard_size=evaluation.shard_size,
        numbers=numbers,
        scoring=Scoring(n_bins=evaluation.n_bins, side=evaluation.side),
        methods={method.name: method_numbers(method) for method in evaluation.run_methods},
        datasets=list(datasets),
        commands=[] if command is None else [command],
    )


def dataset_configs(datasets: Sequence[Dataset], evaluation: Evaluation) -> list[DatasetConfig]:
    """Return the data sets and columns of a run's configuration; needs no model."""
    each_once("data set", [dataset.unique_name for dataset in datasets])
    return [_dataset_config(dataset, evaluation) for dataset in datasets]


def _dataset_config(dataset: Dataset, evaluation: Evaluation) -> DatasetConfig:
    for name in dataset.ids:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise OtptError(
                f"The image {name!r} of {dataset.name!r} has a name that is not UTF-8 text, which rows cannot hold; "
                "rename its file."
            ) from None
    plan = evaluation.on(dataset)
    images = min(len(dataset), evaluation.limit or len(dataset))
    methods = {method.name: method for method in plan.protocol.methods}
    configs = []
    for prompt, name in columns(plan.tasks, plan.protocol, plan.protocol.methods):
        method = methods[name]
        recipe = plan.protocol.recipe_for(method)
        calibrated = evaluation.calibration_of(name)
        configs.append(
            ColumnConfig(
                method=name,
                prompt=prompt_facts(task_of(plan, prompt, method), plan.protocol, method),
                views=None if recipe is None else recipe.key,
                images=dict.fromkeys(evaluation.seeds, images),
                order=_order_fact(method, images),
                facts={} if calibrated is None else {"calibration": plain(calibrated.key)},
            )
        )
    return DatasetConfig(
        name=dataset.unique_name,
        variant=dataset.variant,
        source=dataset.origin,
        fingerprint=dataset.fingerprint,
        family=plan.protocol.family or "",
        classes=list(dataset.class_names),
        columns=configs,
    )


def task_of(plan: DatasetPlan, prompt: str, method: Method) -> Task:
    """Return the task under which a method has the prompt of this name."""
    preparer = preparer_of(method)
    return next(task for task in plan.tasks if preparer.prompt_name(task, plan.protocol, method) == prompt)


def _order_fact(method: Method, images: int) -> str | None:
    """Describe the inputs of a stream's rows besides the image."""
    if method.scope != STREAM:
        return None
    return f"{images} images, permuted by the seed" + (", all seen before the first" if method.sees_all_first else "")


@dataclass(frozen=True, eq=False)
class _Place:
    """Position of an image in an evaluation, with the predictor of its work item."""

    item: WorkItem
    index: int
    name: str
    predictor: Predictor

    def __str__(self) -> str:
        return f"{self.item.dataset}: {self.name}"


class Evaluator:
    """Predict images with all prompts and methods; each image is decoded, augmented and encoded once.

    Args:
        backbone: the model.
        datasets: data sets of the work items.
        evaluation: methods, prompts, seeds and limits.
        cache: cache of image features and gradients at the init; None to compute everything.
        threads: number of threads that decode and augment (see :class:`FeaturePipeline`).
        on_image: function that is called after each image.
    """

    def __init__(
        self,
        backbone: Backbone,
        datasets: Sequence[Dataset],
        evaluation: Evaluation,
        *,
        cache: FeatureCache | None = None,
        threads: int | None = None,
        on_image: Callable[[], None] | None = None,
    ) -> None:
        self._backbone, self._evaluation, self._cache = backbone, evaluation, cache
        self._datasets = {dataset.unique_name: dataset for dataset in datasets}
        self._pipeline = FeaturePipeline(backbone, cache=cache, threads=threads, features=evaluation.features)
        self._on_image = on_image
        self._prepared: tuple[tuple[str, tuple[Column, ...]], Predictor] | None = None
        self._plans = {name: evaluation.on(dataset) for name, dataset in self._datasets.items()}
        for dataset in datasets:
            if isinstance(dataset, FeatureDataset) and dataset.width != backbone.embed_dim:
                raise OtptError(
                    f"The features of {dataset.name!r} have {dataset.width} dimensions; those of {backbone.name!r} "
                    f"have {backbone.embed_dim}. Name the backbone that computed them."
                )
        for plan in self._plans.values():
            for task in plan.tasks:
                check_fit(backbone, task, plan.protocol, plan.protocol.methods)
            self._check_calibrations(plan)

    def __call__(self, items: Iterable[WorkItem]) -> Iterator[tuple[WorkItem, list[Shard]]]:
        """Yield the finished shards of each item; the last ones of an item end at its ``stop``."""
        batches = stream(self._image_tasks(items), self._pipeline, lambda place: place.predictor)
        answers = (pair for pair in chain.from_iterable(batches) if not pair[0].task.first_pass)
        for item, members in groupby(answers, key=lambda pair: pair[0].task.key.item):
            yield from self._shards(item, members)

    def _image_tasks(self, items: Iterable[WorkItem]) -> Iterator[ImageTask[_Place]]:
        for item in items:
            dataset, predictor = self._datasets[item.dataset], self._predictor(item)
            order = stream_order(item.seed, dataset.ids[: item.stop]) if item.in_order else range(item.start, item.stop)
            passes = [True, False] if predictor.sees_all_first else [False]
            for first_pass, index in product(passes, order):
                place = _Place(item, index, dataset.ids[index], predictor)
                source = partial(dataset.source, index)
                yield predictor.image_task(place, source, seed=item.seed, first_pass=first_pass)

    def _shards(
        self, item: WorkItem, answers: Iterator[tuple[EncodedImage[_Place], list[Output] | Exception]]
    ) -> Iterator[tuple[WorkItem, list[Shard]]]:
        dataset = self._datasets[item.dataset]
        start = item.start
        writers = self._writers(item, dataset)
        for position, (image, answer) in enumerate(answers, start=item.start + 1):
            place = image.task.key
            label = dataset.labels_of(place.index) if self._evaluation.multi_label else dataset.labels[place.index]
            for writer, column in zip(writers, item.columns, strict=True):
                if isinstance(answer, Exception):
                    writer.add_unreadable(place.index, place.name, label, str(answer))
                    continue
                output = answer[place.predictor.columns.index(column)]
                calibrated = self._evaluation.calibration_of(column[1])
                writer.add(place.index, place.name, label, calibrated_output(calibrated, output, label))
            if self._on_image is not None:
                self._on_image()
            if position == item.stop or (item.in_order and position % self._evaluation.shard_size == 0):
                yield item, [writer.shard(start) for writer in writers]
                start, writers = position, self._writers(item, dataset)

    def _writers(self, item: WorkItem, dataset: Dataset) -> list[ShardRows]:
        """Return a new writer for each column of an item."""
        classes = len(dataset.class_names)
        save = self._evaluation.save_probabilities or self._evaluation.multi_label
        return [
            ShardRows(item.dataset, item.seed, column, classes, variant=dataset.variant, save_probabilities=save)
            for column in item.columns
        ]

    def _predictor(self, item: WorkItem) -> Predictor:
        """Return the predictor of an item's data set and columns; the last one is reused except for streams."""
        key = item.dataset, item.columns
        if self._prepared is None or self._prepared[0] != key or item.in_order:
            plan = self._plans[item.dataset]
            prompts = {prompt for prompt, _ in item.columns}
            names = {name for _, name in item.columns}
            tasks = [task for task in plan.tasks if task.texts.name in prompts] or list(plan.tasks[:1])
            methods = tuple(method for method in plan.protocol.methods if method.name in names)
            protocol = plan.protocol.replace(methods=methods)
            rejection = self._evaluation.decision.rejection
            self._prepared = key, Predictor(self._backbone, tasks, protocol, rejection, cache=self._cache)
        return self._prepared[1]

    def _check_calibrations(self, plan: DatasetPlan) -> None:
        """Raise ``OtptError`` if a calibration does not match the model, classes, prompt or method settings."""
        for method in plan.protocol.methods:
            calibrated = self._evaluation.calibration_of(method.name)
            if calibrated is None:
                continue
            uncalibrated = replace(method, name=calibrated.calibration.method)
            for prompt, _ in columns(plan.tasks, plan.protocol, [method]):
                task = task_of(plan, prompt, method)
                calibrated.calibration.check(calibration_facts(self._backbone, task, plan.protocol, uncalibrated))


def calibrated_output(calibrated: Calibrated | None, output: Output, label: int | tuple[int, ...]) -> Output:
    """Calibrate an output; prediction set and abstention become columns of the results."""
    if calibrated is None:
        return output
    answer = calibrated.answer(output.probabilities, output.index)
    extras = {**output.extras, "uncalibrated_confidence": output.confidence}
    if answer.classes is not None:
        extras |= {"set_size": float(len(answer.classes)), "covered": float(label in answer.classes)}
    if answer.abstained is not None:
        extras["answered"] = float(not answer.abstained)
    return replace(output, probabilities=answer.probabilities, index=answer.index, extras=extras, logits=None)


def stream_order(seed: int, ids: Sequence[str]) -> list[int]:
    """Return the order of a stream, a permutation determined by the seed and the image names."""
    keys = [hashlib.sha256(f"otpt stream 1/{seed}/{name}".encode()).digest() for name in ids]
    return sorted(range(len(ids)), key=keys.__getitem__)
