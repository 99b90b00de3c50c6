"""Devices by name, and how long work takes on one.

On a GPU a part of the work (image tower, text side) takes the longest of three: its operations at the rate that is
achieved, its bytes at the bandwidth that is achieved, and the starting of its kernels. On a CPU operations and bytes
take their time one after the other, as its kernels do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from otpt.costs.operations import Cost
from otpt.errors import OtptError, unknown
from otpt.files import parse_toml

if TYPE_CHECKING:
    from otpt.costs.speed import Speed

ACHIEVED = 0.5
"""Of a GPU's published peak and bandwidth: an assumption; ``--achieved`` takes another."""
ACHIEVED_ON_CPU = 0.75
"""Of a core's peak, as measured: 2 cores encode 64 views by ViT-B/16 in 9.1 s (docs/performance.md)."""
LAUNCH_SECONDS = 6e-6
"""To start a kernel on a GPU; an assumption."""
VIEW_SECONDS = {True: 0.206 / 63, False: 0.080 / 63}
"""To make a view of a photograph on one core, by AugMix or by cropping alone (docs/performance.md)."""
PRECISIONS = ("float32", "tf32", "bf16", "fp16")


@dataclass(frozen=True)
class Device:
    """What computes.

    Attributes:
        name: "a6000", "cpu", or "this machine".
        kind: "cpu" or "gpu".
        products, convolutions: operations per second that are achieved, by precision.
        bandwidth: bytes per second that are achieved.
        memory: bytes; None where it is not known.
        cores: that make views; on a CPU they also compute.
        view_seconds: to make a view on one core, mixed or not.
        assumed: what of this is an assumption, in words.
    """

    name: str
    title: str
    kind: str
    products: Mapping[str, float]
    convolutions: Mapping[str, float]
    bandwidth: float
    memory: float | None
    cores: int
    view_seconds: Mapping[bool, float]
    assumed: str

    def seconds(self, cost: Cost, precision: str = "float32") -> float:
        """How long a part of the work takes."""
        if precision not in self.products:
            raise OtptError(f"The device {self.name!r} has no {precision}; expected {' or '.join(self.products)}.")
        computing = cost.products / self.products[precision] + cost.convolutions / self.convolutions[precision]
        moving = cost.bytes * (1.0 if precision in {"float32", "tf32"} else 0.5) / self.bandwidth
        if self.kind == "cpu":
            return computing + moving
        return max(computing, moving, LAUNCH_SECONDS * cost.operators)


@cache
def _table() -> Mapping[str, Mapping[str, float | str]]:
    text = resources.files(__package__).joinpath("devices.toml").read_text(encoding="utf-8")
    return parse_toml(text)


def list_devices() -> list[str]:
    """Names of the table."""
    return list(_table())


def name_of(title: str) -> str | None:
    """The device of the table that a driver calls ``title``, such as "NVIDIA A100-SXM4-80GB"; None if it has none."""
    words = title.lower().replace("-", " ").split()
    return next((name for name in list_devices() if set(name.split("-")) <= set(words)), None)


def find_device(name: str, *, cores: int = 8, achieved: float | None = None, besides: Sequence[str] = ()) -> Device:
    """A device of the table.

    Args:
        besides: further names that the caller knows, for the error.
        cores: that make views; of "cpu" those that compute.
        achieved: fraction of the published peak and bandwidth.
    """
    row = _table().get(name.lower().replace("_", "-").replace(" ", "-"))
    if row is None:
        raise unknown("device", name, [*besides, *list_devices()])
    on_cpu = bool(row.get("per_core"))
    fraction = achieved if achieved is not None else ACHIEVED_ON_CPU if on_cpu else ACHIEVED
    if not 0 < fraction <= 1:
        raise OtptError(f"The achieved fraction is {fraction}; expected a number above 0, at most 1.")
    if cores < 1:
        raise OtptError(f"The number of cores is {cores}; expected 1 or more.")
    times = cores if on_cpu else 1
    rates = {each: 1e12 * fraction * times * float(row[each]) for each in PRECISIONS if each in row}
    title = f"{cores} × {row['title']}" if on_cpu else str(row["title"])
    return Device(
        name=name.lower(),
        title=title,
        kind="cpu" if on_cpu else "gpu",
        products=rates,
        convolutions=rates,
        bandwidth=1e9 * fraction * times * float(row["bandwidth"]),
        memory=1e9 * float(row["memory"]) if "memory" in row else None,
        cores=cores,
        view_seconds=VIEW_SECONDS,
        assumed=f"{100 * fraction:.0f} % of the published peak and bandwidth",
    )


def this_machine(speed: Speed) -> Device:
    """The machine that was measured by ``otpt doctor --speed``."""
    return Device(
        name="this machine",
        title=f"{speed.processor}, {speed.threads} threads",
        kind="cpu",
        products={"float32": speed.products},
        convolutions={"float32": speed.convolutions},
        bandwidth=speed.bandwidth,
        memory=None,
        cores=speed.threads,
        view_seconds={True: speed.mixed_view, False: speed.plain_view},
        assumed="measured by 'otpt doctor --speed'",
    )
