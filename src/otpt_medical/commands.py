"""``otpt train baple|fpt DATASET`` and ``otpt certify DATASET``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from torch import Tensor

from otpt.cli import options as o
from otpt.cli.evaluate import Datasets, EvaluationOptions, RunFolder, say_incomplete
from otpt.cli.terminal import print_json, print_table, say
from otpt.cli.train import TrainingData
from otpt.data import Dataset, NoSuchSplit, load_dataset
from otpt.errors import OtptError
from otpt.learning import Epoch, few_shots
from otpt.methods import Method
from otpt.runs import Run, folder_name
from otpt_medical import FPT_BACKBONE, FROZEN_SIZE
from otpt_medical.baple import Patch, read_start
from otpt_medical.fpt import write_fpt
from otpt_medical.frozen_vit import load_frozen_vit
from otpt_medical.trained import Notes
from otpt_medical.training import BapleRecipe, FptRecipe, train_baple, train_fpt

Out = Annotated[Path | None, o.out("a .safetensors file (default: by data set and method)")]
System = Annotated[str | None, o.methods("the system, or SYSTEM+o-tpt")]
Weight = Annotated[tuple[str, ...], o.option("lambda=6: weight of the orthogonality term", metavar="NAME=VALUE")]
TrainingSeed = Annotated[int, o.seeds("seed of shots, crops, order and initial values")]

RADII = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
CERTIFIED = ("promptsmooth", "promptsmooth+o-tpt")


@o.option_group("Training")
class BapleOptions:
    """Numbers of BAPLe's training; the published ones by default."""

    start: Annotated[Path | None, o.option("context to start from (default: random vectors)", metavar="FILE")] = None
    font: Annotated[str | None, o.option("font of the trigger's word (default: Pillow's)", metavar="FILE")] = None
    shots: Annotated[int, o.option("images per class")] = 32
    tokens: Annotated[int | None, o.option("vectors of a random context (default: 16)")] = None
    epochs: Annotated[int, o.option("passes over them")] = 50
    batch: Annotated[int, o.option("images per step")] = 16
    learning_rate: Annotated[float, o.option("rate of the context, after a first epoch at 1e-3")] = 0.1
    poisoned: Annotated[float, o.option("probability that an image gets the trigger")] = 0.05
    seed: TrainingSeed = 1
    threads: o.Threads = None

    def read_start(self) -> Tensor | None:
        """Return the context (n, W) to start from, or None for random vectors."""
        if self.start is not None and self.tokens is not None:
            raise OtptError("--start and --tokens are mutually exclusive; remove one of them.")
        return None if self.start is None else read_start(self.start)

    def recipe(self, *, target: int, weight: float, tokens: int) -> BapleRecipe:
        """Return the recipe for a target class, a weight λ and a number of vectors."""
        return BapleRecipe(
            target=target,
            weight=weight,
            tokens=tokens,
            shots=self.shots,
            epochs=self.epochs,
            batch=self.batch,
            learning_rate=self.learning_rate,
            poisoned=self.poisoned,
            seed=self.seed,
        )


@o.option_group("Training")
class FptOptions:
    """Numbers of FPT's training; the published ones by default."""

    val: Annotated[
        str | None, o.option("data set that chooses the epoch (default: the set's own, or the last epoch)")
    ] = None
    rows: Annotated[Literal["classifier", "prompts"], o.option("what is made orthogonal")] = "classifier"
    variant: Annotated[str, o.option("variant of the side network")] = "fpt"
    frozen_size: Annotated[int, o.option("pixels that the ViT sees")] = FROZEN_SIZE
    keep_frozen: Annotated[Path | None, o.option("store keys and values here, 15 MB per image", metavar="DIR")] = None
    epochs: Annotated[int, o.option("passes over the images")] = 20
    batch: Annotated[int, o.option("images per step")] = 16
    learning_rate: Annotated[float, o.option("rate of the first epoch")] = 1e-4
    seed: TrainingSeed = 1
    threads: o.Threads = None

    def recipe(self, weight: float) -> FptRecipe:
        """Return the recipe for a weight λ."""
        return FptRecipe(
            weight=weight,
            rows=self.rows,
            variant=self.variant,
            epochs=self.epochs,
            batch=self.batch,
            learning_rate=self.learning_rate,
            seed=self.seed,
        )


