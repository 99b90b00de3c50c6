"""``python processor_results.py FOLDER THREADS …``: results of everything that computes, as digests in JSON.

One round for each number of threads, with models made anew, other batches, another order and other sizes of shards: the
digests of all rounds must be the same. ``python processor_results.py FOLDER`` computes one round with the threads that
the process starts with, then begins an evaluation in ``FOLDER/killed`` and kills itself; a process that finds such a
folder resumes it in every round.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import pyarrow.parquet as pq
import torch
from open_clip import SimpleTokenizer
from open_clip.model import CustomTextCLIP
from oracles.data import medical_bench
from oracles.data.alike_names import ALIKE
from oracles.methods.maple import maple_state, tiny_prompted_backbone
from oracles.models.medical import write_vit
from oracles.models.tiny import randomise, tiny_clip, tiny_config, tiny_preprocessing
from oracles.runs.evaluation_bench import NAMES, files, image

from otpt import Classifier, Prediction, ViewRecipe
from otpt.backbones import Backbone, ClipBackbone, load_backbone
from otpt.data import Dataset
from otpt.evaluation import EvaluationSettings, Job, evaluate, run_job
from otpt.evaluation.progress import ImageDone, ProgressEvent, Silent
from otpt.features import FeatureCache
from otpt.learning import Recipe, train_coop, train_maple
from otpt.medical.fpt import write_fpt
from otpt.medical.frozen_vit import load_frozen_vit
from otpt.medical.promptsmooth import Smoothing
from otpt.medical.training import BapleRecipe, FptRecipe, train_baple, train_fpt
from otpt.methods import field_methods, published_methods
from otpt.methods.prompt_tuning import prompt_state
from otpt.prompts.learned import CocoopContext, read_learned
from otpt.registry import IMAGE
from otpt.threads import one_thread

OWN_NETWORKS = ("promptsmooth", "baple", "fpt")
CORE = [
    name
    for name, each in {**published_methods(), **field_methods()}.items()
    if each.init == "words" and each.adapt not in OWN_NETWORKS and each.scope == IMAGE
]
STREAMS = ["tda", "boostadapter", "dmn", "bca", "dpe"]
RECIPE = ViewRecipe(n_views=12)
COUNT = 7  # images
SHOTS = Recipe(shots=2, epochs=2, batch=4, learning_rate=0.01, crops=2)
SHARD_SIZES = {1: 3, 2: 1, 3: 7, 5: 2}
"""Images in a shard, by the number of threads."""


def digest(values: Iterable[Any]) -> str:
    """Of tensors, arrays, numbers, words or bytes, to the last bit."""
    found = hashlib.sha256()
    for value in values:
        if isinstance(value, (str, bytes)):
            found.update(value if isinstance(value, bytes) else value.encode())
            continue
        array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        found.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())
    return found.hexdigest()[:16]


@cache
def models() -> dict[str, Any]:
    """Weights, drawn once."""
    config = tiny_config("resnet")
    config["vision_cfg"] = {"timm_model_name": "resnet10t", "timm_pool": "avg", "timm_proj": "linear", "image_size": 64}
    timm = randomise(CustomTextCLIP(**config))
    return {"ViT": tiny_clip("vit"), "ResNet": tiny_clip("resnet"), "timm": timm}


def towers() -> Iterator[tuple[str, Backbone]]:
    """Backbones, tuned and packed anew."""
    for name, model in models().items():
        numbers = tiny_preprocessing("vit" if name == "ViT" else "resnet")
        for precision in ("float32", "bf16") if name == "ViT" else ("float32",):
            label = name if precision == "float32" else f"{name} in {precision}"
            options = {"name": label, "architecture": label, "precision": precision, "device": torch.device("cpu")}
            yield label, ClipBackbone(deepcopy(model), SimpleTokenizer(), numbers, **options)
    yield "pocket", load_backbone("pocket", device="cpu")


def features(name: str, backbone: Backbone, batch: int) -> Iterator[tuple[str, str]]:
    size = backbone.preprocessing.size
    pixels = torch.randn(19, 3, size, size, generator=torch.Generator().manual_seed(7))
    yield (
        f"{name}: image features",
        digest([torch.cat([backbone.encode_pixels(b, chunk=backbone.chunk) for b in pixels.split(batch)])]),
    )


def texts(name: str, backbone: Backbone) -> Iterator[tuple[str, str]]:
    for names, words in ((NAMES, ""), (tuple(dict.fromkeys(ALIKE)), " of names that begin alike")):
        with one_thread():
            text = prompt_state(backbone, names)
        yield f"{name}: text features{words}", digest([text.text_features])
        with one_thread():
            cotangents = torch.randn(1, *text.text_features.shape, generator=torch.Generator().manual_seed(3))
            yield f"{name}: text gradient{words}", digest([text.linearisation.vjp(cotangents)])


def numbers(answers: Iterable[Prediction]) -> list[Any]:
    return [value for each in answers for value in (each.probabilities, each.mean_cosine)]


def predictions(name: str, backbone: Backbone, threads: int, methods: list[str]) -> Iterator[tuple[str, str]]:
    """One image at a time, several in one call, in another order."""
    classifier = Classifier(backbone, "o-tpt", views=RECIPE).set_classes(NAMES)
    yield from texts(name, backbone)
    count = 3 if name == "ViT" else 2
    images = [image(i) for i in range(count)]
    alone = [classifier.compare(each, methods) for each in images]
    yield f"{name}: {len(methods)} methods", digest(numbers(found[m] for found in alone for m in methods))
    order = np.random.default_rng(threads).permutation(count).tolist()
    batch = classifier.predict([images[i] for i in order], workers=threads)
    for i, found in [*zip(order, batch, strict=True), (order[0], classifier.predict(images[order[0]]))]:
        assert digest(numbers([found])) == digest(numbers([alone[i]["o-tpt"]])), f"{name}: batch or order"
    if name == "ViT":
        many, labels = images * 7, [0, 1, 2] * 7
        fitted = Classifier(backbone, "tpt", views=RECIPE).set_classes(NAMES).calibrate(many, labels)
        yield f"{name}: calibration", digest([*fitted.map.parameters.values(), *fitted.cross_validation.values()])


def dataset(order: Iterable[int] = range(COUNT)) -> Dataset:
    chosen = list(order)
    return Dataset(
        "tiny", NAMES, [f"p/{i}" for i in chosen], [i % len(NAMES) for i in chosen], lambda i: image(chosen[i])
    )


def settings(shard_size: int, **changes: Any) -> EvaluationSettings:
    return EvaluationSettings(
        **{"methods": ["zero-shot", "tpt", "o-tpt"], "views": RECIPE, "shard_size": shard_size, **changes}
    )


def contexts(folder: Path) -> list[Any]:
    """Learned prompts of all kinds, random ones."""
    shapes = ((4, 64), (2, 32), (2,), (64, 2), (64,))
    parts = [0.5 * torch.randn(*shape, generator=torch.Generator().manual_seed(i)) for i, shape in enumerate(shapes)]
    torch.save({"state_dict": maple_state("vit", 2)}, folder / "maple.pt")
    return [CocoopContext(*parts), read_learned(folder / "maple.pt")]


def rows(folder: Path) -> list[Any]:
    """What a run says of each image by each method, in the order of the images' names."""
    columns = ["id", "method", "prediction", "confidence", "entropy", "top_probabilities", "mean_cosine"]
    found = [row for path in folder.rglob("*.parquet") for row in pq.read_table(path).to_pylist()]
    values = sorted(([row.get(column) for column in columns] for row in found), key=lambda row: row[:2])
    return [json.dumps(values)]


