"""Evaluation loop from work items to shards in one process, and the recorded configuration."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import metadata
from itertools import chain, groupby, product
from typing import Any

from otpt._version import __version__
from otpt.calibration import Calibrated
from otpt.data import Dataset, FeatureDataset
from otpt.errors import OtptError
from otpt.evaluation.settings import CALIBRATED, EvaluationSettings, each_once
from otpt.features.cache import FeatureCache
from otpt.features.pipeline import EncodedImage, FeaturePipeline, ImageTask
from otpt.methods import (
    Method,
    Output,
    Predictor,
    calibration_facts,
    check_fit,
    columns,
    kind_of,
    method_numbers,
    plain,
    prompt_facts,
    recipe_for,
    stream,
)
from otpt.registry import STREAM
from otpt.rejection import get_threshold
from otpt.runs import ColumnConfig, DatasetConfig, ModelConfig, RunConfig, Scoring, Shard, ShardRows, WorkItem
from otpt.runs.run import Column
from otpt.settings import Settings

_VERSIONS = ("numpy", "open-clip-torch", "pillow", "torch")


def run_config(
    backbone: Any, datasets: Sequence[DatasetConfig], settings: EvaluationSettings, *, command: str | None = None
) -> RunConfig:
    """Return the configuration of a run; ``command`` is informational."""
    numbers = settings.model_dump(include={"official_precision", "features", "memory_budget", "save_probabilities"})
    if settings.multi_label:
        numbers["multi_label"] = True
    if settings.reject is not None:
        threshold = get_threshold(settings.reject, settings.reject_threshold)
        numbers["reject"] = {"score": settings.reject, "above": threshold}
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
            preprocessing=plain(asdict(backbone.preprocessing)),
        ),
        shard_size=settings.shard_size,
        numbers=numbers,
        scoring=Scoring(n_bins=settings.n_bins, side=settings.side),
        methods={method.name: method_numbers(method) for method in settings.run_methods},
        datasets=list(datasets),
        commands=[] if command is None else [command],
    )


def dataset_configs(datasets: Sequence[Dataset], settings: EvaluationSettings) -> list[DatasetConfig]:
    """Return the data sets and columns of a run's configuration; needs no model."""
    each_once("data set", [dataset.unique_name for dataset in datasets])
    return [_dataset_config(dataset, settings) for dataset in datasets]


def _dataset_config(dataset: Dataset, settings: EvaluationSettings) -> DatasetConfig:
    for name in dataset.ids:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise OtptError(
                f"The image {name!r} of {dataset.name!r} has a name that is not UTF-8 text, which rows cannot hold; "
                "rename its file."
            ) from None
    own = settings.for_dataset(dataset)
    images = min(len(dataset), settings.limit or len(dataset))
    methods = {method.name: method for method in settings.run_methods}
    found = []
    for prompt, name in columns(own, settings.run_methods):
        method, calibrated = methods[name], settings.calibration_of(name)
        recipe, facts = recipe_for(own, method), dict(kind_of(method).evaluation.facts(settings))
        if calibrated is not None:
            facts["calibration"] = calibrated.key
        found.append(
            ColumnConfig(
                method=name,
                prompt=plain(prompt_facts(prompt, method, own)),
                views=None if recipe is None else recipe.key,
                images=dict.fromkeys(settings.seeds, images),
                order=_order_fact(method, images),
                facts=plain(facts),
            )
        )
    return DatasetConfig(
        name=dataset.unique_name,
        variant=dataset.variant,
        source=dataset.origin,
        fingerprint=dataset.fingerprint,
        family=own.family or "",
        classes=list(dataset.class_names),
        columns=found,
    )


def _order_fact(method: Method, images: int) -> str | None:
    """Describe the inputs of a stream's rows besides the image."""
    if method.scope != STREAM:
        return None
    return f"{images} images, permuted by the seed" + (", all seen before the first" if method.sees_all_first else "")


@dataclass(frozen=True)
class _Place:
    """Position of an image in an evaluation."""

    item: WorkItem
    index: int
    name: str

    def __str__(self) -> str:
        return f"{self.item.dataset}: {self.name}"


