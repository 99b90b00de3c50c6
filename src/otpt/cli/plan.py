"""``otpt plan``: predicted time and memory of methods on data sets or images; nothing is run.

Operations are counted by torch on tensors without data. Their time here follows from short timings of this processor,
on GPUs from their makers' data sheets, of which half is assumed to be reached.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

import numpy as np
import open_clip
import torch
from PIL import Image
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from otpt.backbones.preprocessing import Preprocessing
from otpt.cli import options as o
from otpt.cli.doctor import processor_name
from otpt.cli.terminal import print_json, print_table
from otpt.data import find_entry, list_datasets, load_dataset
from otpt.errors import OtptError, unknown
from otpt.evaluation import duration
from otpt.methods import Method, get_methods
from otpt.settings import DEFAULT_METHOD, Settings
from otpt.threads import available_threads, one_thread
from otpt.views import ViewRecipe, make_views

HERE = "here"
ACHIEVED = 0.5
"""Fraction of a GPU's published peak that is assumed to be reached."""
GPU_CORES = 8
"""Processor cores next to a GPU, which make the views."""
PAPER_SETS = 15
"""The first of the registered data sets are the paper's."""
NAME_TOKENS, SHARED_TOKENS = 4.5, 5
"""Tokens of a class name with its end, and those that all classes share."""
CHUNK = 8
"""Views that go through the image tower together."""
GPUS = {  # TFLOP/s in float32 and in half precision
    "t4": (8.1, 65),
    "v100": (15.7, 125),
    "l4": (30.3, 121),
    "a6000": (38.7, 155),
    "rtx-4090": (82.6, 165),
    "a100": (19.5, 312),
    "h100": (67, 989),
}


@dataclass(frozen=True)
class Device:
    """Operations per second, cores, and seconds of a core for a view with and without AugMix."""

    products: float
    convolutions: float
    cores: int
    views: tuple[float, float]
    is_gpu: bool = False


@dataclass(frozen=True)
class Counts:
    """Operations of a view (products, convolutions) and of a token in the text tower; bytes of weights and work."""

    view: tuple[float, float]
    token: float
    weights: float
    work: float


def plan(
    *what: Annotated[str, o.option("data sets, 'paper' for its 15, or: predict N", metavar="DATASET")],
    classes: Annotated[
        tuple[str, ...] | None, o.option("with 'predict': number of classes, or their names", metavar="N|NAME")
    ] = None,
    methods: o.Methods = None,
    seeds: o.Seeds = None,
    backbone: Annotated[str, o.option("an open_clip architecture")] = o.DEFAULT_BACKBONE,
    views: Annotated[int | None, o.setting("views")] = None,
    device: Annotated[str, o.option(f"{HERE}, {', '.join(GPUS)}", metavar="NAME")] = HERE,
    half: Annotated[bool, o.option("half precision on GPUs")] = False,
    json: o.Json = False,
) -> int:
    """Predict operations, time and memory of methods on data sets, or of 'otpt predict' on N images ('otpt plan predict
    20000 --classes 40'), here and on common GPUs. Nothing is downloaded or run; all times are predictions."""
    if not what:
        raise OtptError("Nothing to plan: give data sets, such as 'dtd cars', or: predict N --classes C.")
    chosen = get_methods(methods or [DEFAULT_METHOD])
    number = views or Settings.model_fields["views"].default
    if what[0] == "predict":
        sizes = [("images", *_predict_size(what, classes), True)]
        devices, counts = (HERE, *GPUS), tuple(dict.fromkeys((1, number, 64)))
    else:
        sizes, devices, counts = _datasets(what), (device,), (number,)
    rows = [
        {"dataset": name, "device": place, **predict_cost(backbone, chosen, place, images, many, count, augmix, half)}
        for name, images, many, augmix in sizes
        for place in devices
        for count in counts
    ]
    for row in rows:
        row["images"] *= len(seeds or (0,))
    if json:
        names = [method.name for method in chosen]
        print_json({"predicted": True, "backbone": backbone, "methods": names, "plan": rows})
        return 0
    head = ("data set", "device", "images", "classes", "views", "TFLOP/image", "s/image", "time", "GB")
    cells = [
        (
            row["dataset"],
            row["device"],
            f"{row['images']:,}",
            str(row["classes"]),
            str(row["views"]),
            f"{row['flops'] / 1e12:.3g}",
            f"{row['seconds']:.2g}",
            duration(row["seconds"] * row["images"]),
            f"{row['bytes'] / 1e9:.1f}",
        )
        for row in rows
    ]
    print_table(head, cells, names=2)
    print(
        f"\nPredicted for {', '.join(method.name for method in chosen)} with {backbone}; here: {processor_name()}, "
        f"{available_threads()} threads, by short timings; GPUs at half their peak, {GPU_CORES} cores for views."
    )
    return 0


def predict_cost(
    backbone: str,
    methods: Sequence[Method],
    device: str,
    images: int,
    classes: int,
    views: int,
    augmix: bool,
    half: bool = False,
) -> dict[str, Any]:
    """Operations, seconds and bytes per image; views are encoded once for all methods."""
    model, place = count_model(backbone), find_device(device, half)
    views = max(method.views or views if method.needs_views("fine-grained") else 1 for method in methods)
    steps = [tuning.steps for method in methods if method.tunes and (tuning := method.tuning("fine-grained"))]
    text = 2 * sum(steps) * model.token * (SHARED_TOKENS + NAME_TOKENS * classes)  # a product and a forward pass each
    products, convolutions = views * model.view[0] + text, views * model.view[1]
    computing = products / place.products + convolutions / place.convolutions
    making = (views - 1) * place.views[0 if augmix else 1] / place.cores
    graph = 14 / 6 * model.token / 768 * (SHARED_TOKENS + NAME_TOKENS * classes) if steps else 0.0
    return {
        "images": images,
        "classes": classes,
        "views": views,
        "flops": products + convolutions,
        "seconds": max(computing, making) if place.is_gpu else computing + making,
        "bytes": model.weights + place.cores * model.work + graph,
    }


