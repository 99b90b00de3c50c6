"""``otpt predict cat.jpg --classes cat dog``: classify images."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO, Annotated, TypeVar

from otpt._version import __version__
from otpt.cli import options as o
from otpt.cli.app import STANDARD_INPUT
from otpt.cli.terminal import note, plural, say
from otpt.errors import OtptError, cannot_read
from otpt.files import csv_cell
from otpt.settings import DEFAULT_METHOD

_FEW = 20
"""Number of images below which the share of rejected images is not commented on."""

_LINE_SECONDS = 60.0

Image = str | Path
"""A file, an address, or "<stdin>"."""
T = TypeVar("T")


def predict(
    *images: Annotated[
        str, o.option("image files, folders, http(s) addresses, or - for standard input", metavar="IMAGE")
    ],
    classes: o.Classes = None,
    methods: o.Methods = None,
    top: Annotated[int | None, o.option("best classes per image (default: 5 for a single image)", metavar="K")] = None,
    out: Annotated[
        Path | None,
        o.out("write to a .csv, .jsonl or .parquet file, or a folder of Parquet parts"),
    ] = None,
    overwrite: Annotated[bool, o.option("start the file of --out again")] = False,
    json: Annotated[bool, o.option("print one JSON object per image and method")] = False,
    seed: o.Seed = None,
    threads: o.Threads = None,
    allow_duplicates: Annotated[bool, o.setting("allow_duplicates")] = False,
    method: o.MethodOptions = o.MethodOptions(),
    model: o.ModelOptions = o.ModelOptions(),
    calibration: o.CalibrationOptions = o.CalibrationOptions(),
) -> int:
    """Classify images among the given classes. For one image the best classes are printed, for several one line each.
    With --out, rows are written as they are made, and the same command continues a stopped job. Exit code 2 if an image
    could not be read; the others are still predicted."""
    found = collect_images(images)
    from otpt.cli.prediction_file import PredictionFile, check_suffix

    if out is not None:
        check_suffix(out)
    if top is not None and top < 1:
        raise OtptError(f"--top was given {top}; expected 1 or more.")
    listed = o.read_classes(classes, unique=False)
    if listed is None:
        raise OtptError("No class names were given; name at least two after --classes, or write --classes @FILE.")
    from otpt.cli.predictions import make_writers, rows_of

    chosen = method.methods(methods or [DEFAULT_METHOD])
    names = [each.name for each in chosen]
    writers = make_writers(found, names, listed.names, to_file=out is not None, as_json=json, top=top)
    o.use_threads(threads)
    # what is wrong with files and names is reported before a large model is loaded
    from otpt.evaluation.settings import find_attributes, find_contexts

    attributes = find_attributes(method.attributes, "images", listed.names, chosen)
    contexts = find_contexts(method.context or (), "images", chosen)
    calibrations = calibration.read()
    inits = method.inits(chosen)
    prompt = method.context_prompt(listed.prompt)
    recipe = method.recipe()
    from otpt.classifier import load

    classifier = load(
        model.backbone,
        chosen[0],
        device=model.device,
        precision=model.precision,
        compile=model.compile,
        architecture=model.architecture,
        quick_gelu=model.quick_gelu,
        family=method.family or listed.family or "fine-grained",
        views=replace(recipe, augmix=next(x for x in (method.augmix, listed.augmix, True) if x is not None)),
        seed=seed or 0,
        official_precision=bool(method.official_precision),
        contexts=list(contexts.values()),
        **calibration.rejection(),
        **inits,
    )
    classifier.set_classes(list(listed.names), prompt, allow_duplicates=allow_duplicates, attributes=attributes)
    classifier.use_calibrations(calibrations, chosen)
    file = None
    if out is not None:
        job = {
            "version": __version__,
            "backbone": classifier.backbone.fingerprint,
            "precision": model.precision,
            "methods": names,
            "classes": list(listed.names),
            **classifier.settings.model_dump(mode="json", exclude={"methods", "classes"}),
            "top": top,
        }
        file = PredictionFile(out, job, methods=len(names), top=top, overwrite=overwrite)
        _check_same_images(file.done, found, out)
    waiting = found[len(file.done) :] if file else found
    if file and file.done:
        note(f"{plural(len(file.done), 'image')} of {len(found)} are in {str(out)!r} already.")
    answers = classifier.stream(map(_open, waiting), chosen, workers=threads)
    failed, rejected = file.failed if file else 0, 0
    with ExitStack() as stack:  # what is finished is also written after Ctrl-C and SIGTERM
        if file:
            stack.callback(file.flush, last=True)
        for each in writers:
            stack.callback(each.close)
        for image, answer in with_progress(zip(waiting, answers, strict=True), len(waiting)):
            if isinstance(answer, OtptError):
                failed += 1
            else:
                rejected += bool(next(iter(answer.values())).rejected)
            for each in writers:
                each(image, answer)
            if file:
                file(rows_of(image, answer, top or 1))
    if file:
        file.finish()
        read = len(found) - failed
        share = plural(len(found), "image") if not failed else f"{read} of {plural(len(found), 'image')}"
        text = f"The predictions of {share} are in {str(out)!r}."
        if not read:
            text = f"No image could be read; the reasons are in {str(out)!r}."
        (say if json else print)(text)
    if len(found) - failed >= _FEW and 2 * rejected > len(found) - failed:
        note(
            f"{rejected} of {plural(len(found) - failed, 'image')} are marked as none of the classes; if that is "
            "wrong, choose another threshold with --reject-threshold, or another score with --reject."
        )
    if failed:
        say(f"{failed} of {len(found)} images could not be read")
    return 2 if failed else 0


def _check_same_images(done: Sequence[str], found: Sequence[Image], out: Path) -> None:
    """The images on disk must be the first of those that are asked for."""
    asked = [csv_cell(str(image)) if out.suffix.lower() == ".csv" else str(image) for image in found[: len(done)]]
    if list(done) != asked:
        other = next((pair for pair in zip(done, asked, strict=False) if pair[0] != pair[1]), (done[-1], "no image"))
        raise OtptError(
            f"{str(out)!r} holds predictions of other images ({other[0]!r} where {other[1]!r} is asked for); choose "
            "another --out, or --overwrite."
        )


def collect_images(words: Sequence[str]) -> list[Image]:
    """Files and addresses in order, folders as the images in them (sorted, sub-folders included).

    Raises:
        OtptError: if a file or folder does not exist.
    """
    if not words:
        raise OtptError(
            "No IMAGE was given; write image files, folders, http(s) addresses or - right after 'otpt predict'."
        )
    if words.count(STANDARD_INPUT) > 1:
        raise OtptError("Standard input, -, was given twice; it holds one image.")
    return [image for word in words for image in _expand(word)]


def _expand(word: str) -> Iterator[Image]:
    path = Path(os.path.expanduser(word))
    if word == STANDARD_INPUT or word.startswith(("http://", "https://")):
        yield word
    elif not os.path.lexists(path):
        raise OtptError(f"There is no image or folder {word!r}; check the path.")
    elif not path.is_dir():
        yield path
    else:
        from otpt.data.dataset import IMAGE_SUFFIXES

        try:
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
        except OSError as error:
            raise cannot_read("folder", path, error) from None
        if not inside:
            raise OtptError(f"The folder {str(path)!r} holds no images ({', '.join(sorted(IMAGE_SUFFIXES))}).")
        yield from inside


def _open(image: Image) -> Image | IO[bytes]:
    return sys.stdin.buffer if image == STANDARD_INPUT else image


def with_progress(answers: Iterator[T], total: int) -> Iterator[T]:
    """Show a bar with rate and time left on a terminal; elsewhere a line a minute on standard error."""
    from tqdm.auto import tqdm

    if total < 2:
        yield from answers
    elif sys.stderr.isatty():
        yield from tqdm(answers, total=total, desc="images", unit="image", leave=False, dynamic_ncols=True)
    else:
        begun = said = time.monotonic()
        for done, answer in enumerate(answers, start=1):
            yield answer
            if (now := time.monotonic()) - said >= _LINE_SECONDS and done < total:
                rate, said = done / (now - begun), now
                say(f"{done} of {total} images, {rate:.2f} per second, {_duration((total - done) / rate)} left")


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
