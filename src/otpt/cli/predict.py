"""``otpt predict cat.jpg --classes cat dog`` and ``otpt embed IMAGES -o features.parquet``."""

from __future__ import annotations

import json as json_lines
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import validators

import otpt
from otpt.cli import options as o
from otpt.cli.terminal import make_progress, note, plural, print_table, say
from otpt.errors import OtptError
from otpt.settings import DEFAULT_METHOD, MULTI_LABEL, Settings

if TYPE_CHECKING:
    from otpt.bulk import Answer, ClassifierJob
    from otpt.cli.prediction_file import PredictionFile
    from otpt.data.sources import Source

TOP = 5
"""Default for ``--top`` with a single image."""
FEATURES_METHOD = "zero-shot"
"""Default method for files of features, which hold one view."""
FLAGS = {
    "init-kept": "the gradient was not finite, so the initial prompt was used",
    "abstained": "the votes do not decide which class comes first",
    "rejected": "the image probably shows none of the classes",
}
_FEW = 20
"""Number of images below which the share of rejected images is not commented on."""
_SHOWN = 100
"""Number of images whose names decide the width of a column."""

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
    top: Annotated[
        int | None, o.option("best classes per image (default: 5 for a single image)", at_least=1, metavar="K")
    ] = None,
    out: Annotated[
        str | None,
        o.file_or_folder(
            "write to a .csv, .jsonl or .parquet file, or a folder of Parquet parts; the latter two also remote"
        ),
    ] = None,
    overwrite: Overwrite = False,
    json: Annotated[bool, o.option("print one JSON object per image and method")] = False,
    column: Column = None,
    split: Split = "test",
    seed: o.Seed = 0,
    threads: o.Threads = None,
    workers: o.Workers = None,
    allow_duplicates: Annotated[bool, o.setting("allow_duplicates")] = False,
    threshold: Annotated[
        float,
        o.option(
            "probability of the labels shown with --multi-label, and of the class or group that --groups backs off to",
            group="Other questions",
            validator=validators.Number(gte=0, lte=1),
        ),
    ] = 0.5,
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
    listed = o.read_classes(classes, unique=False)
    if listed is None and questions.examples is None:
        raise OtptError("No class names were given; name some after --classes, or write --classes @FILE.")
    # mistakes in images, files and names are reported before a large model is loaded
    source = _open(images, column, split)
    from otpt.bulk import ClassifierJob, Worker
    from otpt.evaluation.settings import find_attributes, find_contexts

    chosen = method.methods(methods or [FEATURES_METHOD if source.has_features else DEFAULT_METHOD])
    if source.has_features:
        model = replace(model, chosen=model.chosen or source.metadata.get("otpt.model"))
        otpt.methods.refuse_views(chosen, images[0])
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
            "seed": seed,
            "contexts": tuple(find_contexts(given.get("contexts", ()), "images", chosen).values()),
            "attributes": find_attributes(given.get("attributes"), "images", named, chosen),
        }
    )
    if listed is not None and listed.augmix is not None:
        settings = settings.replace(views=replace(settings.recipe, augmix=listed.augmix), budget=None)
    if explain and (source.has_features or ray.engine == "ray" or (workers or 1) > 1):
        raise OtptError("--explain needs images and this process; leave --workers and --engine ray out.")
    job = ClassifierJob(model.load, settings, model.device, [path.absolute() for path in method.plugin])
    failed, rejected, total, file = 0, 0, 0, None
    with ExitStack() as stack:  # finished rows are also written after Ctrl-C and SIGTERM
        engine = _start(job, source, 1 if explain else workers, threads, ray, stack)
        if out is not None:
            facts = {**engine.facts(), "top": top, "threshold": threshold}
            file = stack.enter_context(PredictionFile(out, facts, top=top, overwrite=overwrite))
        show = _printer(source, settings, top, threshold, stack, as_json=json, to_file=out is not None)
        for image, answer in _answers(engine, source, file):
            total += 1
            if isinstance(answer, OtptError):
                failed += 1
            else:
                rejected += bool(next(iter(answer.values())).rejected)
            show(image, answer)
            if file:
                file(_rows(image, answer, top or 1, threshold))
        if explain and isinstance(engine, Worker):
            _explain(engine.classifier, source, Path(f"{Path(out).with_suffix('') if out else 'otpt'}-maps"))
    if file:
        total, failed = file.done, file.failed
        share = f"{total - failed} of " if failed else ""
        text = f"The predictions of {share}{plural(total, 'image')} are in {out!r}."
        if failed == total:
            text = f"No image could be read; the reasons are in {out!r}."
        (say if json else print)(text)
    if total - failed >= _FEW and 2 * rejected > total - failed:
        note(
            f"{rejected} of {plural(total - failed, 'image')} are marked as none of the classes; if that is wrong, "
            "choose another threshold with --reject-threshold, or another score with --reject."
        )
    return _say_failed(failed, total)