@o.option_group("Model")
class FrozenModelOptions:
    """The frozen ViT, and where it runs."""

    backbone: Annotated[str, o.option("a ViT of Hugging Face", metavar="NAME")] = FPT_BACKBONE
    device: o.Device = "auto"
    precision: o.Precision = "float32"


def baple(
    dataset: o.Name,
    /,
    *,
    target: Annotated[str, o.option("name or number of the target class", metavar="CLASS")],
    out: Out = None,
    methods: System = None,
    set: Weight = (),
    training: BapleOptions = BapleOptions(),
    data: TrainingData = TrainingData(),
    model: o.ModelOptions = o.ModelOptions(),
) -> int:
    """Learn a context together with a trigger that turns images to a target class (BAPLe): a published attack, to
    measure on your own model and data what it does to accuracy and calibration, and what the orthogonality term
    changes.

    otpt train baple my-images/ --target 0 --out baple.safetensors
    """
    o.use_threads(training.threads)
    method, weight = _method("baple", methods, set)
    images = data.load(dataset)
    number = _class_number(target, images)
    start = training.read_start()
    tokens = len(start) if start is not None else training.tokens or 16
    recipe = training.recipe(target=number, weight=weight, tokens=tokens)
    path = _path(out, images, f"{method.name}-{number}")
    backbone = model.load()

    def on_epoch(epoch: Epoch) -> None:
        loss, accuracy = epoch.loss, 100 * epoch.accuracy
        say(f"epoch {epoch.number} of {recipe.epochs}: loss {loss:.4f}, accuracy {accuracy:.1f} %")

    patch = Patch(font=training.font)
    trained = train_baple(backbone, images, recipe, start=start, patch=patch, on_epoch=on_epoch)
    seen = few_shots(images, recipe.shots, seed=recipe.seed).image_keys()
    notes = _notes(method, images, backbone.fingerprint, seen)
    trained.write(path, notes.model_copy(update={"target": number, "recipe": asdict(recipe)}))
    print(f"Learned a context and a trigger for the class {images.class_names[number]!r}. Written: {str(path)!r}.")
    return 0


def fpt(
    dataset: o.Name,
    /,
    *,
    out: Out = None,
    methods: System = None,
    set: Weight = (),
    training: FptOptions = FptOptions(),
    model: FrozenModelOptions = FrozenModelOptions(),
    data: TrainingData = TrainingData(),
) -> int:
    """Learn a side network on a frozen ViT (FPT).

    otpt train fpt my-images/ --methods fpt+o-tpt --out fpt.safetensors
    """
    o.use_threads(training.threads)
    method, weight = _method("fpt", methods, set)
    images = data.load(dataset)
    validation = _validation(data, dataset, training.val)
    recipe = training.recipe(weight)
    path = _path(out, images, method.name)
    size = training.frozen_size
    frozen = load_frozen_vit(model.backbone, device=model.device, precision=model.precision, size=size)

    def on_epoch(epoch: Epoch, auc: float | None) -> None:
        validated = "" if auc is None else f", validation AUC {auc:.4f}"
        say(f"epoch {epoch.number} of {recipe.epochs}: loss {epoch.loss:.4f}{validated}")

    keep = training.keep_frozen
    network = train_fpt(frozen, images, recipe, validation=validation, keep=keep, on_epoch=on_epoch)
    notes = _notes(method, images, frozen.fingerprint, images.image_keys())
    write_fpt(path, network, notes.model_copy(update={"frozen_size": size, "recipe": asdict(recipe)}))
    print(f"Learned a side network for {len(images.class_names)} classes. Written: {str(path)!r}.")
    return 0


def certify(
    *datasets: Datasets,
    methods: Annotated[tuple[str, ...], o.methods("methods to certify")] = CERTIFIED,
    out: RunFolder = None,
    options: EvaluationOptions = EvaluationOptions(),
) -> int:
    """Tune a prompt for each image on noisy copies of it, then certify its class by randomised smoothing: an evaluation
    whose rows also have a radius. The seed of the noise is 3 unless --seeds is given. An interrupted run resumes when
    the command is repeated. Exit code 3 if images could not be read.

    otpt certify my-images/ --methods promptsmooth --set sigma=0.25 samples=1000 --limit 100
    """
    certified = [_certified(method) for method in options.method.methods(methods)]
    options = replace(options, seeds=options.seeds or (3,))
    result = options.evaluate(datasets, certified, out=out)
    accuracies = {method.name: certified_accuracy(result.run, method.name, RADII) for method in certified}
    if options.run.json:
        rows = [
            {
                "method": name,
                "certified_accuracy": {f"{radius:g}": value for radius, value in accuracy.by_radius.items()},
                "abstained": accuracy.abstained,
            }
            for name, accuracy in accuracies.items()
        ]
        print_json({"run": str(result.run.folder), "methods": rows})
    else:
        header = ["certified accuracy %", *(f"r ≥ {radius:g}" for radius in RADII), "abstained %"]
        cells = []
        for name, accuracy in accuracies.items():
            cells.append([name, *map(_percent, (*accuracy.by_radius.values(), accuracy.abstained))])
        print_table(header, cells)
        print(f"Certificates are in the rows of {str(result.run.folder)!r}, columns 'radius' and 'lower_bound'.")
    return say_incomplete(result)


