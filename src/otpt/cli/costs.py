"""Predicted operations, seconds and bytes of methods per image.

Operations are counted by torch on tensors without data. Their time here follows from short timings of this processor,
on GPUs from their makers' data sheets, of which half is assumed to be reached.
"""

from __future__ import annotations

import time
import timeit
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cache, partial
from typing import NamedTuple

import open_clip
import torch
from PIL import Image
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from otpt.backbones import pocket, pocket_photo
from otpt.backbones.known_models import ALL_TOKENS, WITHOUT_PADDING, texts_of
from otpt.backbones.open_clip_models import ModelConfig
from otpt.errors import OtptError, unknown
from otpt.methods import Method
from otpt.prompts import MEMORY_BUDGET
from otpt.threads import available_threads, one_thread
from otpt.views import Preprocessing, ViewRecipe, make_views

HERE = "here"
_EMBEDDED = {"pocket": pocket, "pocket-photo": pocket_photo}
ACHIEVED = 0.5
"""Fraction of a GPU's published peak that is assumed to be reached."""
GPU_CORES = 8
"""Processor cores next to a GPU, which make the views."""
NAME_TOKENS, SHARED_TOKENS = 4.5, 5
"""Tokens of a class name with its end, and those that all classes share."""
_GRAPH_FLOATS = {False: 14, True: 16}
"""Numbers stored for the backward pass per token and layer, in units of the width, with and without a shared prefix."""
CHUNK = 8
"""Views that go through the image tower together."""
GPUS = {
    "t4": (8.1, 65), "v100": (15.7, 125), "l4": (30.3, 121), "a6000": (38.7, 155), "rtx-4090": (82.6, 165),
    "a100": (19.5, 312), "h100": (67, 989),
}  # fmt: skip
"""TFLOP/s in float32 and in half precision."""


class Cost(NamedTuple):
    """What an image costs."""

    views: int
    flops: float
    seconds: float
    bytes: float


def predict_cost(
    backbone: str, methods: Sequence[Method], device: str, classes: int, views: int, augmix: bool, half: bool = False
) -> Cost:
    """Estimate operations, seconds and bytes per image; views are encoded once for all methods."""
    model = count_model(backbone)
    views = max(method.views or views if method.needs_views("fine-grained") else 1 for method in methods)
    steps = [tuning.steps for method in methods if method.tunes and (tuning := method.tuning("fine-grained"))]
    tokens = model.context * classes if model.context else SHARED_TOKENS + NAME_TOKENS * classes
    graph = _GRAPH_FLOATS[bool(model.context)] * model.token / 6 / 768 * tokens if steps else 0.0
    passes = 2 if graph <= MEMORY_BUDGET else 3  # a product and a forward pass; the graph is recomputed if it is large
    products = views * model.products + passes * sum(steps) * model.token * tokens
    convolutions = views * model.convolutions
    core = measure_core()
    making = (views - 1) * (core.mixed_view if augmix else core.plain_view)
    if device not in (HERE, *GPUS):
        raise unknown("device", device, (HERE, *GPUS))
    cores = available_threads() if device == HERE else GPU_CORES
    if device == HERE:
        seconds = (products / core.products + convolutions / core.convolutions + making) / cores
    else:
        seconds = max((products + convolutions) / (1e12 * ACHIEVED * GPUS[device][half]), making / cores)
    memory = model.weights + cores * model.work + min(graph, MEMORY_BUDGET)
    return Cost(views, products + convolutions, seconds, memory)


class Counts(NamedTuple):
    """Operations of a view in products and in convolutions, and of a token of text; bytes of weights and work.

    ``context`` is the number of tokens that are computed per class if no prefix can be shared, or 0.
    """

    products: float
    convolutions: float
    token: float
    weights: float
    work: float
    context: int


@cache
def count_model(spec: str) -> Counts:
    """Count the operations of both towers on tensors without data."""
    config = _model_config(spec)
    if config is None:
        raise OtptError(
            f"The architecture {spec!r} is not known; expected {', '.join(_EMBEDDED)} or a name of open_clip."
        )
    texts = texts_of(config)
    if texts == WITHOUT_PADDING:
        raise OtptError(f"The text tower of {spec!r} is on the Hugging Face hub, so its operations are not known here.")
    context = int(config["text_cfg"].get("context_length", 77)) if texts == ALL_TOKENS else 0
    with _unfused_attention(), torch.device("meta"):
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
    flops = counter.get_flop_counts()["Global"]
    convolutions = sum(count for operator, count in flops.items() if "conv" in str(operator))
    products = sum(flops.values()) - convolutions
    return Counts(products / CHUNK, convolutions / CHUNK, text.get_total_flops() / 40, weights, memory.peak, context)


def _model_config(spec: str) -> ModelConfig | None:
    """Return open_clip's configuration of a model by its specification, or None for other models."""
    embedded = _EMBEDDED.get(spec)
    if embedded is not None:
        embedded.register_trunk()
        return deepcopy(embedded.CONFIG["model_cfg"])
    architecture = spec.removeprefix("random:").split("/")[0]
    return None if ":" in architecture else open_clip.get_model_config(architecture)


@contextmanager
def _unfused_attention() -> Iterator[None]:
    """Compute attention operator by operator, because the fused one has no count."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class _PeakMemory(TorchDispatchMode):
    """Peak of the bytes of tensors that are made inside. (torch's MemTracker needs gradients.)"""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._alive: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        out = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        self._alive.update(tensor.untyped_storage() for tensor in tensors)
        self.peak = max(self.peak, sum(storage.nbytes() for storage in self._alive))
        return out


class Core(NamedTuple):
    """Operations per second of a core in products and in convolutions, and its seconds for a view."""

    products: float
    convolutions: float
    mixed_view: float
    plain_view: float


@cache
def measure_core() -> Core:
    """Time a core of this processor."""
    rows, width = CHUNK * 197, 768
    photo = Image.effect_noise((500, 375), 64).convert("RGB")
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


def _best(work: Callable[[], object]) -> float:
    """Return the CPU seconds of the fastest round after a warm-up."""
    return max(min(timeit.repeat(work, timer=time.process_time, number=1, repeat=5)[1:]), 1e-9)


def feature_bytes(backbone: str, views: int) -> float:
    """Return the bytes that the features of an image and its gradients take in the cache, by the architecture."""
    config = _model_config(backbone)
    if config is None:
        return 0.0
    return 4.0 * (views * int(config["embed_dim"]) + 4 * int(config["text_cfg"]["width"]))


def gpu_here(device: str) -> str | None:
    """Return the name in :data:`GPUS` of the GPU that ``device`` means here, ``HERE`` without one, or None."""
    if device == "auto" and not torch.cuda.is_available():
        return HERE
    if not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name(torch.device("cuda" if device == "auto" else device)).lower().replace(" ", "-")
    return next((gpu for gpu in GPUS if gpu in name), None)
