"""``otpt predict IMAGE… --classes …``: classify images, with a confidence."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias

from otpt.cli import options as shared
from otpt.data.dataset import IMAGE_SUFFIXES
from otpt.errors import OtptError
from otpt.images.urls import is_url

if TYPE_CHECKING:
    from otpt.prediction import Prediction

_FLAGS = {
    "init-kept": "the gradient was not finite, so the initial prompt was kept",
    "abstained": "the votes leave open which class comes first",
}

STANDARD_INPUT = "-"

Answer: TypeAlias = "dict[str, Prediction] | OtptError"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``predict``."""
    parser.description = (
        "Classify images among the given classes, with any method. Exit code 2 if an image could not "
        "be read; the others are still predicted."
    )
    parser.add_argument(
        "images",
        nargs="+",
        metavar="IMAGE",
        help="image files, folders of them, http(s) addresses, or - for standard input",
    )
    parser.add_argument("--classes", nargs="+", metavar="NAME", help="class names")
    parser.add_argument("--classes-file", type=Path, metavar="FILE", help="class names, one per line")
    parser.add_argument("--allow-duplicates", action="store_true", help="accept duplicate class names")
    parser.add_argument(
        "--top", type=int, default=5, metavar="K", help="classes to show per image (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per image and method")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="threads that decode and augment (default: one per core)"
    )
    shared.add_method_options(parser)
    shared.add_model_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Predict every image that can be read."""
    from otpt.evaluation.attributes import find_attributes

    shared.load_plugins(options)
    methods = shared.chosen_methods(options)
    if options.top < 1:
        raise OtptError(f"--top was given {options.top}; expected 1 or more.")
    paths = list(_expand(options.images))
    names = _class_names(options)
    attributes = find_attributes(options.attributes, "images", names, methods)
    classifier = shared.chosen_classifier(options, methods)
    classifier.set_classes(
        names, shared.chosen_prompt(options), allow_duplicates=options.allow_duplicates, attributes=attributes
    )
    answers = classifier.stream(map(_opened, paths), methods, workers=options.workers)
    failed = 0
    for path, answer in _with_progress(zip(paths, answers, strict=True), len(paths)):
        if isinstance(answer, OtptError):
            failed += 1
        if options.json:
            _print_json(path, answer, options.top)
        else:
            _print_table(path, answer, options.top)
    if failed:
        print(f"otpt: {failed} of {len(paths)} images could not be read", file=sys.stderr)
    return 2 if failed else 0


def _opened(given: str | Path) -> str | Path | IO[bytes]:
    return sys.stdin.buffer if given == STANDARD_INPUT else given


def _expand(given: Sequence[str]) -> Iterator[str | Path]:
    """Files and addresses as they are, folders as the images in them (sorted, sub-folders included)."""
    if given.count(STANDARD_INPUT) > 1:
        raise OtptError("Standard input, -, was given twice; it holds one image.")
    for name in given:
        path = Path(name)
        if not path.is_dir():
            yield name if name == STANDARD_INPUT or is_url(name) else path
            continue
        try:
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
        except OSError as error:
            raise OtptError(f"Cannot read the folder {str(path)!r}: {error.strerror or error}.") from None
        if not inside:
            raise OtptError(f"The folder {str(path)!r} holds no images ({', '.join(sorted(IMAGE_SUFFIXES))}).")
        yield from inside


def _class_names(options: argparse.Namespace) -> list[str]:
    if options.classes and options.classes_file:
        raise OtptError("Both --classes and --classes-file were given; expected one of them.")
    if options.classes_file:
        return shared.read_lines(options.classes_file, "class file")
    if not options.classes:
        raise OtptError(
            "No class names were given; name at least two after --classes, or a file of them after --classes-file."
        )
    for name in options.classes:
        if Path(name).suffix.lower() in IMAGE_SUFFIXES and Path(name).is_file():
            raise OtptError(f"The class name {name!r} is an image file; name the images before --classes.")
    return list(options.classes)


def _with_progress(answers: Iterator[tuple[str | Path, Answer]], total: int) -> Iterator[tuple[str | Path, Answer]]:
    """On a terminal, a bar with rate and time left below what is printed."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if total < 2 or not console.is_terminal:
        yield from answers
        return
    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
    ]
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task("images", total=total, rate="")
        for answer in answers:
            yield answer
            progress.advance(task)
            speed = progress.tasks[task].speed
            progress.update(task, rate=f"{1 / speed:.2f} s each" if speed else "")


def _print_json(path: str | Path, answer: Answer, top: int) -> None:
    if isinstance(answer, OtptError):
        print(json.dumps({"image": str(path), "error": str(answer)}, ensure_ascii=False))
        return
    for method, prediction in answer.items():
        row = {
            "image": str(path),
            "method": method,
            "label": prediction.label,
            "confidence": prediction.confidence,
            "top": [{"label": label, "probability": probability} for label, probability in prediction.top(top)],
            "flags": list(prediction.flags),
            "extras": dict(prediction.extras),
        }
        print(json.dumps(row, ensure_ascii=False), flush=True)


def _print_table(path: str | Path, answer: Answer, top: int) -> None:
    from rich.console import Console
    from rich.table import Table

    if isinstance(answer, OtptError):
        print(f"otpt: {answer}", file=sys.stderr)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for method, prediction in answer.items():
        table.add_column(method + (" *" if prediction.flags else ""), overflow="fold")
        table.add_column("%", justify="right")
    columns = [prediction.top(top) for prediction in answer.values()]
    for rank, row in enumerate(zip(*columns, strict=True), start=1):
        cells = [cell for label, probability in row for cell in (label, f"{100 * probability:.1f}")]
        table.add_row(str(rank), *cells, style="" if rank == 1 else "dim")
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(str(path), style="bold")
    console.print(table)
    for flag in dict.fromkeys(flag for prediction in answer.values() for flag in prediction.flags):
        print(f"* {flag}: {_FLAGS[flag]}")
    print()