def embed(
    *images: Images,
    out: Annotated[str, o.file_or_folder("a .parquet file, or a folder of Parquet parts; also remote")],
    overwrite: Overwrite = False,
    views: Annotated[int, o.option("mean over this many views; 1: the clean view alone")] = 1,
    dtype: Annotated[Literal["float32", "float16"], o.option("type of the stored numbers")] = "float32",
    column: Column = None,
    split: Split = "test",
    seed: o.Seed = 0,
    threads: o.Threads = None,
    model: o.ModelOptions = o.ModelOptions(),
) -> int:
    """Encode images and write unit features, with the columns id, feature and error. 'otpt predict' and 'otpt evaluate'
    take the file instead of images. The same command continues a stopped job. Exit code 2 if an image could not be
    read; the others are still encoded.

    otpt embed photos/ --backbone ViT-B-16/openai --out features.parquet
    """
    from otpt.cli.prediction_file import PredictionFile, check_output

    if check_output(out).endswith((".csv", ".jsonl")):
        raise OtptError(f"Features cannot be written to {out!r}; expected .parquet or a folder.")
    source = _open(images, column, split)  # before a large model is loaded
    from otpt.bulk import read_ahead
    from otpt.features.pipeline import embed as encode

    recipe = otpt.ViewRecipe(n_views=views)
    o.use_threads(threads)
    backbone = model.load()
    facts = {"backbone": backbone.fingerprint, "views": recipe.key, "seed": str(seed), "dtype": dtype}
    job = {"version": otpt.__version__, **facts, "precision": model.precision}
    metadata = {f"otpt.{name}": value for name, value in {"model": model.backbone, **facts}.items()}

    def encoded(waiting: Iterator[Any]) -> Iterator[Any]:
        ahead = read_ahead(waiting) if source.is_remote else waiting
        return encode(backbone, ahead, recipe, seed=seed, workers=threads)

    with PredictionFile(out, job, key="id", overwrite=overwrite, metadata=metadata) as file:
        for name, feature in _answers(encoded, source, file):
            if isinstance(feature, OtptError):
                file([{"id": name, "feature": None, "error": str(feature)}])
            else:
                file([{"id": name, "feature": feature.astype(dtype), "error": None}])
    print(f"The features of {plural(file.done - file.failed, 'image')} are in {out!r}.")
    return _say_failed(file.failed, file.done)


def _open(words: Sequence[str], column: str | None, split: str) -> Source:
    if not words:
        raise OtptError("No IMAGE was given; write image files, folders, addresses or - right after the command.")
    from otpt.data.sources import Source

    return Source(words, column=column, split=split)


