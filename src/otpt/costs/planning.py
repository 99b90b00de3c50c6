"""A plan: images, operations, hours and memory of methods on a data set, on one machine or on several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from otpt.costs.architecture import Architecture
from otpt.costs.devices import Device
from otpt.costs.language import Texts
from otpt.costs.memory import Memory, memory_of
from otpt.costs.vision import CHUNK
from otpt.costs.work import ImageCost, image_cost
from otpt.errors import OtptError
from otpt.methods import Method

BATCH = {"cpu": 1, "gpu": 8}
"""Images whose text sides are computed together."""


@dataclass(frozen=True)
class Planned:
    """What methods on a data set take; all of it predicted, nothing of it measured.

    Attributes:
        images: of the data set, under each seed.
        seeds: how many.
        cost: of one image under one seed.
        device_seconds: per image on the device; encoding and text side.
        view_seconds: per image of one core, to make its views.
        seconds: per image, on one machine.
        hours: of all images and seeds, on all machines together at a time.
        memory: of one process.
    """

    dataset: str
    images: int
    seeds: int
    classes: int
    cost: ImageCost
    device_seconds: float
    view_seconds: float
    seconds: float
    hours: float
    memory: Memory

    @property
    def flops(self) -> float:
        """Of all images and seeds."""
        return self.images * self.seeds * self.cost.all.flops


def plan_dataset(
    model: Architecture,
    texts: Texts,
    methods: Sequence[Method],
    device: Device,
    *,
    dataset: str,
    images: int,
    seeds: int = 1,
    views: int = 64,
    augmix: bool = True,
    family: str = "fine-grained",
    prompts: int = 1,
    precision: str = "float32",
    machines: int = 1,
    cached: bool = True,
) -> Planned:
    """The plan for one data set; see :func:`otpt.costs.image_cost` for what decides the cost of an image.

    ``precision`` is that of the image tower; the text side is in single precision. On a GPU views are made by the
    cores beside it at the same time, and the slower of the two decides; on a CPU both take the same cores.
    """
    for name, value in (("images", images), ("seeds", seeds), ("machines", machines), ("views", views)):
        if value < 1:
            raise OtptError(f"The number of {name} is {value}; expected 1 or more.")
    cost = image_cost(
        model,
        texts,
        methods,
        views=views,
        augmix=augmix,
        family=family,
        dataset=dataset,
        prompts=prompts,
        cached=cached,
        chunk=CHUNK[device.kind],
        batch=BATCH[device.kind],
    )
    on_device = device.seconds(cost.image, precision) + device.seconds(cost.text) + device.seconds(cost.rest)
    plain = cost.views - cost.mixed
    on_core = cost.mixed * device.view_seconds[True] + plain * device.view_seconds[False]
    at_once = on_core / device.cores
    seconds = on_device + at_once if device.kind == "cpu" else max(on_device, at_once)
    memory = memory_of(
        model,
        texts,
        kind=device.kind,
        threads=device.cores,
        tunes=any(method.tunes for method in methods),
        half=precision in {"bf16", "fp16"},
    )
    hours = images * seeds * seconds / machines / 3600
    return Planned(dataset, images, seeds, texts.classes, cost, on_device, on_core, seconds, hours, memory)
