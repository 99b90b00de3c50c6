"""``otpt predict cat.jpg --classes cat dog``: classify images."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from otpt.cli import options as o
from otpt.cli.terminal import note, plural, say
from otpt.errors import OtptError
from otpt.settings import DEFAULT_METHOD, Settings

if TYPE_CHECKING:
    from otpt.bulk import ClassifierJob, Workers
    from otpt.classifier import Classifier
    from otpt.cli.prediction_file import PredictionFile
    from otpt.data.sources import Source
    from otpt.evaluation import Progress

_FEW = 20
"""Number of images below which the share of rejected images is not commented on."""
_SHOWN = 100
"""Number of images whose names decide the width of a column."""
FEATURES_METHOD = "zero-shot"
"""Default method for files of features, which hold one view."""

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
    explain: Annotated[
        bool, o.option("heat map of the label of each image, in the folder OUT-maps", group="Other questions")
    ] = False,
    questions: o.QuestionOptions = o.QuestionOptions(),
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
    otpt predict street.jpg --multi-label --classes car bicycle pedestrian --explain
    otpt predict parts/ --examples known-parts/
    """
    from otpt.cli.prediction_file import PredictionFile, check_output

    if out is not None:
        check_output(out)
    if top is not None and top < 1:
        raise OtptError(f"--top was given {top}; expected 1 or more.")
    listed = o.read_classes(classes, unique=False)
    if listed is None and questions.examples is None:
        raise OtptError("No class names were given; name some after --classes, or write --classes @FILE.")
    # what is wrong with images, files and names is reported before a large model is loaded
    source = open_images(images, column, split)
    features = source.has_features
    from otpt.bulk import ClassifierJob, Worker
    from otpt.cli.predictions import make_writers, rows_of
    from otpt.evaluation.settings import find_attributes, find_contexts
    from otpt.methods import refuse_views

    chosen = method.methods(methods or [FEATURES_METHOD if features else DEFAULT_METHOD])
    if features:
        refuse_views(chosen, images[0])
    o.use_threads(threads)
    given = method.settings(chosen)
    named = () if listed is None else listed.names
    settings = Settings(
        **{
            "prompts": None if listed is None or listed.prompt is None else (listed.prompt,),
            "family": (listed.family if listed else None) or "fine-grained",
            **given,
            **calibration.settings(),
            **o.given(questions),
            "methods": chosen,
            "classes": named,
            "allow_duplicates": allow_duplicates,
            "seed": seed or 0,
            "contexts": tuple(find_contexts(given.get("contexts", ()), "images", chosen).values()),
            "attributes": find_attributes(given.get("attributes"), "images", named, chosen),
        }
    )
    if listed is not None and listed.augmix is not None:
        settings = settings.replace(views=replace(settings.recipe, augmix=listed.augmix), budget=None)
    names = [each.name for each in settings.methods]
    shown = [] if out is not None else [image.id for image in islice(source, _SHOWN)]
    writers = make_writers(shown, names, settings.classes, to_file=out is not None, as_json=json, top=top)
    job = ClassifierJob(model.load, settings, model.device, [path.absolute() for path in method.plugin])
    failed, rejected, total = 0, 0, 0
    with ExitStack() as stack:  # what is finished is also written after Ctrl-C and SIGTERM
        engine = _start(job, source, workers, threads, ray, stack)
        if explain and (features or not isinstance(engine, Worker)):
            raise OtptError("--explain needs images and this process; leave --workers and --engine ray out.")
        file = None
        if out is not None:
            facts = {**engine.facts(), "top": top}
            file = stack.enter_context(PredictionFile(out, facts, top=top, overwrite=overwrite))
        for each in writers:
            stack.callback(each.close)
        for image, answer in named_answers(engine, source, file):
            total += 1
            if isinstance(answer, OtptError):
                failed += 1
            else:
                rejected += bool(next(iter(answer.values())).rejected)
            for each in writers:
                each(image, answer)
            if file:
                file(rows_of(image, answer, top or 1))
        if explain and isinstance(engine, Worker):
            _explain(engine.classifier, source, Path(f"{Path(out).with_suffix('') if out else 'otpt'}-maps"))
    if file:
        total, failed = file.done, file.failed
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


def _explain(classifier: Classifier, source: Source, folder: Path) -> None:
    """Write the heat map of each image that can be read; of several labels, of the most probable one."""
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for number, image in enumerate(source):
        with suppress(OtptError):  # reported with the predictions
            found = classifier.explain(image.read())
            found.save(folder / f"{number:04d} {Path(image.id).stem[:60]} - {found.label[:60].replace('/', ' ')}.png")
            count += 1
    print(f"The heat maps of {plural(count, 'image')} are in {str(folder)!r}.")


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

    engine: Any = ray.pick(workers, job.device)
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


def named_answers(
    engine: Callable[[Iterator[Any]], Iterator[Any]], source: Source, file: PredictionFile | None
) -> Iterator[tuple[str, Any]]:
    """(name, answer) of each image that is not in the file yet, with progress; the engine takes images some way ahead.

    A source that cannot be read any further is reported after the answers of all images before.
    """
    from otpt.cli.evaluate import make_progress
    from otpt.data.sources import SourceError

    images, done = iter(source), 0
    if file and (done := file.resume(image.id for image in images)):
        note(f"{plural(done, 'image')} are in {file.path!r} already.")
    taken: deque[str] = deque()
    problem: list[OtptError] = []

    def take() -> Iterator[Any]:
        try:
            for image in images:
                taken.append(image.id)
                yield image
        except OtptError as error:
            problem.append(error)

    with make_progress() as progress:
        _count(source, progress, done)
        progress.failed = file.failed if file else 0
        for number, answer in enumerate(engine(take()), start=done + 1):
            if isinstance(answer, SourceError):
                raise answer
            progress.failed += isinstance(answer, OtptError)
            yield taken.popleft(), answer
            progress.update(number)
    if problem:
        raise problem[0]


def _count(source: Source, progress: Progress, done: int) -> None:
    """Begin with the number of images; a thread goes on counting if they are many."""
    found: list[int | None] = []

    def count() -> None:
        with suppress(OtptError):  # reported where the images are used
            found.append(source.count())
            progress.total = found[0]

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    thread.join(timeout=0.2)
    progress.start(done, found[0] if found else None, say_done=False)


def _report(out: str, total: int, failed: int, *, to_stderr: bool) -> None:
    share = plural(total, "image") if not failed else f"{total - failed} of {plural(total, 'image')}"
    text = f"The predictions of {share} are in {out!r}."
    if failed == total:
        text = f"No image could be read; the reasons are in {out!r}."
    (say if to_stderr else print)(text)