def _start(
    job: ClassifierJob, source: Source, workers: int | None, threads: int | None, ray: o.RayOptions, stack: ExitStack
) -> Any:
    """Return the workers: this process, several, or actors of Ray."""
    from otpt.bulk import READERS, FeatureWorker, Processes, Worker

    engine: Any = ray.pick(workers, job.device)
    several = ray.engine == "ray" or getattr(engine, "workers", 1) > 1
    if several and (source.has_features or source.reads_standard_input):
        what = "Features are classified" if source.has_features else "Standard input, -, is read"
        raise OtptError(f"{what} in this process; leave --engine ray and --workers out.")
    if source.has_features:
        return FeatureWorker(job, source.metadata)
    if not several:
        return Worker(job, threads=threads, readers=READERS if source.is_remote else 0)
    found: Any
    if ray.engine == "ray":
        from otpt.ray import RayActors

        found = RayActors(job, engine, threads)
    else:
        found = Processes(job, engine.workers, engine.devices, threads)
    stack.callback(found.close)
    return found


def _answers(
    engine: Callable[[Iterator[Any]], Iterator[Any]], source: Source, file: PredictionFile | None
) -> Iterator[tuple[str, Any]]:
    """Yield (name, answer) of each image that is not in the file yet, with progress; the engine reads images ahead.

    If the source cannot be read any further, the answers for all earlier images come first.
    """
    from otpt.data.sources import SourceError

    images, done = iter(source), 0
    if file and (done := file.resume(image.id for image in images)):
        note(f"{file.path!r} already holds {plural(done, 'image')}.")
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
        progress.start(done, None, say_done=False)
        progress.failed = file.failed if file else 0
        threading.Thread(target=_count, args=(source, progress), daemon=True).start()  # many images take a while
        for number, answer in enumerate(engine(take()), start=done + 1):
            if isinstance(answer, SourceError):
                raise answer
            progress.failed += isinstance(answer, OtptError)
            yield taken.popleft(), answer
            progress.update(number)
    if problem:
        raise problem[0]


def _count(source: Source, progress: otpt.evaluation.Progress) -> None:
    with suppress(OtptError):  # reported where the images are used
        progress.total = source.count()


def _say_failed(failed: int, total: int) -> int:
    if failed:
        say(f"{failed} of {total} images could not be read")
    return 2 if failed else 0


def _explain(classifier: otpt.Classifier, source: Source, folder: Path) -> None:
    """Write the heat map of each readable image; of several labels, for the most probable one."""
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for number, image in enumerate(source):
        with suppress(OtptError):  # reported with the predictions
            found = classifier.explain(image.read())
            found.save(folder / f"{number:04d} {Path(image.id).stem[:60]} - {found.label[:60].replace('/', ' ')}.png")
            count += 1
    print(f"The heat maps of {plural(count, 'image')} are in {str(folder)!r}.")


def _rows(image: str, answer: Answer, top: int, threshold: float) -> list[dict[str, Any]]:
    """Return an answer as plain data, one row per method: the content of ``--json`` and of files."""
    if isinstance(answer, OtptError):
        return [{"image": image, "error": str(answer)}]
    found = []
    for method, prediction in answer.items():
        best = None if prediction.grouping is None else prediction.back_off(threshold)
        row = {
            "image": image,
            "method": method,
            "label": prediction.label,
            "confidence": prediction.confidence,
            "top": [{"label": label, "probability": probability} for label, probability in prediction.top(top)],
            "flags": list(prediction.flags),
            "extras": dict(prediction.extras),
            "set": None if prediction.set is None else list(prediction.set),
            "abstained": prediction.abstained,
            "rejected": prediction.rejected,
            "labels_above": prediction.labels_above(threshold) if method == MULTI_LABEL else None,
            "groups": prediction.groups,
            "back_off": None if best is None else best._asdict(),
        }
        found.append({name: value for name, value in row.items() if value is not None})
    return found


