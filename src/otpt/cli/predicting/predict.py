"""``otpt predict IMAGE… --classes …``: classify images, with a confidence."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from otpt.cli.notes import say, tell_many_rejected
from otpt.cli.options.calibration import add_calibration_options, chosen_calibrations
from otpt.cli.options.class_names import add_classes_option, chosen_classes
from otpt.cli.options.classifier import add_reject_options, chosen_classifier
from otpt.cli.options.methods import add_method_options, chosen_methods, chosen_prompt, load_plugins
from otpt.cli.options.models import add_model_options
from otpt.cli.options.spellings import add_old_spelling, add_out_option, add_threads_option, use_threads
from otpt.cli.predicting.inputs import Given, collect_images, opened
from otpt.errors import OtptError

if TYPE_CHECKING:
    from otpt.cli.predicting.predictions import Answer, Writer
    from otpt.data.classes import ClassList
    from otpt.methods import Method

TOP = 5
"""Classes that are shown of an image if nobody says how many."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``predict``."""
    parser.description = (
        "Classify images among the given classes, with any method. Of one image the best classes are shown, of several "
        "a line each (--top for more). Exit code 2 if an image could not be read; the others are still predicted."
    )
    parser.add_argument(
        "images",
        nargs="*",
        metavar="IMAGE",
        help="image files, folders of them, http(s) addresses, or - for standard input",
    )
    add_classes_option(parser, words="class names, a comma list, or @FILE with one per line")
    add_old_spelling(parser, "--classes-file", "--classes @FILE", dest="classes_file", type=Path)
    parser.add_argument("--allow-duplicates", action="store_true", help="accept duplicate class names")
    parser.add_argument(
        "--top", type=int, metavar="K", help=f"the K best classes of each image (default: {TOP} of a single image)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per image and method")
    add_out_option(parser, metavar="FILE", words="write the predictions to a file: .csv, .parquet or .jsonl")
    add_threads_option(parser)
    add_old_spelling(parser, "--workers", "--threads (--workers are processes)", dest="threads", type=int)
    add_reject_options(parser)
    add_method_options(parser)
    add_calibration_options(parser)
    add_model_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Predict every image that can be read."""
    from otpt.evaluation.sources import find_attributes

    images = collect_images(options)
    load_plugins(options)
    methods = chosen_methods(options)
    use_threads(options.threads)
    if options.top is not None and options.top < 1:
        raise OtptError(f"--top was given {options.top}; expected 1 or more.")
    listed = _class_list(options)
    names = list(listed.names)
    show = _writers(options, images, methods, names)
    attributes = find_attributes(options.attributes, "images", names, methods)
    calibrations = chosen_calibrations(options)
    classifier = chosen_classifier(options, methods, listed)
    classifier.set_classes(
        names, chosen_prompt(options, listed), allow_duplicates=options.allow_duplicates, attributes=attributes
    )
    classifier.use_calibrations(calibrations, methods)
    answers = classifier.stream(map(opened, images), methods, workers=options.threads)
    failed = rejected = 0
    try:
        for image, answer in _with_progress(zip(images, answers, strict=True), len(images)):
            failed += isinstance(answer, OtptError)
            rejected += not isinstance(answer, OtptError) and bool(next(iter(answer.values())).rejected)
            for each in show:
                each(image, answer)
    finally:
        for each in show:
            each.close()
    tell_many_rejected(rejected, len(images) - failed)
    if failed:
        say(f"{failed} of {len(images)} images could not be read")
    return 2 if failed else 0


def _writers(
    options: argparse.Namespace, images: Sequence[Given], methods: Sequence[Method], names: Sequence[str]
) -> list[Writer]:
    """What is done with each answer."""
    from otpt.cli.predicting.prediction_files import PredictionFile
    from otpt.cli.predicting.predictions import Details, Json, Lines

    found: list[Writer] = []
    if options.out is not None:
        # standard output is for the answers alone, if a program reads them
        found.append(PredictionFile(options.out, options.top, say if options.json else print))
    if options.json:
        found.append(Json(options.top or TOP))
    elif options.out is None and (options.top is not None or len(images) == 1):
        found.append(Details(options.top or TOP))
    elif options.out is None:
        found.append(Lines(images, [method.name for method in methods], names))
    return found


def _class_list(options: argparse.Namespace) -> ClassList:
    from otpt.data.classes import read_class_list

    if options.classes and options.classes_file:
        raise OtptError("Both --classes and --classes-file were given; expected one of them.")
    if options.classes_file:
        return read_class_list(options.classes_file, unique=False)
    listed = chosen_classes(options, unique=False) if options.classes else None
    if listed is None:
        raise OtptError("No class names were given; name at least two after --classes, or a file of them as @FILE.")
    return listed


def _with_progress(answers: Iterator[tuple[Given, Answer]], total: int) -> Iterator[tuple[Given, Answer]]:
    """On a terminal, a bar with rate and time left below what is printed."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if total < 2 or not console.is_terminal:
        yield from answers
        return
    shared_screen = sys.stdout.isatty()  # else what is printed belongs to a file or a pipe, not above the bar
    columns: list[ProgressColumn] = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
    ]
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, redirect_stdout=shared_screen
    ) as progress:
        task = progress.add_task("images", total=total, rate="")
        for answer in answers:
            yield answer
            progress.advance(task)
            speed = progress.tasks[task].speed
            progress.update(task, rate=f"{1 / speed:.2f} s each" if speed else "")
