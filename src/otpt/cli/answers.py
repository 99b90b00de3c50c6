"""Predictions of images on the terminal: as JSON lines, as tables, or as one line each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from rich.cells import cell_len

from otpt.bulk import Answer, answer_rows
from otpt.cli.terminal import print_json, print_table, say, show
from otpt.errors import OtptError
from otpt.escapes import one_line
from otpt.methods import KEPT_INIT
from otpt.prediction import IMPOSSIBLE, Failure, Prediction
from otpt.rejection import REJECTED

TOP = 5
"""Default for ``--top`` with a single image."""
FLAGS = {
    KEPT_INIT: "the gradient was not finite, so the initial prompt was used",
    IMPOSSIBLE: "no class of the group has any probability, so all are equal",
    REJECTED: "the image probably shows none of the classes",
}


class Printer(Protocol):
    """Prints the answers of images in their order."""

    def print(self, image: str, answer: Answer) -> None:
        """Print the answer of an image."""

    def close(self) -> None:
        """Print what follows the last image."""


class Silent:
    """Print nothing, because answers go to a file."""

    def print(self, image: str, answer: Answer) -> None:
        """See :class:`Printer`."""

    def close(self) -> None:
        """See :class:`Printer`."""


class JsonLines:
    """Print one JSON object per image and method.

    Args:
        top: number of best classes.
        several_labels: whether labels are independent of each other.
        ranked: whether to add the uncertainty.
    """

    def __init__(self, top: int, *, several_labels: bool, ranked: bool = False) -> None:
        self._top = top
        self._several_labels = several_labels
        self._ranked = ranked

    def print(self, image: str, answer: Answer) -> None:
        """See :class:`Printer`."""
        rows = answer_rows(image, answer, self._top, several_labels=self._several_labels, ranked=self._ranked)
        for row in rows:
            print_json(row, indent=None)

    def close(self) -> None:
        """See :class:`Printer`."""


class BestClasses:
    """Print a table of the best classes of each image.

    Args:
        top: number of classes.
        several_labels: whether labels are independent of each other.
    """

    def __init__(self, top: int, *, several_labels: bool) -> None:
        self._top = top
        self._several_labels = several_labels

    def print(self, image: str, answer: Answer) -> None:
        """See :class:`Printer`."""
        if isinstance(answer, Failure):
            _say_error(image, answer.error)
            return
        show(image)
        for method, prediction in answer.items():
            best = enumerate(prediction.top(self._top), start=1)
            rows = [(str(rank), label, f"{100 * probability:.1f}") for rank, (label, probability) in best]
            print_table(("", method, "%"), rows, names=2)
            threshold = f"{100 * prediction.threshold:g} %"
            if prediction.grouping is not None:
                show(f"{threshold} is reached by {_back_off(prediction)}")
            if self._several_labels:
                show(f"{threshold} is reached by {', '.join(prediction.labels_above()) or 'no label'}")
            if prediction.set is not None:
                show(f"prediction set: {', '.join(prediction.set) or 'no class'}")
            if prediction.abstained:
                show("abstained: the confidence is not above the threshold of the risk")
            _print_flags(prediction.flags)
        show()

    def close(self) -> None:
        """See :class:`Printer`."""


class OneLineEach:
    """Print one line per image: its name, and label and confidence of each method.

    Args:
        images: names that decide the width of the first column.
        classes: names that decide the width of the other columns.
        methods: names of the methods.
        several_labels: whether labels are independent of each other.
    """

    def __init__(
        self, images: Sequence[str], classes: Sequence[str], methods: Sequence[str], *, several_labels: bool
    ) -> None:
        self._several_labels = several_labels
        self._flags: dict[str, None] = {}
        titles = methods if len(methods) > 1 else ()
        labels = [_yes_or_no(classes[0], False)] if several_labels and len(classes) == 1 else classes
        self._image_width = max(map(_width, images), default=0)
        self._label_width = max(map(_width, (*labels, *titles)), default=0) + 2
        if titles:
            self._print_line("", [(method, "%") for method in titles])

    def print(self, image: str, answer: Answer) -> None:
        """See :class:`Printer`."""
        if isinstance(answer, Failure):
            _say_error(image, answer.error)
            return
        cells = []
        for prediction in answer.values():
            label, number = self._cell(prediction)
            self._flags |= dict.fromkeys(prediction.flags)
            cells.append((label + " *" * bool(prediction.flags), number))
        self._print_line(image, cells)

    def close(self) -> None:
        """See :class:`Printer`."""
        _print_flags(self._flags)

    def _cell(self, prediction: Prediction) -> tuple[str, str]:
        """Return what is shown as the label, and the confidence in percent."""
        number = f"{100 * prediction.confidence:.1f}"
        if prediction.abstained:
            return "(abstained)", "" if prediction.grouping is not None else number
        if self._several_labels:
            present = prediction.labels_above()
            if len(prediction) == 1:
                return _yes_or_no(prediction.label, bool(present)), number
            return ", ".join(
                f"{name} {100 * score:.1f}" for name, score in prediction.top(len(present))
            ) or "(none)", ""
        if prediction.grouping is not None:
            return _back_off(prediction), ""
        if prediction.set is not None:
            return " | ".join(prediction.set) or "(none)", number
        return prediction.label, number

    def _print_line(self, image: str, cells: Sequence[tuple[str, str]]) -> None:
        padded = [f"{_pad(label, self._label_width)}  {number:>5}" for label, number in cells]
        show("  ".join([_pad(image, self._image_width), *padded]).rstrip())


def _width(text: str) -> int:
    """Return the number of cells of a text on the terminal."""
    return cell_len(one_line(text))


def _pad(text: str, width: int) -> str:
    shown = one_line(text)
    return shown + " " * max(width - cell_len(shown), 0)


def _yes_or_no(label: str, is_there: bool) -> str:
    """Return the answer for a single label, whose probability stands next to it."""
    return f"{label}: {'yes' if is_there else 'no'}"


def _back_off(prediction: Prediction) -> str:
    """Return the most specific class or group that reaches the threshold, with its probability."""
    best = prediction.back_off()
    return "(none)" if best is None else f"{best.name} {100 * best.confidence:.1f}"


def _say_error(image: str, error: OtptError) -> None:
    say(str(error) if image in str(error) else f"{image}: {error}")


def _print_flags(flags: Iterable[str]) -> None:
    for flag in dict.fromkeys(flags):
        show(f"* {flag}: {FLAGS[flag]}" if flag in FLAGS else f"* {flag}")