def evaluations(folder: Path, backbone: Backbone, threads: int) -> Iterator[tuple[str, str]]:
    size, order = SHARD_SIZES[threads], np.random.default_rng(threads).permutation(COUNT).tolist()
    methods = [*CORE, "cocoop", "cocoop+o-tpt", "maple", "maple+o-tpt", *STREAMS]
    chosen = settings(size, methods=methods, contexts=contexts(folder))
    evaluate(dataset(order), backbone, chosen, out=folder / "all", cache=FeatureCache(folder / "cache"))
    yield "evaluation: rows", digest(rows(folder / "all"))
    yield "evaluation: metrics", digest([(folder / "all/metrics.json").read_bytes()])
    evaluate(dataset(order[:4]), backbone, settings(size), out=folder / "stopped")
    whole = files(folder / "stopped")
    next((folder / "stopped").rglob("*.parquet")).unlink()
    evaluate(dataset(order[:4]), backbone, settings(size), out=folder / "stopped")
    assert files(folder / "stopped") == whole, "resumed evaluation"
    evaluate(dataset(), backbone, settings(2), out=folder / "whole")
    yield "evaluation: files", digest(each for pair in sorted(files(folder / "whole").items()) for each in pair)
    killed = folder.parent / "killed"
    if killed.exists():  # by a process with another number of threads
        shutil.copytree(killed, folder / "killed")
        assert 0 < len(list((folder / "killed").rglob("*.parquet"))) < 3 * 4
        evaluate(dataset(), backbone, settings(2), out=folder / "killed")
        assert files(folder / "killed") == files(folder / "whole"), "evaluation resumed after a kill"