def _predict_size(what: Sequence[str], classes: Sequence[str] | None) -> tuple[int, int]:
    if len(what) != 2 or not what[1].isdecimal() or not int(what[1]):
        raise OtptError("After 'predict' a number of images is expected: otpt plan predict 20000 --classes 40.")
    if classes is None:
        raise OtptError("The number of classes is missing: give --classes 40, or names after --classes.")
    count = int(classes[0]) if len(classes) == 1 and classes[0].isdecimal() else len(o.read_classes(classes) or ())
    if count < 2:
        raise OtptError(f"--classes was given {count}; expected 2 classes or more.")
    return int(what[1]), count


def _datasets(given: Sequence[str]) -> list[tuple[str, int, int, bool]]:
    """(name, images, classes, augmix) of data sets; only the emoji sets are loaded."""
    entries = list_datasets()
    paper = [entry.name for entry in entries[:PAPER_SETS]]
    found = []
    for name in dict.fromkeys(each for word in given for each in (paper if word == "paper" else [word])):
        entry = find_entry(name)
        if name.startswith("emoji/"):
            data = load_dataset(name)
            found.append((name, len(data), len(data.class_names), data.augmix))
        elif entry is not None and entry.test_images is not None:
            found.append((entry.name, entry.test_images, len(entry.class_list().names), entry.augmix))
        else:
            raise unknown("data set", name, [each.name for each in entries])
    return found


@cache
def count_model(spec: str) -> Counts:
    """Count the operations of both towers on tensors without data."""
    config = open_clip.get_model_config(spec.split("/")[0])
    if config is None:
        raise OtptError(f"The architecture {spec!r} is not known; expected a name of open_clip, such as ViT-B-16.")
    torch.backends.mha.set_fastpath_enabled(False)  # the fused attention has no count
    with FakeTensorMode():
        kind = open_clip.CustomTextCLIP if config.pop("custom_text", False) else open_clip.CLIP
        model = kind(**config).eval().requires_grad_(False)
        size = model.visual.image_size
        image = torch.empty(CHUNK, 3, *(size if isinstance(size, tuple) else (size, size)))
        with FlopCounterMode(display=False) as counter:
            model.encode_image(image)
        with _PeakMemory() as memory:
            model.encode_image(image)
        tower = model.transformer if hasattr(model, "transformer") else model.text.transformer
        with FlopCounterMode(display=False) as text:
            tower(torch.empty(8, 5, tower.width))
        weights = sum(4 * parameter.numel() for parameter in model.parameters())
    torch.backends.mha.set_fastpath_enabled(True)
    flops = counter.get_flop_counts()["Global"]
    convolutions = sum(count for operator, count in flops.items() if "conv" in str(operator))
    products = sum(flops.values()) - convolutions
    return Counts((products / CHUNK, convolutions / CHUNK), text.get_total_flops() / 40, weights, memory.peak)


class _PeakMemory(TorchDispatchMode):
    """Peak of the bytes of tensors that are made inside. (torch's MemTracker needs gradients.)"""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._now = 0
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for storage in (each.untyped_storage() for each in tree_leaves(out) if isinstance(each, torch.Tensor)):
            if storage not in self._seen:
                self._seen.add(storage)
                self._add(storage.nbytes())
                weakref.finalize(storage, self._add, -storage.nbytes())
        return out

    def _add(self, size: int) -> None:
        self._now += size
        self.peak = max(self.peak, self._now)


@cache
def find_device(name: str, half: bool = False) -> Device:
    """This machine, measured; or a GPU of the table."""
    products, convolutions, views = measure_core()
    if name == HERE:
        cores = available_threads()
        return Device(cores * products, cores * convolutions, cores, views)
    if name not in GPUS:
        raise unknown("device", name, (HERE, *GPUS))
    rate = 1e12 * ACHIEVED * GPUS[name][1 if half else 0]
    return Device(rate, rate, GPU_CORES, views, is_gpu=True)


@cache
def measure_core() -> tuple[float, float, tuple[float, float]]:
    """Operations per second of a core in products and in convolutions, and its seconds for a view."""
    rows, width = CHUNK * 197, 768
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8))
    photo = noise.resize((500, 375), Image.Resampling.BICUBIC)
    how = Preprocessing(size=224, mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bicubic", resize_mode="shortest")
    with torch.inference_mode(), one_thread():
        x, up, down = torch.randn(rows, width), torch.randn(4 * width, width), torch.randn(width, 4 * width)
        maps, kernel = (
            each.to(memory_format=torch.channels_last)
            for each in (torch.randn(CHUNK, 128, 28, 28), torch.randn(128, 128, 3, 3))
        )
        product = _best(lambda: F.linear(F.linear(x, up), down))
        convolution = _best(lambda: F.conv2d(maps, kernel, padding=1).relu_())
        mixed, plain = (
            _best(lambda recipe=recipe: make_views(photo, recipe, how, seed=0, image_id="plan")) / 16
            for recipe in (ViewRecipe(n_views=17), ViewRecipe(n_views=17, augmix=False))
        )
    operations = 2 * CHUNK * 28 * 28 * 128 * 128 * 9
    return 16 * rows * width**2 / product, operations / convolution, (mixed, plain)


def _best(work: Callable[[], object], rounds: int = 5) -> float:
    """Processor seconds of the fastest round after a first one."""
    found = []
    for _ in range(rounds):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return max(min(found[1:]), 1e-9)