def _printer(
    source: Source,
    settings: Settings,
    top: int | None,
    threshold: float,
    stack: ExitStack,
    *,
    as_json: bool,
    to_file: bool,
) -> Callable[[str, Answer], None]:
    """Return what prints an answer: as JSON lines; or, without a file, as a table or a line."""
    if as_json:
        return partial(_print_json, top or TOP, threshold)
    if to_file:
        return lambda *_: None
    names = [image.id for image in islice(source, _SHOWN)]
    if top is not None or len(names) == 1:
        return partial(_print_best, top or TOP, threshold)
    lines = _Lines(names, settings, threshold)
    stack.callback(lambda: _print_flags(lines.flags))
    return lines


def _print_json(top: int, threshold: float, image: str, answer: Answer) -> None:
    for row in _rows(image, answer, top, threshold):
        print(json_lines.dumps(row, ensure_ascii=False), flush=True)


def _print_best(top: int, threshold: float, image: str, answer: Answer) -> None:
    if isinstance(answer, OtptError):
        _say_error(image, answer)
        return
    print(image)
    for method, prediction in answer.items():
        best = enumerate(prediction.top(top), start=1)
        rows = [(str(rank), label, f"{100 * probability:.1f}") for rank, (label, probability) in best]
        print_table(("", method, "%"), rows, names=2)
        if prediction.grouping is not None:
            print(f"{100 * threshold:g} % is reached by {_back_off(prediction, threshold)}")
        if prediction.set is not None:
            print(f"prediction set: {', '.join(prediction.set) or 'no class'}")
        if prediction.abstained:
            print("abstained: the confidence is not above the threshold of the risk")
        _print_flags(prediction.flags)
    print()


class _Lines:
    """Print one line per image: its name, and label and confidence of each method."""

    def __init__(self, images: Sequence[str], settings: Settings, threshold: float) -> None:
        from rich.cells import cell_len

        self._cell_len, self._threshold = cell_len, threshold
        self.flags: dict[str, None] = {}
        methods = [each.name for each in settings.methods] if len(settings.methods) > 1 else []
        self._file = max(map(cell_len, images), default=0)
        self._label = max(map(cell_len, (*settings.classes, *methods)), default=0) + 2
        if methods:
            self._print("", [(method, "%") for method in methods])

    def __call__(self, image: str, answer: Answer) -> None:
        if isinstance(answer, OtptError):
            _say_error(image, answer)
            return
        cells = []
        for prediction in answer.values():
            label, number = prediction.label, f"{100 * prediction.confidence:.1f}"
            if prediction.method == MULTI_LABEL:
                shown = prediction.top(len(prediction.labels_above(self._threshold)))
                label, number = ", ".join(f"{name} {100 * score:.1f}" for name, score in shown) or "(none)", ""
            elif prediction.grouping is not None:
                label, number = _back_off(prediction, self._threshold), ""
            elif prediction.set is not None:
                label = " | ".join(prediction.set) or "(none)"
            if prediction.abstained:
                label = "(abstained)"
            self.flags |= dict.fromkeys(prediction.flags)
            cells.append((label + " *" * bool(prediction.flags), number))
        self._print(image, cells)

    def _print(self, file: str, cells: Sequence[tuple[str, str]]) -> None:
        padded = [f"{self._pad(label, self._label)}  {number:>5}" for label, number in cells]
        print("  ".join([self._pad(file, self._file), *padded]).rstrip(), flush=True)

    def _pad(self, text: str, width: int) -> str:
        return text + " " * max(width - self._cell_len(text), 0)


def _back_off(prediction: otpt.Prediction, threshold: float) -> str:
    """Return the most specific class or group that reaches the threshold, with its probability."""
    best = prediction.back_off(threshold)
    return "(none)" if best is None else f"{best.name} {100 * best.confidence:.1f}"


def _say_error(image: str, error: OtptError) -> None:
    say(str(error) if image in str(error) else f"{image}: {error}")


def _print_flags(flags: Iterable[str]) -> None:
    for flag in dict.fromkeys(flags):
        print(f"* {flag}: {FLAGS[flag]}")
