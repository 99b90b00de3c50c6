"""How fast this machine is at what predictions are made of: ``otpt doctor --speed``, about ten seconds.

Every figure is taken as the engine runs: one thread per piece of work, all threads at a time; the best of several
rounds, since other programs only ever make it slower.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from otpt.errors import OtptError
from otpt.files import as_json, read_json, write_atomically

_FILE = "speed.json"
_ROUNDS = 5


@dataclass(frozen=True)
class Speed:
    """What was measured.

    Attributes:
        products, convolutions: operations per second, all threads together, single precision.
        bandwidth: bytes per second of operators such as norms and sums, on activations of the usual size.
        mixed_view, plain_view: seconds of one core for a view of a 500×375 image, by AugMix or by cropping alone.
        threads: that computed.
    """

    processor: str
    threads: int
    products: float
    convolutions: float
    bandwidth: float
    mixed_view: float
    plain_view: float


def speed_path(cache: Path) -> Path:
    """Where it is kept, in the folder of the feature cache."""
    return cache / _FILE


def write_speed(path: Path, speed: Speed) -> None:
    """Keep it for plans."""
    write_atomically(path, as_json(asdict(speed)))


def read_speed(path: Path) -> Speed | None:
    """What was measured before; None if nothing was."""
    if not path.is_file():
        return None
    value: Any = read_json(path, "measured speed")
    try:
        rates = (float(value[each.name]) for each in fields(Speed)[2:])
        return Speed(str(value["processor"]), int(value["threads"]), *rates)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise OtptError(
            f"The measured speed {str(path)!r} is damaged; delete it, or run 'otpt doctor --speed' again."
        ) from None


def measure_speed(processor: str, *, clock: Callable[[], float] = time.perf_counter, rounds: int = _ROUNDS) -> Speed:
    """Measure. ``clock``: ``time.process_time`` counts processor seconds, of one thread, also on a busy machine."""
    import torch
    from torch.nn import functional as F

    from otpt.threads import available_threads, in_threads

    threads = available_threads()
    chunk, width = 8 * 197, 768  # a chunk of ViT-B/16

    def rate(work: Callable[[Any], Any], amount: float, inputs: list[Any]) -> float:
        return amount * len(inputs) / _best(lambda: in_threads(work, inputs), clock, rounds)

    with torch.inference_mode():
        weight, back = torch.randn(4 * width, width), torch.randn(width, 4 * width)
        rows = [torch.randn(chunk, width) for _ in range(threads)]
        products = rate(lambda x: F.linear(F.linear(x, weight), back), 16.0 * chunk * width**2, rows)
        kernel = torch.randn(128, 128, 3, 3).to(memory_format=torch.channels_last)
        maps = [torch.randn(8, 128, 28, 28).to(memory_format=torch.channels_last) for _ in range(threads)]
        operations = 2.0 * 8 * 28 * 28 * 128 * 128 * 9
        convolutions = rate(lambda x: F.conv2d(x, kernel, padding=1), operations, maps)
        scale, shift = torch.ones(width), torch.zeros(width)
        # a norm, an activation and a sum, as between the linear maps of a block: 7 arrays are read or written
        bandwidth = rate(lambda x: F.silu(F.layer_norm(x, (width,), scale, shift)) + x, 7.0 * 4 * chunk * width, rows)
    mixed, plain = (_view_seconds(augmix, clock) for augmix in (True, False))
    return Speed(processor, threads, products, convolutions, bandwidth, mixed, plain)


def _view_seconds(augmix: bool, clock: Callable[[], float]) -> float:
    import numpy as np
    from PIL import Image

    from otpt.backbones.preprocessing import Preprocessing
    from otpt.views import ViewRecipe, make_views

    draw = np.random.default_rng(0)
    noise = Image.fromarray(draw.integers(0, 256, (24, 32, 3), dtype=np.uint8))
    image = noise.resize((500, 375), Image.Resampling.BICUBIC)
    how = Preprocessing(size=224, mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bicubic", resize_mode="shortest")
    recipe = ViewRecipe(n_views=17, augmix=augmix)
    return _best(lambda: make_views(image, recipe, how, seed=0, image_id="speed"), clock, 2) / 16


def _best(work: Callable[[], object], clock: Callable[[], float], rounds: int) -> float:
    """Seconds of the fastest round; the first one warms up, and says how often to repeat for a reading."""
    begun = clock()
    work()
    times = max(1, round(0.05 / max(clock() - begun, 1e-6)))
    found = []
    for _ in range(rounds):
        begun = clock()
        for _ in range(times):
            work()
        found.append((clock() - begun) / times)
    return max(min(found), 1e-9)
