"""What ``otpt predict`` answers: as a line per image, as a table of the best classes, as JSON, or in a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.cells import cell_len, set_cell_size

from otpt.cli.notes import say
from otpt.cli.terminal import Column, print_columns, terminal_width
from otpt.errors import OtptError

if TYPE_CHECKING:
    from otpt.cli.predicting.inputs import Given
    from otpt.prediction import Prediction

Answer: TypeAlias = "dict[str, Prediction] | OtptError"

FLAGS = {
    "init-kept": "the gradient was not finite, so the initial prompt was kept",
    "abstained": "the votes leave open which class comes first",
    "rejected": "the image probably shows none of the classes",
}


def rows_of(image: Given, answer: Answer, top: int) -> list[dict[str, Any]]:
    """An answer as plain data, a row per method: what ``--json`` prints and what files hold."""
    if isinstance(answer, OtptError):
        return [{"image": str(image), "error": str(answer)}]
    return [
        {
            "image": str(image),
            "method": method,
            "label": prediction.label,
            "confidence": prediction.confidence,
            "top": [{"label": label, "probability": probability} for label, probability in prediction.top(top)],
            "flags": list(prediction.flags),
            "extras": dict(prediction.extras),
            **_asked(prediction),
        }
        for method, prediction in answer.items()
    ]


def _asked(prediction: Prediction) -> dict[str, Any]:
    """What was asked of a calibration; nothing, where nothing was."""
    found: dict[str, Any] = {} if prediction.set is None else {"set": list(prediction.set)}
    if prediction.rejected is not None:
        found["rejected"] = prediction.rejected
    return found if prediction.abstained is None else {**found, "abstained": prediction.abstained}


class Writer:
    """Is called with each image and its answer, and closed after the last one."""

    def __call__(self, image: Given, answer: Answer) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is left to do, for most."""


class Json(Writer):
    """One object per image and method, each on a line."""

    def __init__(self, top: int) -> None:
        self._top = top

    def __call__(self, image: Given, answer: Answer) -> None:
        for row in rows_of(image, answer, self._top):
            print(json.dumps(row, ensure_ascii=False), flush=True)


class Details(Writer):
    """A table of the best classes for each image."""

    def __init__(self, top: int) -> None:
        self._top = top

    def __call__(self, image: Given, answer: Answer) -> None:
        if isinstance(answer, OtptError):
            say(str(answer))
            return
        tops = {method: prediction.top(self._top) for method, prediction in answer.items()}
        ranks = range(1, 1 + len(next(iter(tops.values()))))
        styles = ["" if rank == 1 else "dim" for rank in ranks]
        columns = [Column("", [str(rank) for rank in ranks], styles=styles)]
        for method, own in tops.items():
            title = method + (" *" if answer[method].flags else "")
            columns.append(Column(title, [label for label, _ in own], is_name=True, styles=styles))
            columns.append(Column("%", [f"{100 * probability:.1f}" for _, probability in own], styles=styles))
        print(image)
        for part in _by_method(columns):
            print_columns(part)
        _print_flags([flag for prediction in answer.values() for flag in prediction.flags])
        for method, prediction in answer.items():
            if prediction.set is not None:
                print(f"{method}: one of {', '.join(prediction.set)}")
            if prediction.abstained:
                print(f"{method}: abstained, since its confidence is not above the threshold of the risk")
        print()


class Lines(Writer):
    """One line per image: file, label and confidence of each method."""

    def __init__(self, images: Sequence[Given], methods: Sequence[str], classes: Sequence[str]) -> None:
        self._methods = methods
        self._flags: dict[str, None] = {}
        self._file = max((cell_len(str(image)) for image in images), default=0)
        heads = methods if len(methods) > 1 else ()
        self._label = max((cell_len(name) for name in (*classes, *heads)), default=0) + len(_MARK)
        self._started = False

    def __call__(self, image: Given, answer: Answer) -> None:
        if isinstance(answer, OtptError):
            say(str(answer))
            return
        width = terminal_width()
        room = None if width is None else width - len(self._methods) * (self._label + 2 + _NUMBER + 2)
        if not self._started and len(self._methods) > 1 and (room is None or room >= _SHORTEST):
            self._print_line("", [(method, "%") for method in self._methods], room)
        self._started = True
        found = []
        for method in self._methods:
            prediction = answer[method]
            self._flags |= dict.fromkeys(prediction.flags)
            label = _answered(prediction) + _MARK * bool(prediction.flags)
            found.append((label, f"{100 * prediction.confidence:.1f}"))
        if room is None or room >= _SHORTEST:
            self._print_line(str(image), found, room)
        else:  # so many methods, or such long names, that they stand below the file
            named = zip(self._methods, found, strict=True)
            print("\n".join([str(image), *(f"  {method}: {label} {number}" for method, (label, number) in named)]))

    def close(self) -> None:
        """What the marks mean."""
        _print_flags(list(self._flags))

    def _print_line(self, file: str, answers: Sequence[tuple[str, str]], room: int | None) -> None:
        wide = self._file if room is None else min(self._file, room)
        cells = [f"{_padded(name, self._label)}  {number:>{_NUMBER}}" for name, number in answers]
        print("  ".join([_padded(_shortened(file, wide), wide), *cells]), flush=True)


def _answered(prediction: Prediction) -> str:
    """The label, the set of labels, or that there is none."""
    if prediction.abstained:
        return "(abstained)"
    return prediction.label if prediction.set is None else " | ".join(prediction.set) or "(none)"


_MARK = " *"
_NUMBER = 5
_SHORTEST = 16
"""Characters of a file's name that a line keeps."""


def _shortened(name: str, width: int) -> str:
    """The end of a name that is too long, which tells it from its neighbours."""
    return name if cell_len(name) <= width else f"…{set_cell_size(name[::-1], width - 1)[::-1]}"


def _padded(text: str, width: int) -> str:
    return text + " " * max(width - cell_len(text), 0)


def _by_method(columns: list[Column]) -> list[list[Column]]:
    """The rank with a pair of columns for each method, as many pairs beside each other as fit."""
    width, first, pairs = terminal_width(), columns[0], columns[1:]
    parts: list[list[Column]] = [[first]]
    for at in range(0, len(pairs), 2):
        pair = pairs[at : at + 2]
        used = sum(column.width + 2 for column in (*parts[-1], *pair)) - 2
        if width is not None and len(parts[-1]) > 1 and used > width:
            parts.append([first])
        parts[-1] += pair
    return parts


def _print_flags(flags: Sequence[str]) -> None:
    for flag in dict.fromkeys(flags):
        print(f"* {flag}: {FLAGS[flag]}")
