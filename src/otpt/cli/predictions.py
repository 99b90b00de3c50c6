"""Output of ``otpt predict``: a line per image, a table of the best classes, JSON lines, or a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from otpt.bulk import Answer
from otpt.cli.terminal import print_table, say
from otpt.errors import OtptError
from otpt.prediction import Prediction

TOP = 5
"""Default for ``--top`` with a single image."""
FLAGS = {
    "init-kept": "the gradient was not finite, so the initial prompt was used",
    "abstained": "the votes do not decide which class comes first",
    "rejected": "the image probably shows none of the classes",
}


class Writer(Protocol):
    """Called with each image and its answer, and closed after the last one."""

    def __call__(self, image: str, answer: Answer) -> None: ...
    def close(self) -> None: ...


def make_writers(
    images: Sequence[str],
    methods: Sequence[str],
    classes: Sequence[str],
    *,
    to_file: bool,
    as_json: bool,
    top: int | None,
) -> list[Writer]:
    """What is printed of each answer: JSON lines; or, without a file, a table or a line per image."""
    found: list[Writer] = []
    if as_json:
        found.append(JsonLines(top or TOP))
    elif not to_file and (top is not None or len(images) == 1):
        found.append(Tables(top or TOP))
    elif not to_file:
        found.append(Lines(images, methods, classes))
    return found


def rows_of(image: str, answer: Answer, top: int) -> list[dict[str, Any]]:
    """An answer as plain data, one row per method: what ``--json`` prints and files hold."""
    if isinstance(answer, OtptError):
        return [{"image": image, "error": str(answer)}]
    return [
        {
            "image": image,
            "method": method,
            "label": prediction.label,
            "confidence": prediction.confidence,
            "top": [{"label": label, "probability": probability} for label, probability in prediction.top(top)],
            "flags": list(prediction.flags),
            "extras": dict(prediction.extras),
            **_requested(prediction),
        }
        for method, prediction in answer.items()
    ]


def _requested(prediction: Prediction) -> dict[str, Any]:
    """Prediction set, abstention, rejection and groups, each only if it was asked for."""
    found = {
        "set": None if prediction.set is None else list(prediction.set),
        "abstained": prediction.abstained,
        "rejected": prediction.rejected,
        "groups": prediction.groups,
    }
    return {name: value for name, value in found.items() if value is not None}


class JsonLines:
    """One object per image and method, each on a line."""

    def __init__(self, top: int) -> None:
        self._top = top

    def __call__(self, image: str, answer: Answer) -> None:
        for row in rows_of(image, answer, self._top):
            print(json.dumps(row, ensure_ascii=False), flush=True)

    def close(self) -> None:
        """Nothing is left to do."""


class Tables:
    """A table of the best classes for each image."""

    def __init__(self, top: int) -> None:
        self._top = top

    def __call__(self, image: str, answer: Answer) -> None:
        if isinstance(answer, OtptError):
            say(_error_of(image, answer))
            return
        print(image)
        for method, prediction in answer.items():
            best = enumerate(prediction.top(self._top), start=1)
            rows = [(str(rank), label, f"{100 * probability:.1f}") for rank, (label, probability) in best]
            print_table(("", method, "%"), rows, names=2)
            if prediction.set is not None:
                print(f"one of {', '.join(prediction.set) or 'no class'}")
            if prediction.abstained:
                print("abstained: the confidence is not above the threshold of the risk")
            _print_flags(prediction.flags)
        print()

    def close(self) -> None:
        """Nothing is left to do."""


class Lines:
    """One line per image: file, and label and confidence of each method."""

    def __init__(self, images: Sequence[str], methods: Sequence[str], classes: Sequence[str]) -> None:
        from rich.cells import cell_len

        self._cell_len = cell_len
        self._methods = methods
        self._flags: dict[str, None] = {}
        self._file = max((cell_len(image) for image in images), default=0)
        heads = methods if len(methods) > 1 else ()
        self._label = max((cell_len(name) for name in (*classes, *heads)), default=0) + 2
        if len(methods) > 1:
            self._print("", [(method, "%") for method in methods])

    def __call__(self, image: str, answer: Answer) -> None:
        if isinstance(answer, OtptError):
            say(_error_of(image, answer))
            return
        cells = []
        for prediction in (answer[method] for method in self._methods):
            self._flags |= dict.fromkeys(prediction.flags)
            cells.append((_label(prediction) + " *" * bool(prediction.flags), f"{100 * prediction.confidence:.1f}"))
        self._print(image, cells)

    def close(self) -> None:
        """Print what the marks mean."""
        _print_flags(self._flags)

    def _print(self, file: str, cells: Sequence[tuple[str, str]]) -> None:
        padded = [f"{self._pad(label, self._label)}  {number:>5}" for label, number in cells]
        print("  ".join([self._pad(file, self._file), *padded]), flush=True)

    def _pad(self, text: str, width: int) -> str:
        return text + " " * max(width - self._cell_len(text), 0)


def _error_of(image: str, error: OtptError) -> str:
    """The error with the image's name, which that of bytes does not hold."""
    return str(error) if image in str(error) else f"{image}: {error}"


def _label(prediction: Prediction) -> str:
    """The label, the prediction set, or that there is none."""
    if prediction.abstained:
        return "(abstained)"
    return prediction.label if prediction.set is None else " | ".join(prediction.set) or "(none)"


def _print_flags(flags: Mapping[str, None] | Sequence[str]) -> None:
    for flag in dict.fromkeys(flags):
        print(f"* {flag}: {FLAGS[flag]}")
