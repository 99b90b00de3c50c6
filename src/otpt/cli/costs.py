"""Predicted operations, seconds and bytes of methods per image.

Operations are counted by torch on tensors without data. Their time here follows from short timings of this processor,
on GPUs from their makers' data sheets, of which half is assumed to be reached.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import open_clip
import torch
from PIL import Image
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from otpt.errors import OtptError, unknown
from otpt.methods import Method
from otpt.threads import available_threads, one_thread
from otpt.views import Preprocessing, ViewRecipe, make_views

HERE = "here"
ACHIEVED = 0.5
"""Fraction of a GPU's published peak that is assumed to be reached."""
GPU_CORES = 8
"""Processor cores next to a GPU, which make the views."""
NAME_TOKENS, SHARED_TOKENS = 4.5, 5
"""Tokens of a class name with its end, and those that all classes share."""
CHUNK = 8
"""Views that go through the image tower together."""
GPUS = {
    "t4": (8.1, 65), "v100": (15.7, 125), "l4": (30.3, 121), "a6000": (38.7, 155), "rtx-4090": (82.6, 165),
    "a100": (19.5, 312), "h100": (67, 989),
}  # fmt: skip
"""TFLOP/s in float32 and in half precision."""


@dataclass(frozen=True)
class Cost:
    """What an image costs."""

    views: int
    flops: float
    seconds: float
    bytes: float


def predict_cost(
    backbone: str, methods: Sequence[Method], device: str, classes: int, views: int, augmix: bool, half: bool = False
) -> Cost:
    """Operations, seconds and bytes per image; views are encoded once for all methods."""
    model = count_model(backbone)
    views = max(method.views or views if method.needs_views("fine-grained") else 1 for method in methods)
    steps = [tuning.steps for method in methods if method.tunes and (tuning := method.tuning("fine-grained"))]
    tokens = SHARED_TOKENS + NAME_TOKENS * classes
    products = views * model.products + 2 * sum(steps) * model.token * tokens  # a product and a forward pass each
    convolutions = views * model.convolutions
    core = measure_core()
    making = (views - 1) * (core.mixed_view if augmix else core.plain_view)
    if device == HERE:
        cores = available_threads()
        seconds = (products / core.products + convolutions / core.convolutions + making) / cores
    elif device in GPUS:
        cores = GPU_CORES
        rate = 1e12 * ACHIEVED * GPUS[device][1 if half else 0]
        seconds = max((products + convolutions) / rate, making / cores)
    else:
        raise unknown("device", device, (HERE, *GPUS))
    graph = 14 / 6 * model.token / 768 * tokens if steps else 0.0
    return Cost(views, products + convolutions, seconds, model.weights + cores * model.work + graph)


@dataclass(frozen=True)
class Counts:
    """Operations of a view in products and in convolutions, and of a token of text; bytes of weights and work."""

    products: float
    convolutions: float
    token: float
    weights: float
    work: float


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
        with FlopCounterMode(display=False) as counter, _PeakMemory() as memory:
            model.encode_image(image)
        tower = model.transformer if hasattr(model, "transformer") else model.text.transformer
        with FlopCounterMode(display=False) as text:
            tower(torch.empty(8, 5, tower.width))
        weights = sum(4 * parameter.numel() for parameter in model.parameters())
    torch.backends.mha.set_fastpath_enabled(True)
    flops = counter.get_flop_counts()["Global"]
    convolutions = sum(count for operator, count in flops.items() if "conv" in str(operator))
    products = sum(flops.values()) - convolutions
    return Counts(products / CHUNK, convolutions / CHUNK, text.get_total_flops() / 40, weights, memory.peak)


class _PeakMemory(TorchDispatchMode):
    """Peak of the bytes of tensors that are made inside. (torch's MemTracker needs gradients.)"""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
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


@dataclass(frozen=True)
class Core:
    """Operations per second of a core in products and in convolutions, and its seconds for a view."""

    products: float
    convolutions: float
    mixed_view: float
    plain_view: float


@cache
def measure_core() -> Core:
    """Time a core of this processor."""
    rows, width = CHUNK * 197, 768
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8))
    photo = noise.resize((500, 375), Image.Resampling.BICUBIC)
    how = Preprocessing(size=224, mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bicubic", resize_mode="shortest")
    mixed, plain = ViewRecipe(n_views=17), ViewRecipe(n_views=17, augmix=False)
    views = [partial(make_views, photo, recipe, how, seed=0, image_id="plan") for recipe in (mixed, plain)]
    with torch.inference_mode(), one_thread():
        x, up, down = torch.randn(rows, width), torch.randn(4 * width, width), torch.randn(width, 4 * width)
        maps = torch.randn(CHUNK, 128, 28, 28).to(memory_format=torch.channels_last)
        kernel = torch.randn(128, 128, 3, 3).to(memory_format=torch.channels_last)
        products = 16 * rows * width**2 / _best(lambda: F.linear(F.linear(x, up), down))
        operations = 2 * CHUNK * 28 * 28 * 128 * 128 * 9
        convolutions = operations / _best(lambda: F.conv2d(maps, kernel, padding=1).relu_())
        return Core(products, convolutions, *(_best(make) / 16 for make in views))


def _best(work: Callable[[], object], rounds: int = 5) -> float:
    """Processor seconds of the fastest round after a first one."""
    found = []
    for _ in range(rounds):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return max(min(found[1:]), 1e-9)
