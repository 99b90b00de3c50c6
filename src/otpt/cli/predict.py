"""``otpt predict cat.jpg --classes cat dog`` and ``otpt embed IMAGES -o features.parquet``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

from otpt import bulk
from otpt.backbones.sources import DRAWINGS, PHOTOGRAPHS
from otpt.bulk import (
    Answer,
    ClassifierJob,
    EmbeddingJob,
    ImageWorker,
    Monitor,
    RowStore,
    check_output,
    check_ranked,
    uncertainty,
)
from otpt.bulk.ranking import PredictOptions
from otpt.classifier import Classifier
from otpt.cli import options as o
from otpt.cli.answers import TOP, BestClasses, JsonLines, OneLineEach, Printer, Silent
from otpt.cli.terminal import note, plural, say, show
from otpt.data import ClassList, open_source
from otpt.data.sources import FeatureRow, Source
from otpt.decision import Decision
from otpt.errors import OtptError
from otpt.escapes import file_name
from otpt.images import is_colourful, open_image
from otpt.methods import Task
from otpt.prediction import Failure
from otpt.views import ViewRecipe
from otpt.workers import InlinePool, PluginFiles, Pool

FEATURES_METHOD = "zero-shot"
"""Default method for files of features, which hold one view."""
_FEW = 20
"""Number of images below which the share of rejected images is not commented on."""
_SHOWN = 100
"""Number of images whose names decide the width of a column."""

Images = Annotated[
    str,
    o.option(
        "image files, folders, patterns, @LIST files, tar shards, .parquet, .arrow or .csv tables, hf:NAME, addresses "
        "(https://, s3://, gs://, hf:// …), data sets, features of 'otpt embed', or - for standard input",
        metavar="IMAGE",
    ),
]
Overwrite = Annotated[bool, o.option("start the file of --out again")]

_QUESTIONS = "Other questions"


@o.option_group("Options")
class QuestionOptions(o.Options):
    """What is asked, and by which methods."""

    classes: o.Classes = None
    methods: o.Methods = None
    seed: o.Seed = 0
    allow_duplicates: bool = False
    templates: o.Texts = None
    multi_label: Annotated[o.Flag, o.setting(Task, "multi_label", group=_QUESTIONS)] = None
    groups: Annotated[Path | None, o.setting(Task, "groups", group=_QUESTIONS, metavar="FILE")] = None
    examples: Annotated[Path | None, o.setting(Task, "examples", group=_QUESTIONS, metavar="FOLDER")] = None
    threshold: Annotated[float | None, o.setting(Decision, "threshold", group=_QUESTIONS)] = None
    within: Annotated[str | None, o.setting(Decision, "within", group=_QUESTIONS, metavar="GROUP")] = None

    def class_list(self, source: Source) -> ClassList | None:
        """Return the class list; ``OtptError`` if there are neither classes nor what they could be taken from."""
        class_list = o.read_classes(self.classes, unique=False)
        if class_list is None and len(source.datasets) == 1:
            (dataset,) = source.datasets.values()
            note(f"The classes are the {len(dataset.class_names)} of {dataset.name}.")
            return ClassList(dataset.class_names, dataset.class_names)
        if class_list is None and self.examples is None and self.groups is None:
            raise OtptError("No class names were given; name some after --classes, or write --classes @FILE.")
        return class_list

    def keywords(self) -> dict[str, object]:
        """Return the given fields of records."""
        values = super().keywords()
        if self.templates is not None:
            values["templates"] = o.read_templates(self.templates)
        return values


@o.option_group("Options")
class OutputOptions(o.Options):
    """What is shown and written."""

    top: Annotated[
        int | None, o.option("best classes per image (default: 5 for a single image)", at_least=1, metavar="K")
    ] = None
    out: Annotated[
        str | None,
        o.file_or_folder(
            "write to a .csv, .jsonl or .parquet file, or a folder of Parquet parts; the latter two also remote"
        ),
    ] = None
    overwrite: Overwrite = False
    json: Annotated[bool, o.option("print one JSON object per image and method")] = False
    sort: Annotated[
        Literal["images", "uncertain"] | None,
        o.option("order: of the images, or the least certain ones first (default: images; uncertain with --export)"),
    ] = None
    export: Annotated[
        Literal["label-studio"] | None,
        o.option("write --out FILE.json as tasks of Label Studio with predictions, and FILE.xml with its interface"),
    ] = None
    explain: Annotated[
        bool, o.option("heat map of the label of each image, in the folder OUT-maps", group=_QUESTIONS)
    ] = False

    @property
    def ranked(self) -> bool:
        """Whether the least certain images come first."""
        return self.sort == "uncertain" or self.export is not None

    def check(self) -> None:
        """Raise before any work for an output that cannot be written."""
        if self.export is not None:
            if self.out is None:
                raise OtptError("--export was given without --out; write --out tasks.json.")
            if self.sort == "images" or self.top is not None:
                raise OtptError("--export puts uncertain images first, with their labels; leave --sort and --top out.")
        if self.out is not None and self.ranked:
            check_ranked(self.out, self.export)
        elif self.out is not None:
            check_output(self.out)

    def printer(self, source: Source, job: ClassifierJob) -> Printer:
        """Return what prints answers: as JSON lines; or, without a file, as tables or lines."""
        several_labels = job.task.independent_labels
        if self.json:
            return JsonLines(self.top or TOP, several_labels=several_labels, ranked=self.ranked)
        if self.out is not None:
            return Silent()
        names = [image.id for image in islice(source, _SHOWN)]
        if self.top is not None or len(names) == 1:
            return BestClasses(self.top or TOP, several_labels=several_labels)
        methods = [method.name for method in job.methods]
        return OneLineEach(names, job.task.classes, methods, several_labels=several_labels)


@o.option_group("Options")
class SourceOptions(o.Options):
    """How images are found in tables and data sets."""

    column: o.Column = None
    split: Annotated[str, o.option("split of Hugging Face and registered data sets")] = "test"
    data: o.Data = None

    def open(self, words: Sequence[str]) -> Source:
        """Open the images; mistakes in their names are reported before a large model is loaded."""
        if not words:
            raise OtptError("No IMAGE was given; write image files, folders, addresses or - right after the command.")
        return open_source(*words, column=self.column, split=self.split, root=self.data)


@o.option_group("Options")
class MachineOptions(o.Options):
    """Where images are predicted."""

    threads: o.Threads = None
    workers: o.Workers = None
    ray: o.RayOptions = o.RayOptions()

    def open_pool(self, device: str, *, inline: bool = False) -> Pool:
        """Return the pool; ``inline``: this process, if nothing else is asked for."""
        return self.ray.open_pool(1 if inline and self.workers is None and self.ray.is_local else self.workers, device)


class NotingMonitor(Monitor):
    """Progress and notes on standard error."""

    def note(self, line: str) -> None:
        """See :meth:`Monitor.note`."""
        note(line)

    def resumed(self, store: RowStore) -> None:
        """See :meth:`Monitor.resumed`."""
        if store.done:
            note(f"{store.path!r} already holds {plural(store.done, 'image')}.")
        super().resumed(store)


class AnswerMonitor(NotingMonitor):
    """Print answers, and count those that are none of the classes.

    Args:
        printer: prints the answers.
    """

    def __init__(self, printer: Printer) -> None:
        super().__init__(log=say)
        self.printer = printer
        self.answers = 0
        self._rejected = 0

    def answered(self, image: str, answer: Answer) -> None:
        """See :meth:`Monitor.answered`."""
        self.answers += 1
        if not isinstance(answer, Failure):
            self._rejected += bool(next(iter(answer.values())).rejected)
        self.printer.print(image, answer)

    def note_rejected(self, readable: int) -> None:
        """Comment on the share of rejected images if it is more than a half."""
        if readable >= _FEW and 2 * self._rejected > readable:
            note(
                f"{self._rejected} of {plural(readable, 'image')} are marked as none of the classes; if that is wrong, "
                "choose another threshold with --reject-threshold, or another score with --reject."
            )


def predict(
    *images: Images,
    question: QuestionOptions = QuestionOptions(),
    output: OutputOptions = OutputOptions(),
    reading: SourceOptions = SourceOptions(),
    machine: MachineOptions = MachineOptions(),
    method: o.MethodOptions = o.MethodOptions(),
    model: o.ModelOptions = o.ModelOptions(),
    decision: o.DecisionOptions = o.DecisionOptions(),
) -> int:
    """Classify images among the given classes. For one image the best classes are printed, for several one line each.
    With --out, finished rows are written at once, and the same command continues a stopped job. Exit code 2 if an image
    could not be read; the others are still predicted.

    otpt predict cat.jpg --classes cat dog "red panda"
    otpt predict photos/ --classes @names.txt --methods o-tpt --out predictions.csv
    otpt predict street.jpg --multi-label --classes car bicycle pedestrian --explain
    otpt predict parts/ --examples known-parts/
    """
    output.check()
    source = reading.open(images)
    class_list = question.class_list(source)
    method.load_plugins()
    if source.has_features:
        question = replace(question, methods=question.methods or (FEATURES_METHOD,))
        model = replace(model, chosen=model.chosen or source.metadata.get("otpt.model"))
    task, protocol, records = method.read_records(class_list, {**question.keywords(), **decision.keywords()})
    plugins = PluginFiles(method.plugin)
    job = ClassifierJob(plugins, model.load, task, protocol, records, model.device, machine.threads)
    _note_photographs(source, model.backbone)
    pool = machine.open_pool(model.device, inline=output.explain)
    job = bulk.fit_job(job, source, pool)
    if output.explain and (source.has_features or not pool.inline):
        raise OtptError("--explain needs images and this process; leave --workers and --engine out.")
    o.use_threads(machine.threads)
    decision.note_promises(job.decision)
    monitor = AnswerMonitor(output.printer(source, job))
    with pool, closing(monitor.printer):
        classifier = _loaded_classifier(job, pool) if output.explain else None
        total = _predict(source, job, pool, output, monitor)
    if classifier is not None:
        _explain(classifier, source, _maps_folder(output.out))
    monitor.note_rejected(total - monitor.failed)
    return _say_failed(monitor.failed, total)


def _note_photographs(source: Source, backbone: str) -> None:
    """Tell users of the model of emoji about the model of photographs, if the first image may be a photograph."""
    looked_at_twice = not (source.reads_standard_input or source.is_remote or source.has_features or source.datasets)
    if backbone != DRAWINGS or not looked_at_twice:
        return
    with suppress(OtptError):  # reported with the predictions
        first = next(iter(source))
        if not isinstance(first, FeatureRow) and is_colourful(open_image(first.read())):
            note(f"{DRAWINGS} knows emoji only; for photographs use --backbone {PHOTOGRAPHS}.")


def _predict(source: Source, job: ClassifierJob, pool: Pool, output: OutputOptions, monitor: AnswerMonitor) -> int:
    """Predict, print and write all images; returns their number."""
    if output.out is None:
        answers = ((image.name, answer) for image, answer in bulk.run(job, source, pool, monitor))
        for name, answer in _least_certain_first(answers, job) if output.ranked else answers:
            monitor.answered(name, answer)
        return monitor.answers
    options: PredictOptions = {
        "pool": pool,
        "top": output.top,
        "overwrite": output.overwrite,
        "progress": monitor,
    }
    if output.ranked:
        result = bulk.rank(job, source, output.out, export=output.export, **options)
    else:
        result = bulk.predict(job, source, output.out, **options)
    (say if output.json else show)(_describe_file(output.out, result.images, result.failed))
    if output.export is not None:
        note(
            f"Paste {str(Path(output.out).with_suffix('.xml'))!r} as the labelling interface of a project, and start "
            "Label Studio with LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true and "
            f"LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={str(Path.cwd())!r}; 'otpt calibrate EXPORT.json' reads the "
            "labels back."
        )
    return result.images


def _least_certain_first(answers: Iterable[tuple[str, Answer]], job: ClassifierJob) -> list[tuple[str, Answer]]:
    """Sort the answers of all images by the uncertainty of the first method; those without an answer come last."""
    several_labels = job.task.independent_labels

    def place(answered: tuple[str, Answer]) -> float:
        _, answer = answered
        if isinstance(answer, Failure):
            return 1.0
        return -uncertainty(next(iter(answer.values())), several_labels=several_labels)

    return sorted(answers, key=place)


def _loaded_classifier(job: ClassifierJob, pool: Pool) -> Classifier:
    """Return the classifier of the worker in this process."""
    assert isinstance(pool, InlinePool)
    worker = pool.worker(job)
    assert isinstance(worker, ImageWorker)
    return worker.classifier


def _describe_file(out: str, total: int, failed: int) -> str:
    if failed == total:
        return f"No image could be read; the reasons are in {out!r}."
    share = f"{total - failed} of " if failed else ""
    return f"The predictions of {share}{plural(total, 'image')} are in {out!r}."


def embed(
    *images: Images,
    out: Annotated[str, o.file_or_folder("a .parquet file, or a folder of Parquet parts; also remote")],
    overwrite: Overwrite = False,
    views: Annotated[int, o.option("mean over this many views; 1: the clean view alone")] = 1,
    dtype: Annotated[Literal["float32", "float16"], o.option("type of the stored numbers")] = "float32",
    reading: SourceOptions = SourceOptions(),
    seed: o.Seed = 0,
    machine: MachineOptions = MachineOptions(),
    model: o.ModelOptions = o.ModelOptions(),
) -> int:
    """Encode images and write unit features, with the columns id, feature and error. 'otpt predict' and 'otpt evaluate'
    take the file instead of images. The same command continues a stopped job. Exit code 2 if an image could not be
    read; the others are still encoded.

    otpt embed photos/ --backbone ViT-B-16/openai --out features.parquet
    """
    check_output(out)
    job = EmbeddingJob(model.load, ViewRecipe(n_views=views), seed, model.device, machine.threads)
    o.use_threads(machine.threads)
    result = bulk.embed(
        job,
        reading.open(images),
        out,
        pool=machine.open_pool(model.device),
        dtype=dtype,
        metadata={"otpt.model": model.backbone},
        overwrite=overwrite,
        progress=NotingMonitor(log=say),
    )
    show(f"The features of {plural(result.images - result.failed, 'image')} are in {out!r}.")
    return _say_failed(result.failed, result.images)


def _say_failed(failed: int, total: int) -> int:
    if failed:
        say(f"{failed} of {total} images could not be read")
    return 2 if failed else 0


def _maps_folder(out: str | None) -> Path:
    return Path(f"{'otpt' if out is None else Path(out).with_suffix('')}-maps")


def _explain(classifier: Classifier, source: Source, folder: Path) -> None:
    """Write the heat map of each readable image; of several labels, for the most probable one."""
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for number, image in enumerate(source):
        with suppress(OtptError):  # reported with the predictions
            heat_map = classifier.explain(image.read())
            name = f"{file_name(Path(image.id).stem)} - {file_name(heat_map.label)}"
            heat_map.save(folder / f"{number:04d} {name}.png")
            count += 1
    show(f"The heat maps of {plural(count, 'image')} are in {str(folder)!r}.")
