"""``otpt predict cat.jpg --classes cat dog``: classify images."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from otpt.cli import options as o
from otpt.cli.terminal import note, plural, say
from otpt.errors import OtptError
from otpt.settings import DEFAULT_METHOD

if TYPE_CHECKING:
    from otpt.bulk import ClassifierJob, Workers
    from otpt.data.sources import Source

_FEW = 20
"""Number of images below which the share of rejected images is not commented on."""
_SHOWN = 100
"""Number of images whose names decide the width of a column."""
_LINE_SECONDS = 60.0
FEATURES_METHOD = "zero-shot"
"""Default method for files of features, which hold one view."""

T = TypeVar("T")

Images = Annotated[
    str,
    o.option(
        "image files, folders, patterns, @LIST files, tar shards, .parquet, .arrow or .csv tables, hf:NAME, addresses "
        "(https://, s3://, gs://, hf:// …), features of 'otpt embed', or - for standard input",
        metavar="IMAGE",
    ),
]
Overwrite = Annotated[bool, o.option("start the file of --out again")]
Column = Annotated[str | None, o.option("column of tables that holds bytes, paths or addresses of images")]
Split = Annotated[str, o.option("split of Hugging Face data sets")]


def predict(
    *images: Images,
    classes: o.Classes = None,
    methods: o.Methods = None,
    top: Annotated[int | None, o.option("best classes per image (default: 5 for a single image)", metavar="K")] = None,
    out: Annotated[
        str | None,
        o.out("write to a .csv, .jsonl or .parquet file, or a folder of Parquet parts; the latter two also remote"),
    ] = None,
    overwrite: Overwrite = False,
    json: Annotated[bool, o.option("print one JSON object per image and method")] = False,
    column: Column = None,
    split: Split = "test",
    seed: o.Seed = None,
    threads: o.Threads = None,
    workers: o.Workers = None,
    allow_duplicates: Annotated[bool, o.setting("allow_duplicates")] = False,
    method: o.MethodOptions = o.MethodOptions(),
    model: o.ModelOptions = o.ModelOptions(),
    calibration: o.CalibrationOptions = o.CalibrationOptions(),
    ray: o.RayOptions = o.RayOptions(),
) -> int:
    """Classify images among the given classes. For one image the best classes are printed, for several one line each.
    With --out, finished rows are written at once, and the same command continues a stopped job. Exit code 2 if an image
    could not be read; the others are still predicted.

    otpt predict cat.jpg --classes cat dog "red panda"
    otpt predict photos/ --classes @names.txt --methods o-tpt --out predictions.csv
    """
    from otpt.cli.prediction_file import PredictionFile, check_output

    if out is not None:
        check_output(out)
    if top is not None and top < 1:
        raise OtptError(f"--top was given {top}; expected 1 or more.")
    listed = o.read_classes(classes, unique=False)
    if listed is None:
        raise OtptError("No class names were given; name at least two after --classes, or write --classes @FILE.")
    # what is wrong with images, files and names is reported before a large model is loaded
    source = open_images(images, column, split)
    features = source.has_features
    from otpt.bulk import ClassifierJob
    from otpt.cli.predictions import make_writers, rows_of
    from otpt.data.sources import SourceError
    from otpt.evaluation.settings import find_attributes, find_contexts
    from otpt.methods import refuse_views

    chosen = method.methods(methods or [FEATURES_METHOD if features else DEFAULT_METHOD])
    if features:
        refuse_views(chosen, images[0])
    names = [each.name for each in chosen]
    ids = (each[0] for each in source.features()) if features else (item.id for item in source)
    shown = [] if out is not None else list(islice(ids, _SHOWN))
    writers = make_writers(shown, names, listed.names, to_file=out is not None, as_json=json, top=top)
    o.use_threads(threads)
    attributes = find_attributes(method.attributes, "images", listed.names, chosen)
    contexts = find_contexts(method.context or (), "images", chosen)
    recipe = method.recipe()
    job = ClassifierJob(
        model.backbone,
        chosen,
        listed.names,
        {
            "device": model.device,
            "precision": model.precision,
            "compile": model.compile,
            "architecture": model.architecture,
            "quick_gelu": model.quick_gelu,
            "family": method.family or listed.family or "fine-grained",
            "views": replace(recipe, augmix=next(x for x in (method.augmix, listed.augmix, True) if x is not None)),
            "seed": seed or 0,
            "official_precision": bool(method.official_precision),
            "contexts": list(contexts.values()),
            **calibration.rejection(),
            **method.inits(chosen),
        },
        {
            "prompt": method.context_prompt(listed.prompt),
            "allow_duplicates": allow_duplicates,
            "attributes": attributes,
        },
        calibration.read(),
        [path.absolute() for path in method.plugin],
    )
    failed, rejected, total = 0, 0, 0
    with ExitStack() as stack:  # what is finished is also written after Ctrl-C and SIGTERM
        engine = _start(job, source, workers, threads, ray, stack)
        rows: Iterator[Any] = source.features() if features else iter(source)
        file = None
        if out is not None:
            file = PredictionFile(out, {**engine.facts(), "top": top}, methods=len(names), top=top, overwrite=overwrite)
            stack.callback(file.close)
            total = file.resume(item.id for item in rows)
            failed = file.failed
            stack.callback(file.flush, last=True)
        if total:
            note(f"{plural(total, 'image')} are in {out!r} already.")
        for each in writers:
            stack.callback(each.close)
        counter = Counter(source, total)
        for image, answer in with_progress(named_answers(engine, rows), counter):
            total += 1
            if isinstance(answer, SourceError):
                raise answer
            if isinstance(answer, OtptError):
                failed = counter.failed = failed + 1
            else:
                rejected += bool(next(iter(answer.values())).rejected)
            for each in writers:
                each(image, answer)
            if file:
                file(rows_of(image, answer, top or 1))
        if file:
            file.finish()
    if out is not None:
        _report(out, total, failed, to_stderr=json)
    if total - failed >= _FEW and 2 * rejected > total - failed:
        note(
            f"{rejected} of {plural(total - failed, 'image')} are marked as none of the classes; if that is wrong, "
            "choose another threshold with --reject-threshold, or another score with --reject."
        )
    if failed:
        say(f"{failed} of {total} images could not be read")
    return 2 if failed else 0


def open_images(words: Sequence[str], column: str | None, split: str) -> Source:
    """The images that the words name.

    Raises:
        OtptError: if a file, folder or bucket does not exist or cannot be read.
    """
    if not words:
        raise OtptError(
            "No IMAGE was given; write image files, folders, http(s) addresses or - right after 'otpt predict'."
        )
    from otpt.data.sources import Source

    return Source(words, column=column, split=split)


def _start(
    job: ClassifierJob, source: Source, workers: int | None, threads: int | None, ray: o.RayOptions, stack: ExitStack
) -> Workers:
    """What predicts: this process, several, or actors of Ray."""
    from otpt.bulk import READERS, FeatureWorker, Processes, Worker

    engine: Any = ray.pick(workers, str(job.options["device"]))
    several = ray.engine == "ray" or getattr(engine, "workers", 1) > 1
    if source.has_features:
        if several:
            raise OtptError("Features are classified in this process; leave --engine ray and --workers out.")
        return FeatureWorker(job, source.metadata)
    if not several:
        return Worker(job, threads=threads, readers=READERS if source.is_remote else 0)
    if source.reads_standard_input:
        raise OtptError("Standard input, -, can only be read by this process; leave --engine ray and --workers out.")
    found: Any
    if ray.engine == "ray":
        from otpt.ray import RayActors

        found = RayActors(job, engine, threads)
    else:
        found = Processes(job, engine.workers, engine.devices, threads)
    stack.callback(found.close)
    return cast("Workers", found)


def named_answers(engine: Callable[[Iterator[Any]], Iterator[T]], images: Iterator[Any]) -> Iterator[tuple[str, T]]:
    """(name, answer) of each image; the engine takes images some way ahead.

    A source that cannot be read any further is reported after the answers of all images before.
    """
    taken: deque[str] = deque()
    problem: list[OtptError] = []

    def take() -> Iterator[Any]:
        try:
            for image in images:
                taken.append(image.id)
                yield image
        except OtptError as error:
            problem.append(error)

    for answer in engine(take()):
        yield taken.popleft(), answer
    if problem:
        raise problem[0]


def _report(out: str, total: int, failed: int, *, to_stderr: bool) -> None:
    share = plural(total, "image") if not failed else f"{total - failed} of {plural(total, 'image')}"
    text = f"The predictions of {share} are in {out!r}."
    if failed == total:
        text = f"No image could be read; the reasons are in {out!r}."
    (say if to_stderr else print)(text)


class Counter:
    """Progress of a job whose number of images is found out meanwhile, by a thread; None if it cannot be known."""

    def __init__(self, source: Source, done: int = 0) -> None:
        self.done, self.failed = done, 0
        self.total: int | None = None
        self._thread = threading.Thread(target=self._count, args=(source,), daemon=True)
        self._thread.start()
        self._thread.join(timeout=0.2)  # few images are counted at once

    def _count(self, source: Source) -> None:
        with suppress(OtptError):  # reported where the images are used
            self.total = source.count()

    def text(self, begun: float, before: int) -> str:
        """Number, rate, time left and failures, for a log."""
        rate = (self.done - before) / max(time.monotonic() - begun, 1e-9)
        left = "" if not self.total else f", {_duration(max(self.total - self.done, 0) / rate)} left"
        failures = f", {self.failed} could not be read" if self.failed else ""
        return f"{self.done}{f' of {self.total}' if self.total else ''} images, {rate:.2f} per second{left}{failures}"


def with_progress(answers: Iterator[T], counter: Counter) -> Iterator[T]:
    """Show a bar with rate, time left and failures on a terminal; elsewhere a line a minute on standard error."""
    if counter.total is not None and counter.total - counter.done < 2:
        yield from answers
    elif sys.stderr.isatty():
        from tqdm.auto import tqdm

        with tqdm(total=counter.total, initial=counter.done, unit="image", leave=False, dynamic_ncols=True) as bar:
            for answer in answers:
                yield answer
                bar.total = counter.total
                bar.set_postfix({"failed": counter.failed} if counter.failed else {}, refresh=False)
                bar.update()
    else:
        begun = said = time.monotonic()
        before = counter.done
        for answer in answers:
            yield answer
            counter.done += 1
            if time.monotonic() - said >= _LINE_SECONDS:
                said = time.monotonic()
                say(counter.text(begun, before))


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
