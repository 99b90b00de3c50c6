"""Lines on standard error; among them what is said once of an evaluation or of predictions: what to be careful with,
what processes cannot share."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otpt.data import Dataset
    from otpt.evaluation import Engine
    from otpt.methods import Method

_NAMED = 3  # methods in a note; a sweep may have hundreds
_FEW = 20  # images, of which one cannot say much


def tell_cautions(methods: Sequence[Method], datasets: Collection[str]) -> None:
    """Each caution that concerns some of the data sets once, with the methods that it is about."""
    found: dict[str, list[Method]] = {}
    for method in methods:
        found.setdefault(method.caution_on(datasets), []).append(method)
    for caution, own in found.items():
        if caution:
            tell(f"{_named(own)}: {caution}")


def tell_sequential(methods: Sequence[Method], engine: Engine) -> None:
    """That a stream is computed by one process, if there are several."""
    from otpt.evaluation import LocalEngine
    from otpt.registry import STREAM

    streams = [method for method in methods if method.scope == STREAM]
    if streams and not isinstance(engine, LocalEngine):
        tell(
            f"{_named(streams)}: each image depends on those before it, so one process computes a data set and seed "
            "from its first image to its last; the other processes do the rest."
        )


def tell_missing_classes(datasets: Sequence[Dataset], limit: int | None) -> None:
    """That the limit leaves classes without an image, in which data sets, and how many."""
    from otpt.data.strata import classes_without_images

    if limit is None:
        return
    missing = {data.name: (classes_without_images(data, limit), len(set(data.labels))) for data in datasets}
    found = [f"{count} of {classes} of {name}" for name, (count, classes) in missing.items() if count]
    if found:
        tell(f"a limit of {limit} image{'s' * (limit > 1)} leaves classes without an image: {', '.join(found)}")


def tell_many_rejected(rejected: int, images: int) -> None:
    """That most of the images were rejected, which may be the threshold's fault."""
    if images >= _FEW and 2 * rejected > images:
        tell(
            f"{rejected} of {images} images are marked as none of the classes; if they do show them, the threshold of "
            "this score does not suit the model: give another with --reject-threshold, or another --reject."
        )


def _named(methods: Sequence[Method]) -> str:
    names = ", ".join(method.name for method in methods[:_NAMED])
    return names if len(methods) <= _NAMED else f"{names} and {len(methods) - _NAMED} more"


def tell(line: str) -> None:
    """A note on standard error, one line."""
    say(f"note: {line}")


def say(line: str) -> None:
    """One line on standard error."""
    print(f"otpt: {line}", file=sys.stderr, flush=True)
