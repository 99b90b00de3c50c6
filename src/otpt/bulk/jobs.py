"""Jobs of bulk prediction: what a worker of a pool (:mod:`otpt.workers`) computes for chunks of images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import chain, islice

import numpy as np
import numpy.typing as npt
import torch

from otpt._version import __version__
from otpt.backbones import Backbone
from otpt.classifier import Classifier
from otpt.data.sources import FeatureRow
from otpt.decision import Decision
from otpt.errors import OtptError
from otpt.features.pipeline import embed, look_ahead
from otpt.files import Json
from otpt.images import LIMITS, ImageSource, NamedImage, UrlLimits
from otpt.methods import Method, Protocol, Task, get_methods, method_numbers, prompt_facts
from otpt.prediction import Failure, Prediction
from otpt.views import ViewRecipe
from otpt.workers import Facts, PluginFiles

Answer = Mapping[str, Prediction] | Failure
"""The predictions of an image by method, or why it could not be read."""
Feature = npt.NDArray[np.floating] | OtptError
"""The unit feature of an image, or why it could not be read."""
Item = NamedImage | FeatureRow
"""Image, or its feature in a row of a table."""
Chunk = Sequence[Item]
"""Images that a worker gets at a time."""

READERS = 32
"""Threads that read images ahead from remote storage."""
_FEATURES = 256  # rows of features classified together
_VIEWS = 256  # views of the images in a chunk
_IMAGES = 64  # images in a chunk, at most


@dataclass(frozen=True)
class ClassifierJob:
    """Predictions of images; a :class:`otpt.workers.Job` whose items are chunks of images.

    Attributes:
        plugins: files with a user's functions; first, because the methods need them.
        load: loads the model on a device, as :meth:`Backbone.to` takes it.
        task, protocol, decision: everything that determines the predictions besides the model.
        device: where the model runs by default.
        threads: number of threads of each worker; None for a share of the machine's.
        readers: number of threads that read images ahead, for those on remote storage.
        urls: limits for downloads; None rejects URLs.
        loaded: classifier of these records on that device, if there is one already.
        metadata: of a file of features, whose rows take the place of images; None for images.
    """

    plugins: PluginFiles
    load: Callable[[str], Backbone]
    task: Task
    protocol: Protocol
    decision: Decision
    device: str = "auto"
    threads: int | None = None
    readers: int = 0
    urls: UrlLimits | None = LIMITS
    loaded: Classifier | None = field(default=None, repr=False)
    metadata: Mapping[str, str] | None = None

    @classmethod
    def of(cls, classifier: Classifier, methods: Sequence[str | Method] | None = None) -> ClassifierJob:
        """Return the job of a classifier, with other methods if given."""
        protocol = classifier.protocol
        if methods is not None:
            protocol = protocol.replace(methods=get_methods(methods))
        return cls(
            plugins=PluginFiles(),
            load=classifier.backbone.to,
            task=classifier.task,
            protocol=protocol,
            decision=classifier.decision,
            device=str(classifier.backbone.device),
            urls=classifier.urls,
            loaded=classifier,
        )

    @property
    def methods(self) -> tuple[Method, ...]:
        """Methods of the predictions."""
        return self.protocol.for_task(self.task).methods

    @property
    def chunk_size(self) -> int:
        """Number of images in a chunk, fewer if each image has many views."""
        return max(min(_IMAGES, _VIEWS // self.protocol.recipe.n_views), 1)

    def classifier(self, device: str) -> Classifier:
        """Return the classifier on a device."""
        if self.loaded is not None and device == self.device:
            return self.loaded
        backbone = self.load(device)
        return Classifier(backbone, task=self.task, protocol=self.protocol, decision=self.decision, urls=self.urls)

    def make_worker(self, device: str, threads: int | None) -> ImageWorker | FeatureWorker:
        """Load the model on a device."""
        classifier = self.classifier(device)
        if self.metadata is not None:
            return FeatureWorker(classifier, self.methods, self.metadata)
        return ImageWorker(classifier, self.methods, threads, self.readers)


class ImageWorker:
    """Classifier in one process.

    Args:
        classifier: the classifier.
        methods: methods of the predictions.
        threads: number of threads that decode and augment.
        readers: number of threads that read images ahead.
    """

    def __init__(
        self, classifier: Classifier, methods: tuple[Method, ...], threads: int | None = None, readers: int = 0
    ) -> None:
        self.classifier = classifier
        self._methods, self._threads, self._readers = methods, threads, readers

    def facts(self) -> Facts:
        """Return the facts that determine the predictions, as plain data."""
        return classifier_facts(self.classifier, self._methods)

    def __call__(self, items: Iterable[Chunk]) -> Iterator[Answer]:
        """Yield the answers of all images lazily and in order."""
        images = (NamedImage(image.id, image.read) for image in chain.from_iterable(items))
        ahead = read_ahead(images, self._readers) if self._readers else images
        return self.classifier.stream(ahead, self._methods, workers=self._threads)


class FeatureWorker:
    """Classifier of image features, as ``otpt embed`` writes them, in one process.

    Args:
        classifier: the classifier.
        methods: methods of the predictions.
        metadata: of the file of features.
    """

    def __init__(self, classifier: Classifier, methods: tuple[Method, ...], metadata: Mapping[str, str]) -> None:
        self.classifier = classifier
        self._methods = methods
        encoder, backbone = metadata.get("otpt.backbone"), classifier.backbone
        if encoder not in (None, backbone.fingerprint):
            raise OtptError(
                f"The features were made by another model (fingerprint {encoder}) than {backbone.name!r} "
                f"({backbone.fingerprint}); name that model with --backbone."
            )

    def facts(self) -> Facts:
        """Return the facts that determine the predictions, as plain data."""
        return classifier_facts(self.classifier, self._methods)

    def __call__(self, items: Iterable[Chunk]) -> Iterator[Answer]:
        """Yield the answers of all rows with features, in order."""
        rows = (row for row in chain.from_iterable(items) if isinstance(row, FeatureRow))
        position = 0
        while together := list(islice(rows, _FEATURES)):
            features = [row.feature for row in together if row.feature is not None]
            predictions = iter(self._classify(features) if features else ())
            for row in together:
                if row.feature is None:
                    yield Failure(row.id, position, OtptError(row.error or f"{row.id} has no feature."))
                else:
                    yield next(predictions)
                position += 1

    def _classify(self, features: Sequence[npt.NDArray[np.floating]]) -> list[dict[str, Prediction]]:
        backbone = self.classifier.backbone
        try:
            stacked = torch.from_numpy(np.stack(features)).to(backbone.dtype)
        except ValueError:
            raise OtptError("The features have different numbers of dimensions; expected those of one model.") from None
        return self.classifier.classify_features(stacked[:, None], self._methods)


def classifier_facts(classifier: Classifier, methods: tuple[Method, ...]) -> Facts:
    """Return the facts that determine the predictions of a classifier, as plain data."""
    backbone = classifier.backbone
    task = classifier.task
    protocol = classifier.protocol.replace(methods=methods)
    facts: dict[str, Json] = {**task.to_json(), **protocol.to_json(), **classifier.decision.to_json()}
    # with digests of files, such as learned contexts, and of a user's functions
    facts["prompts"] = {method.name: prompt_facts(task, protocol, method) for method in methods}
    facts["numbers"] = {method.name: method_numbers(method) for method in methods}
    return {"version": __version__, "backbone": backbone.fingerprint, "precision": backbone.precision, **facts}


@dataclass(frozen=True)
class EmbeddingJob:
    """Unit features of images; a :class:`otpt.workers.Job` whose items are chunks of images.

    Attributes:
        load: loads the model on a device, as :meth:`Backbone.to` takes it.
        recipe: views of an image, whose features are averaged.
        seed: seed of the views.
        device: where the model runs by default.
        threads: number of threads of each worker; None for a share of the machine's.
        readers: number of threads that read images ahead, for those on remote storage.
    """

    load: Callable[[str], Backbone]
    recipe: ViewRecipe
    seed: int = 0
    device: str = "auto"
    threads: int | None = None
    readers: int = 0

    @property
    def chunk_size(self) -> int:
        """Number of images in a chunk, fewer if each image has many views."""
        return max(min(_IMAGES, _VIEWS // self.recipe.n_views), 1)

    def make_worker(self, device: str, threads: int | None) -> EmbeddingWorker:
        """Load the model on a device."""
        return EmbeddingWorker(self.load(device), replace(self, threads=threads))


class EmbeddingWorker:
    """Image tower in one process."""

    def __init__(self, backbone: Backbone, job: EmbeddingJob) -> None:
        self._backbone, self._job = backbone, job

    def facts(self) -> Facts:
        """Return the facts that determine the features, as plain data."""
        backbone = self._backbone
        return {
            "version": __version__,
            "backbone": backbone.fingerprint,
            "precision": backbone.precision,
            "views": self._job.recipe.key,
            "seed": self._job.seed,
        }

    def __call__(self, items: Iterable[Chunk]) -> Iterator[Feature]:
        """Yield the features of all images lazily and in order."""
        job = self._job
        images = (image for image in chain.from_iterable(items) if isinstance(image, NamedImage))
        ahead = read_ahead(images, job.readers) if job.readers else images
        return embed(self._backbone, ahead, job.recipe, seed=job.seed, workers=job.threads)


def split_chunks(images: Iterable[Item], size: int) -> Iterator[Chunk]:
    """Split images into chunks of a size; the last one may be smaller."""
    images = iter(images)
    while chunk := list(islice(images, size)):
        yield chunk


def read_ahead(images: Iterable[NamedImage], readers: int = READERS) -> Iterator[NamedImage]:
    """Yield the images in order while threads read the bytes of the next ones."""

    def read(image: NamedImage) -> NamedImage:
        content: Future[ImageSource] = Future()
        try:
            content.set_result(image.read())
        except OtptError as error:
            content.set_exception(error)
        return NamedImage(image.id, content.result)

    return (coming.result() for coming in look_ahead(read, images, readers))
