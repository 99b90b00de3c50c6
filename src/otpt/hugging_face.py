"""Drop-in replacement of Hugging Face's ``pipeline("zero-shot-image-classification")``; only the import changes.

from otpt import pipeline                          # was: from transformers import pipeline

classify = pipeline("zero-shot-image-classification", model="openai/clip-vit-base-patch16")
classify("photo.jpg", candidate_labels=["cat", "dog"])
# [{"score": 0.93, "label": "cat"}, {"score": 0.07, "label": "dog"}]
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from otpt.backbones import open_clip_tags
from otpt.classifier import Classifier, load
from otpt.errors import OtptError, unknown
from otpt.features.inputs import is_one_image
from otpt.prediction import Scored
from otpt.methods import DEFAULT_METHOD

TASK = "zero-shot-image-classification"
TEMPLATE = "This is a photo of {}."
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
        image: Any = None,
        candidate_labels: str | Sequence[str] | None = None,
        *,
        hypothesis_template: str = TEMPLATE,
        images: Any = None,
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
        given = images if image is None else image
        if given is None:
            raise OtptError("The image is None; expected a path, a URL, an image, or a list of them.")
        template = None if candidate_labels is None else hypothesis_template
        predict = partial(self.classifier.predict, candidate_labels=candidate_labels, hypothesis_template=template)
        if is_one_image(given):
            return list(predict(given))
        if isinstance(given, list):
            return [list(found) for found in predict(given)]
        return (list(predict(each)) for each in given)

    def __repr__(self) -> str:
        return f"ZeroShotPipeline({self.classifier!r})"


def pipeline(
    task: str = TASK,
    model: Any = None,
    *,
    method: str = DEFAULT_METHOD,
    device: Any = "auto",
    tokenizer: Any = None,
    image_processor: Any = None,
    dtype: Any = None,
    torch_dtype: Any = None,
    **options: Any,
) -> ZeroShotPipeline:
    """Return a replacement of Hugging Face's ``pipeline`` for zero-shot image classification.

    With ``method="zero-shot"`` the scores equal those of transformers; other methods, including the default, use 64
    views. Scores of SigLIP are a softmax over the labels; pass ``multi_label=True`` for independent probabilities.

    Args:
        task: "zero-shot-image-classification".
        model: name of a CLIP or SigLIP model on the hub, a folder, a model in memory, or any model that
            :func:`otpt.load` accepts, such as "pocket".
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
    if (given := dtype or torch_dtype) is not None:
        wanted = str(given).removeprefix("torch.")
        if wanted not in _PRECISIONS:
            raise unknown("dtype", wanted, _PRECISIONS)
        options["precision"] = _PRECISIONS[wanted]
    if isinstance(model, str) and _is_hub_name(model):
        model = f"hf:{model}"
    return ZeroShotPipeline(
        load(model, method, device=device, tokenizer=tokenizer, preprocess=image_processor, **options)
    )


def _is_hub_name(name: str) -> bool:
    """Return whether a name is ORG/NAME, but neither a path nor ARCHITECTURE/TAG of open_clip."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or os.path.exists(name):
        return False
    return name.partition("/")[0] not in open_clip_tags()
