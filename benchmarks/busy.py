"""What a busy neighbour costs: ``python -m benchmarks.busy [--quick]``.

Images per second on a quiet machine and beside a process that keeps one core busy, in two ways. *Within operators*:
chunks of views one after the other, each operator shared by all cores, whose barriers wait for the slowest core. *Per
chunk* (ours): each chunk computed by one thread, several at a time. An image is 64 views (quick: rates of 16 views are
converted). The ways take turns, and the best of several repeats counts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, TypeVar
from unittest.mock import patch

import torch

from benchmarks.encoding import TIMM, random_tower
from benchmarks.engine import class_names, photograph
from otpt.backbones import load_backbone
from otpt.backbones.towers.image_tower import ImageTower
from otpt.classifier import Classifier
from otpt.views import ViewRecipe

TOWERS = ("RN50-quickgelu", "ViT-B-16-quickgelu", f"{TIMM}tf_efficientnet_lite0", "pocket")
WAYS = ("within operators", "per chunk (ours)")
VIEWS = 64
_BUSY = "while True: pass"
_CLASSES = 50

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def run(quick: bool = False, *, towers: Sequence[str] = TOWERS, repeats: int | None = None) -> None:
    """Print the table, a case as soon as it is measured."""
    views, repeats = 16 if quick else VIEWS, repeats or (2 if quick else 5)
    print(f"{views} views, {torch.get_num_threads()} threads, float32, images per second, best of {repeats}")
    print(f"{'':36}{'way':20}{'alone':>8}{'busy':>8}{'kept':>8}{'ratio alone':>13}{'busy':>8}")
    for name in towers:
        for title, images, work in _cases(name, views, quick):
            rates = _rates(work, images, repeats)
            for way in WAYS:
                alone, busy = (rates[way, state] for state in ("alone", "busy"))
                ratios = [rates[way, state] / rates[WAYS[0], state] for state in ("alone", "busy")]
                shown = "" if way == WAYS[0] else f"{ratios[0]:12.2f}×{ratios[1]:7.2f}×"
                label = title if way == WAYS[0] else ""
                print(f"{label:36}{way:20}{alone:8.2f}{busy:8.2f}{100 * busy / alone:6.0f} %{shown}", flush=True)


def _cases(name: str, views: int, quick: bool) -> Iterator[tuple[str, float, Callable[[], object]]]:
    """What is measured of a tower: title, number of images (of 64 views), and the work."""
    if name != "pocket":
        tower = ImageTower(random_tower(name), 224)
        pixels = torch.randn(views, 3, 224, 224, generator=torch.Generator().manual_seed(0))
        yield f"{name.removeprefix(TIMM)}, encoding", views / VIEWS, lambda: tower(pixels)
        return
    backbone = load_backbone(name, device="cpu")
    images = 2 if quick else 8
    side = backbone.preprocessing.size
    small = torch.randn(images * views, 3, side, side, generator=torch.Generator().manual_seed(0))
    yield f"{name}, encoding", images * views / VIEWS, lambda: backbone.encode_pixels(small)
    classifier = Classifier(backbone, "o-tpt", recipe=ViewRecipe(n_views=views)).set_classes(class_names(_CLASSES))
    photographs = [photograph(seed) for seed in range(images)]
    title = f"{name}, o-tpt, {_CLASSES} classes"
    yield title, images * views / VIEWS, lambda: classifier.predict(photographs)


def _rates(work: Callable[[], object], images: float, repeats: int) -> dict[tuple[str, str], float]:
    """Images per second by way and state."""
    best: dict[tuple[str, str], float] = {}
    work()  # warm up: allocations, threads
    for _ in range(repeats):
        for state, neighbour in (("alone", nullcontext), ("busy", _neighbour)):
            with neighbour():
                for way in WAYS:
                    with _within_operators() if way == WAYS[0] else nullcontext():
                        start = time.perf_counter()
                        work()
                        rate = images / (time.perf_counter() - start)
                    best[way, state] = max(best.get((way, state), 0.0), rate)
    return best


@contextmanager
def _within_operators() -> Iterator[None]:
    """The same chunks in this thread, one after the other, with all threads that torch has."""

    def in_turn(work: Callable[[_In], _Out], items: Sequence[_In], **_: Any) -> list[_Out]:
        return [work(item) for item in items]

    with ExitStack() as stack:
        for module in ("otpt.backbones.towers.image_tower", "otpt.methods.predictor"):
            stack.enter_context(patch(f"{module}.in_threads", in_turn))
        yield


@contextmanager
def _neighbour() -> Iterator[None]:
    """A process that keeps one core busy."""
    with subprocess.Popen([sys.executable, "-c", _BUSY]) as busy:
        time.sleep(0.3)
        try:
            yield
        finally:
            busy.kill()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="16 views, two repeats")
    parser.add_argument("--towers", nargs="+", default=TOWERS, metavar="NAME", help="(default: %(default)s)")
    parser.add_argument("--repeats", type=int, metavar="N", help="(default: 5, quick 2)")
    options = parser.parse_args()
    run(options.quick, towers=options.towers, repeats=options.repeats)


if __name__ == "__main__":
    main()