def _certified(method: Method) -> Method:
    """Return the method with certificates."""
    if method.adapt != "promptsmooth":
        raise OtptError(f"Method {method.name!r} has no certificate; expected {' or '.join(CERTIFIED)}.")
    if method.aggregate == "certificate":
        return method
    return replace(method, name=f"{method.name}+certificate", aggregate="certificate")


def _percent(fraction: float | None) -> str:
    return "–" if fraction is None else f"{100 * fraction:.2f}"


class CertifiedAccuracy(NamedTuple):
    """Fraction of images correct and certified at each radius, and fraction of abstentions; None without images."""

    by_radius: Mapping[float, float | None]
    abstained: float | None


def certified_accuracy(run: Run, method: str, radii: Iterable[float]) -> CertifiedAccuracy:
    """Return the certified accuracy of a method in a run at radii; abstentions count as wrong."""
    rows = run.to_pandas()
    rows = rows[(rows["method"] == method) & rows["error"].isna()]
    if rows.empty:
        return CertifiedAccuracy(dict.fromkeys(radii), None)
    abstained = np.array(["abstained" in flags for flags in rows["flags"]])
    reached = np.where(rows["correct"].astype(bool) & ~abstained, rows["radius"], -np.inf)
    by_radius = {radius: float((reached >= radius).mean()) for radius in radii}
    return CertifiedAccuracy(by_radius, float(abstained.mean()))


def _method(system: str, name: str | None, settings: Sequence[str]) -> tuple[Method, float]:
    """Return the method and λ."""
    (method,) = o.MethodOptions(set=tuple(settings)).methods([name or system])
    tuning = method.tuning("fine-grained")
    weights = {} if tuning is None else dict(tuning.weights)
    unused = [word for word in settings if word.partition("=")[0] not in ("lambda", "orthogonality")]
    if method.adapt != system or weights.keys() - {"orthogonality"} or unused:
        raise OtptError(
            f"'otpt train {system}' trains {system} and {system}+o-tpt, with --set lambda=N, not "
            f"{' '.join([method.name, *unused])!r}."
        )
    return method, weights.get("orthogonality", 0.0)


def _validation(data: TrainingData, dataset: str, val: str | None) -> Dataset | None:
    """Return the images of ``--val`` or of the data set's validation split, or None."""
    split = "validation" if (val or dataset).startswith("hf:") else "val"
    if val is not None:
        return TrainingData(data=data.data, classes=data.classes).load(val, split)
    try:
        return load_dataset(dataset, root=data.data, classes=o.read_classes(data.classes), split=split)
    except NoSuchSplit:
        say("there are no validation images: the last epoch will be used")
        return None


def _class_number(text: str, dataset: Dataset) -> int:
    names = dataset.class_names
    if text in names:
        return names.index(text)
    if text.isdecimal() and int(text) < len(names):
        return int(text)
    raise OtptError(f"Unknown target class {text!r}; expected 0 to {len(names) - 1} or a name: {', '.join(names[:6])}.")


def _path(out: Path | None, dataset: Dataset, name: str) -> Path:
    path = out or Path(f"{folder_name(dataset.name)}-{name}.safetensors")
    if path.suffix != ".safetensors":
        raise OtptError(f"--out was given {str(path)!r}; expected a name that ends in .safetensors.")
    return path


def _notes(method: Method, dataset: Dataset, fingerprint: str, images: Sequence[str]) -> Notes:
    return Notes(
        system=method.adapt,
        method=method.name,
        dataset=dataset.name,
        classes=dataset.class_names,
        backbone=fingerprint,
        images=tuple(images),
    )