class Evaluator:
    """Predict images with all prompts and methods; each image is decoded, augmented and encoded once.

    Args:
        cache: of image features and gradients at the init; None to compute everything.
        threads: that decode and augment (see :class:`FeaturePipeline`).
        on_image: called after each image.
    """

    def __init__(
        self,
        backbone: Any,
        datasets: Sequence[Dataset],
        settings: EvaluationSettings,
        *,
        cache: FeatureCache | None = None,
        threads: int | None = None,
        on_image: Callable[[], None] | None = None,
    ) -> None:
        self._backbone, self._settings, self._cache = backbone, settings, cache
        self._datasets = {dataset.unique_name: dataset for dataset in datasets}
        self._pipeline = FeaturePipeline(backbone, cache=cache, threads=threads, features=settings.features)
        self._on_image = on_image
        self._prepared: tuple[tuple[str, tuple[Column, ...]], Predictor] | None = None
        self._own = {name: settings.for_dataset(dataset) for name, dataset in self._datasets.items()}
        for dataset in datasets:
            if isinstance(dataset, FeatureDataset) and dataset.width != backbone.embed_dim:
                raise OtptError(
                    f"The features of {dataset.name!r} have {dataset.width} dimensions; those of {backbone.name!r} "
                    f"have {backbone.embed_dim}. Name the backbone that computed them."
                )
        for own in self._own.values():
            check_fit(backbone, own, settings.run_methods)
            self._check_calibrations(own)

    def __call__(self, items: Iterable[WorkItem]) -> Iterator[tuple[WorkItem, list[Shard]]]:
        """Yield the finished shards of each item; the last ones of an item end at its ``stop``."""
        answers = chain.from_iterable(stream(self._image_tasks(items), self._pipeline))
        counted = (pair for pair in answers if not pair[0].task.first_pass)
        for item, own in groupby(counted, key=lambda pair: pair[0].task.key.item):
            yield from self._shards(item, own)

    def _image_tasks(self, items: Iterable[WorkItem]) -> Iterator[ImageTask]:
        for item in items:
            dataset, predictor = self._datasets[item.dataset], self._predictor(item)
            order = stream_order(item.seed, dataset.ids[: item.stop]) if item.in_order else range(item.start, item.stop)
            passes = [True, False] if predictor.sees_all_first else [False]
            for first_pass, index in product(passes, order):
                place = _Place(item, index, dataset.ids[index])
                yield predictor.task(place, partial(dataset.source, index), seed=item.seed, first_pass=first_pass)

    def _shards(
        self, item: WorkItem, answers: Iterator[tuple[EncodedImage, list[Output] | Exception]]
    ) -> Iterator[tuple[WorkItem, list[Shard]]]:
        dataset, settings = self._datasets[item.dataset], self._settings
        start, rows = item.start, self._rows(item, dataset)
        for position, (image, answer) in enumerate(answers, start=item.start + 1):
            index, name = image.task.key.index, image.task.key.name
            label = dataset.labels_of(index) if settings.multi_label else dataset.labels[index]
            for own, column in zip(rows, item.columns, strict=True):
                if isinstance(answer, Exception):
                    own.add_unreadable(index, name, label, str(answer))
                else:
                    output = answer[image.task.predictor.columns.index(column)]
                    own.add(index, name, label, calibrated_output(settings.calibration_of(column[1]), output, label))
            if self._on_image is not None:
                self._on_image()
            if position == item.stop or (item.in_order and position % settings.shard_size == 0):
                yield item, [own.shard(start) for own in rows]
                start, rows = position, self._rows(item, dataset)

    def _rows(self, item: WorkItem, dataset: Dataset) -> list[ShardRows]:
        classes = len(dataset.class_names)
        save = self._settings.save_probabilities or self._settings.multi_label
        return [
            ShardRows(item.dataset, item.seed, column, classes, variant=dataset.variant, save_probabilities=save)
            for column in item.columns
        ]

    def _predictor(self, item: WorkItem) -> Predictor:
        """Return the predictor of an item's data set and columns; the last one is reused except for streams."""
        key = item.dataset, item.columns
        if self._prepared is None or self._prepared[0] != key or item.in_order:
            settings = self._own[item.dataset]
            prompts, names = (set(each) for each in zip(*item.columns, strict=True))
            own = settings.replace(prompts=[each for each in settings.prompts or () if each.name in prompts] or None)
            methods = [method for method in self._settings.run_methods if method.name in names]
            self._prepared = key, Predictor(self._backbone, own, methods, cache=self._cache)
        return self._prepared[1]

    def _check_calibrations(self, own: Settings) -> None:
        """Raise ``OtptError`` if a calibration does not match the model, classes, prompt or method settings."""
        for method in self._settings.run_methods:
            calibrated = self._settings.calibration_of(method.name)
            if calibrated is not None:
                uncalibrated = replace(method, name=method.name.removesuffix(CALIBRATED))
                for prompt, _ in columns(own, [method]):
                    calibrated.calibration.check(calibration_facts(self._backbone, uncalibrated, prompt, own))


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
