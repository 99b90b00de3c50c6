"""``otpt train baple|fpt DATASET``: train the medical systems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from otpt.cli import options as o
from otpt.cli.medical import FPT_BACKBONE, FROZEN_SIZE
from otpt.cli.terminal import say
from otpt.cli.train import Name, TrainingData
from otpt.errors import OtptError

if TYPE_CHECKING:
    from otpt.data import Dataset
    from otpt.methods import Method

Out = Annotated[Path | None, o.out("a .safetensors file (default: by data set and method)")]
System = Annotated[str | None, o.option("the system, or SYSTEM+o-tpt", "--methods", "--method", metavar="NAME")]
Weight = Annotated[tuple[str, ...], o.option("lambda=6: weight of the orthogonality term", metavar="NAME=VALUE")]
TrainingSeed = Annotated[int, o.option("seed of shots, crops, order and initial values", "--seeds", "--seed")]


def baple(
    dataset: Name,
    /,
    *,
    target: Annotated[str, o.option("name or number of the target class", metavar="CLASS")],
    out: Out = None,
    methods: System = None,
    set: Weight = (),
    start: Annotated[Path | None, o.option("context to start from (default: random vectors)", metavar="FILE")] = None,
    font: Annotated[str | None, o.option("font of the trigger's word (default: Pillow's)", metavar="FILE")] = None,
    shots: Annotated[int, o.option("images per class")] = 32,
    tokens: Annotated[int | None, o.option("vectors of a random context (default: 16)")] = None,
    epochs: Annotated[int, o.option("passes over them")] = 50,
    batch: Annotated[int, o.option("images per step")] = 16,
    learning_rate: Annotated[float, o.option("rate of the context, after a first epoch at 1e-3")] = 0.1,
    poisoned: Annotated[float, o.option("probability that an image gets the trigger")] = 0.05,
    seed: TrainingSeed = 1,
    threads: o.Threads = None,
    data: TrainingData = TrainingData(),
    model: o.ModelOptions = o.ModelOptions(),
) -> int:
    """Learn a context together with a trigger that turns images to a target class (BAPLe): a published attack, to
    measure on your own model and data what it does to accuracy and calibration, and what the orthogonality term
    changes. An interrupted training resumes when the command is repeated."""
    from otpt.learning import train_baple
    from otpt.learning.baple_recipe import BapleRecipe
    from otpt.learning.shots import few_shots
    from otpt.methods.baple import Patch
    from otpt.methods.baple.model import read_start

    o.use_threads(threads)
    method, weight = _method("baple", methods, set)
    images = data.load(dataset)
    number = _class_number(target, images)
    first = None if start is None else read_start(start)
    if first is not None and tokens is not None:
        raise OtptError("--start and --tokens were given, but a start has its own vectors; expected one of them.")
    recipe = BapleRecipe(
        number,
        weight,
        tokens=len(first) if first is not None else tokens or 16,
        shots=shots,
        epochs=epochs,
        batch=batch,
        learning_rate=learning_rate,
        poisoned=poisoned,
        seed=seed,
    )
    path = _path(out, images, f"{method.name}-{number}")
    backbone = model.load()
    trained = train_baple(
        backbone, images, recipe, start=first, patch=Patch(font=font), checkpoint=_unfinished(path), say=say
    )
    seen = few_shots(images, shots, seed=seed).image_keys()
    trained.write(
        path, {**_notes(method, images, backbone.fingerprint, seen), "target": number, "recipe": asdict(recipe)}
    )
    print(f"Learned a context and a trigger for the class {images.class_names[number]!r}. Written: {str(path)!r}.")
    return 0


def fpt(
    dataset: Name,
    /,
    *,
    out: Out = None,
    methods: System = None,
    set: Weight = (),
    val: Annotated[
        str | None, o.option("data set that chooses the epoch (default: the set's own, or the last epoch)")
    ] = None,
    rows: Annotated[Literal["classifier", "prompts"], o.option("what is made orthogonal")] = "classifier",
    variant: Annotated[str, o.option("variant of the side network")] = "fpt",
    frozen_size: Annotated[int, o.option("pixels that the ViT sees")] = FROZEN_SIZE,
    keep_frozen: Annotated[Path | None, o.option("store keys and values here, 15 MB per image", metavar="DIR")] = None,
    epochs: Annotated[int, o.option("passes over the images")] = 20,
    batch: Annotated[int, o.option("images per step")] = 16,
    learning_rate: Annotated[float, o.option("rate of the first epoch")] = 1e-4,
    seed: TrainingSeed = 1,
    threads: o.Threads = None,
    backbone: Annotated[str, o.option("a ViT of Hugging Face")] = FPT_BACKBONE,
    device: Annotated[str, o.option("auto, cpu, cuda, cuda:1 or mps")] = "auto",
    precision: Annotated[str, o.option("float32, bf16 or fp16")] = "float32",
    data: TrainingData = TrainingData(),
) -> int:
    """Learn a side network on a frozen ViT (FPT). An interrupted training resumes when the command is repeated."""
    from otpt.learning import train_fpt
    from otpt.learning.fpt_recipe import FptRecipe
    from otpt.methods.fpt import load_frozen_vit
    from otpt.methods.fpt.files import write_fpt

    o.use_threads(threads)
    method, weight = _method("fpt", methods, set)
    images = data.load(dataset)
    validation = _validation(data, dataset, val)
    recipe = FptRecipe(
        weight, rows=rows, variant=variant, epochs=epochs, batch=batch, learning_rate=learning_rate, seed=seed
    )
    path = _path(out, images, method.name)
    frozen = load_frozen_vit(backbone, device=device, precision=precision, size=frozen_size)
    network = train_fpt(
        frozen, images, recipe, validation=validation, keep=keep_frozen, checkpoint=_unfinished(path), say=say
    )
    notes = _notes(method, images, frozen.fingerprint, images.image_keys())
    write_fpt(path, network, {**notes, "frozen_size": frozen_size, "recipe": asdict(recipe)})
    print(f"Learned a side network for {len(images.class_names)} classes. Written: {str(path)!r}.")
    return 0


def _method(system: str, name: str | None, settings: Sequence[str]) -> tuple[Method, float]:
    """The method and λ."""
    for word in settings:
        if word.partition("=")[0] not in ("lambda", "orthogonality"):
            raise OtptError(f"--set was given {word!r}, which 'otpt train {system}' does not use; expected lambda=N.")
    (method,) = o.MethodOptions(set=tuple(settings)).methods([name or system])
    if method.adapt != system:
        raise OtptError(f"'otpt train {system}' trains {system} and {system}+o-tpt, not {method.name!r}.")
    tuning = method.tuning("fine-grained")
    weights = {} if tuning is None else dict(tuning.weights)
    if set(weights) - {"orthogonality"}:
        raise OtptError(f"Method {method.name!r} has objectives that {system} is not trained with.")
    return method, weights.get("orthogonality", 0.0)


def _validation(data: TrainingData, dataset: str, val: str | None) -> Dataset | None:
    from otpt.data import NoSuchSplit

    spec = val or dataset
    options = TrainingData(data=data.data, classes=data.classes)
    try:
        return options.load(spec, "validation" if spec.startswith("hf:") else "val")
    except NoSuchSplit:
        if val is not None:
            raise
        say("there are no validation images: the last epoch will be used")
        return None


def _class_number(given: str, dataset: Dataset) -> int:
    names = dataset.class_names
    if given in names:
        return names.index(given)
    if given.isdecimal() and int(given) < len(names):
        return int(given)
    raise OtptError(
        f"Unknown target class {given!r}; expected 0 to {len(names) - 1} or a name: {', '.join(names[:6])}."
    )


def _path(out: Path | None, dataset: Dataset, name: str) -> Path:
    from otpt.runs import folder_name

    path = out or Path(f"{folder_name(dataset.name)}-{name}.safetensors")
    if path.suffix != ".safetensors":
        raise OtptError(f"--out was given {str(path)!r}; expected a name that ends in .safetensors.")
    return path


def _unfinished(path: Path) -> Path:
    return path.with_name(f"{path.stem}-unfinished.safetensors")


def _notes(method: Method, dataset: Dataset, fingerprint: str, images: Sequence[str]) -> dict[str, Any]:
    return {
        "system": method.adapt,
        "method": method.name,
        "dataset": dataset.name,
        "classes": list(dataset.class_names),
        "backbone": fingerprint,
        "images": list(images),
    }
