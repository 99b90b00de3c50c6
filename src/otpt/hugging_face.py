"""Drop-in replacement of Hugging Face's ``pipeline("zero-shot-image-classification")``; only the import changes.

from otpt import pipeline                          # was: from transformers import pipeline

classify = pipeline("zero-shot-image-classification", model="openai/clip-vit-base-patch16")
classify("photo.jpg", candidate_labels=["cat", "dog"])
# [{"score": 0.93, "label": "cat"}, {"score": 0.07, "label": "dog"}]
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, cast

import torch

from otpt.arguments import checked
from otpt.backbones import open_clip_tags
from otpt.classifier import ArrayImage, Classifier, OneImage, load
from otpt.errors import OtptError, unknown
from otpt.features.inputs import is_one_image
from otpt.methods import Method
from otpt.prediction import Prediction, Scored

TASK = "zero-shot-image-classification"
TEMPLATE = "This is a photo of {}."
Images: TypeAlias = OneImage | ArrayImage | Iterable[object]
"""An image, a list of images, or a generator or data set of images."""
_PRECISIONS = {"auto": "float32", "float32": "float32", "float16": "fp16", "bfloat16": "bf16", "float64": "float64"}


class ZeroShotPipeline:
    """Classifier with the call signature and results of Hugging Face's pipeline; see :func:`pipeline`.

    Attributes:
        classifier: underlying :class:`~otpt.Classifier`.
    """

    task = TASK

    def __init__(self, classifier: Classifier) -> None:
        self.classifier = classifier

    def __call__(
        self,
        image: Images | None = None,
        candidate_labels: str | Sequence[str] | None = None,
        *,
        hypothesis_template: str = TEMPLATE,
        images: Images | None = None,
        batch_size: int | None = None,
        num_workers: int | None = None,
        timeout: float | None = None,
    ) -> list[Scored] | list[list[Scored]] | Iterator[list[Scored]]:
        """Classify an image, a list of images, or, lazily, the images of a generator or data set.

        Args:
            image: path, URL, PIL image, array …; ``images`` is an older name of the argument.
            candidate_labels: classes as a list or a comma-separated string; the classifier's by default.
            hypothesis_template: sentence with ``{}`` for the class name.
            batch_size, num_workers, timeout: ignored; accepted for compatibility.

        Returns:
            ``[{"score": …, "label": …}, …]``, best first; one such list per image for several images.
        """
        source = images if image is None else image
        if source is None:
            raise OtptError("The image is None; expected a path, a URL, an image, or a list of them.")
        template = None if candidate_labels is None else hypothesis_template
        if is_one_image(source):
            return self._scores(source, candidate_labels, template)
        if isinstance(source, list):
            predictions = self.classifier.predict(
                source, candidate_labels=candidate_labels, hypothesis_template=template
            )
            return [list(prediction) for prediction in predictions if isinstance(prediction, Prediction)]
        return (self._scores(item, candidate_labels, template) for item in cast(Iterable[object], source))

    def _scores(self, image: object, labels: str | Sequence[str] | None, template: str | None) -> list[Scored]:
        """Return the scores of one image, best label first."""
        one = cast(OneImage, image)
        return list(self.classifier.predict(one, candidate_labels=labels, hypothesis_template=template))

    def __repr__(self) -> str:
        return f"ZeroShotPipeline({self.classifier!r})"


@checked
def pipeline(
    task: str = TASK,
    model: object = None,
    *,
    method: str | Method | None = None,
    device: str | int | torch.device = "auto",
    tokenizer: object = None,
    image_processor: object = None,
    dtype: str | torch.dtype | None = None,
    torch_dtype: str | torch.dtype | None = None,
    **options: object,
) -> ZeroShotPipeline:
    """Return a replacement of Hugging Face's ``pipeline`` for zero-shot image classification.

    With ``method="zero-shot"`` the scores equal those of transformers; other methods, including the default, use 64
    views. Scores of SigLIP are a softmax over the labels; pass ``multi_label=True`` for independent probabilities.

    Args:
        task: "zero-shot-image-classification".
        model: name of a CLIP or SigLIP model on the hub, a folder, a model in memory, or any model that
            :func:`otpt.load` accepts, such as "pocket".
        method: method name, TOML file or :class:`~otpt.Method`; the default of :func:`otpt.load` if None.
        device: device name, or number as in transformers: -1 for the CPU, 0 for the first GPU.
        tokenizer, image_processor: tokenizer and image processor of a model in memory.
        dtype, torch_dtype: precision as in transformers, such as ``torch.float16`` or "auto".
        options: further arguments of :func:`otpt.load`, such as ``views=16``.

    Example:
        >>> classify = pipeline("zero-shot-image-classification", model="pocket", method="zero-shot")
        >>> classify.task
        'zero-shot-image-classification'
    """
    if task != TASK:
        raise unknown("task", task, (TASK,))
    if model is None:
        raise OtptError("The model is None; expected a name such as model='openai/clip-vit-base-patch16'.")
    if isinstance(device, int):
        device = "cpu" if device < 0 else f"cuda:{device}"
    precision = torch_dtype if dtype is None else dtype
    if precision is not None:
        if not isinstance(precision, (str, torch.dtype)):
            raise OtptError(f"dtype is a {type(precision).__name__}; expected one of {', '.join(_PRECISIONS)}.")
        name = str(precision).removeprefix("torch.")
        if name not in _PRECISIONS:
            raise unknown("dtype", name, _PRECISIONS)
        options["precision"] = _PRECISIONS[name]
    if isinstance(model, str) and _is_hub_name(model):
        model = f"hf:{model}"
    make: Callable[..., Classifier] = load
    return ZeroShotPipeline(
        make(model, method, device=device, tokenizer=tokenizer, preprocess=image_processor, **options)
    )


def _is_hub_name(name: str) -> bool:
    """Return whether a name is ORG/NAME, but neither a path nor ARCHITECTURE/TAG of open_clip."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or os.path.exists(name):
        return False
    return name.partition("/")[0] not in open_clip_tags()
