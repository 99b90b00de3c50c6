"""Images that something was learned from and that it is evaluated on: the numbers would say nothing of new images."""

from __future__ import annotations

from collections.abc import Iterator

from otpt.data import Dataset, stratified
from otpt.evaluation.settings import Settings


def overlaps(settings: Settings, dataset: Dataset) -> Iterator[str]:
    """A sentence for each learned prompt or network that has seen images of ``dataset``, as far as it says so."""
    learned = [(what, set(keys)) for what, keys in _learned(settings, dataset) if keys]
    own = stratified(dataset).image_keys(settings.limit) if learned else ()
    for what, keys in learned:
        seen = sum(key in keys for key in own)
        if seen:
            yield (
                f"{seen} of the {len(own)} images of {dataset.name!r} are among those that {what} was learned from: "
                "accuracy and calibration on them are not those on new images. Evaluate on another split or folder."
            )


def _learned(settings: Settings, dataset: Dataset) -> Iterator[tuple[str, tuple[str, ...]]]:
    for kind, context in settings.contexts_for(dataset).items():
        yield f"the prompt of {kind!r}", context.images
    for file in settings.files:
        yield f"{file.method!r}", tuple(file.content.notes.get("images", ()))