def trainings(backbone: Backbone) -> Iterator[tuple[str, str]]:
    data = Dataset("tiny", NAMES, [str(i) for i in range(12)], [i % 6 for i in range(12)], image)
    yield "CoOp", digest([train_coop(backbone, data, SHOTS).vectors])
    yield "MaPLe", digest(train_maple(tiny_prompted_backbone("hybrid", "float32"), data, SHOTS).state().values())


def medical(folder: Path, backbone: Backbone, threads: int) -> Iterator[tuple[str, str]]:
    data, size = medical_bench.dataset(each=3), SHARD_SIZES[threads]
    torn = train_baple(backbone, data, BapleRecipe(target=0, shots=3, tokens=2, epochs=1, batch=4, poisoned=0.4))
    yield "BAPLe: training", digest([torn.context, torn.noise])
    torn.write(folder / "baple.safetensors", {"method": "baple", "target": 0, "classes": list(data.class_names)})
    write_vit(folder / "vit", hidden_size=32)
    frozen = load_frozen_vit(str(folder / "vit"), device="cpu", size=48)
    network = train_fpt(frozen, data, FptRecipe(epochs=1, batch=4), validation=data)
    yield "FPT: training", digest(network.state_dict().values())
    write_fpt(folder / "fpt.safetensors", network, {"method": "fpt", "backbone": frozen.fingerprint})
    small = Smoothing(copies=5, samples=20, selection=6, batch=8)
    for method, model, more in (
        ("baple", backbone, {"trained": [str(folder / "baple.safetensors")]}),
        ("fpt", frozen, {"trained": [str(folder / "fpt.safetensors")]}),
        ("promptsmooth+o-tpt+votes", backbone, {"smoothing": small}),
    ):
        chosen = EvaluationSettings(methods=[method], shard_size=size, **more)  # type: ignore[arg-type]
        evaluate(data, model, chosen, out=folder / method)
        yield f"{method}: rows", digest(rows(folder / method))


def computed(folder: Path, threads: int) -> dict[str, str]:
    """All digests by name, with models made anew."""
    folder.mkdir(parents=True)
    found: dict[str, str] = {}
    backbone: Backbone | None = None
    for name, made in towers():
        backbone = backbone or made
        found |= features(name, made, batch={1: 19, 2: 8, 3: 5, 5: 17}[threads])
        if name in ("ViT", "ResNet", "pocket"):
            found |= predictions(name, made, threads, CORE if name == "ViT" else ["tpt+sals", "o-tpt"])
    assert backbone is not None
    for more in (evaluations(folder, backbone, threads), trainings(backbone), medical(folder, backbone, threads)):
        found |= more
    return found


class KillAfter(Silent):
    """Signal 9 when so many images are done."""

    def __init__(self, images: int) -> None:
        self.left = images

    def __call__(self, event: ProgressEvent) -> None:
        self.left -= isinstance(event, ImageDone)
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _given(value: Any, *_: Any) -> Any:
    return value


def main(folder: Path, counts: list[int]) -> None:
    before = {"capability": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads()}
    rounds = {}
    for threads in counts or [torch.get_num_threads()]:
        if counts:
            torch.set_num_threads(threads)
        rounds[str(threads)] = computed(folder / f"{'with' if counts else 'started'}-{threads}", threads)
    print(json.dumps({**before, "rounds": rounds}), flush=True)
    if not counts:
        given = partial(_given, next(towers())[1])
        run_job(Job(given, [dataset], settings(2), folder / "killed", device="cpu"), reporter=KillAfter(5))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(each) for each in sys.argv[2:]])
