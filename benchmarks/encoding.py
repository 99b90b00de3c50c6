"""What each step of tuning the image tower gains: ``python -m benchmarks.encoding [--quick]``.

Seconds for 64 views (quick: 16) on this machine, architectures of real size with random weights: CLIP's own towers, and
one of timm's convolutional ones under an open_clip model. Every step is exact:
the largest difference to the plain features is printed beside it. Repeats are interleaved and the fastest counts, so
that other work on the machine disturbs all rows alike. ``torch.compile``, of the plain tower and as ``--compile`` does
it, is measured for comparison in the full run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from open_clip import CustomTextCLIP
from open_clip.transformer import VisionTransformer
from torch import Tensor

from otpt.backbones import load_backbone
from otpt.backbones.towers.image_tower import ImageTower
from otpt.backbones.tuned.folding import fold_batch_norms
from otpt.backbones.tuned.fusing import fuse_activations
from otpt.backbones.tuned.tuned_vit import tune_vit

Encoder = Callable[[Tensor], Tensor]

TIMM = "timm:"
TOWERS = ("RN50-quickgelu", "ViT-B-16-quickgelu", f"{TIMM}tf_efficientnet_lite0")


def run(
    quick: bool = False, *, towers: Sequence[str] = TOWERS, views: int | None = None
) -> list[tuple[str, str, float, float]]:
    """Print the tables; returns rows (architecture, step, seconds, largest difference to the plain features)."""
    rows: list[tuple[str, str, float, float]] = []
    views, repeats = views or (16 if quick else 64), 2
    print(f"Encoding {views} views, {torch.get_num_threads()} threads, float32, best of {repeats}")
    for name in towers:
        visual = random_tower(name)
        pixels = torch.randn(views, 3, 224, 224, generator=torch.Generator().manual_seed(0))
        tower = ImageTower(visual, 224)
        steps = _steps(visual, tower, compiled=not quick)
        seconds, differences = _measure(steps, pixels, repeats)
        print(f"\n{name}\n{'':52}{'seconds':>9}{'gain':>8}{'difference':>12}")
        first = before = seconds[next(iter(steps))]
        for step, taken in seconds.items():
            mark = "  <- default" if step.endswith("(ours)") else ""
            print(f"{step:52}{taken:9.2f}{before / taken:7.2f}x{differences[step]:12.1e}{mark}")
            rows.append((name, step, taken, differences[step]))
            before = taken if "compile" not in step else before
        print(f"{'plain, one batch / ours':52}{first / seconds['all of it (ours)']:17.2f}x")
        print(f"same bits for a view in any batch: {_same_bits(tower, pixels)}")
    return rows


def random_tower(name: str) -> Any:
    """An image tower with random weights, by open_clip's name, or ``timm:`` and timm's."""
    if name.startswith(TIMM):
        vision = {"timm_model_name": name.removeprefix(TIMM), "timm_pool": "avg", "timm_proj": "linear"}
        text = {"width": 64, "heads": 1, "layers": 1}  # not used here
        torch.manual_seed(0)
        return CustomTextCLIP(embed_dim=512, vision_cfg=vision, text_cfg=text).visual.eval().requires_grad_(False)
    visual = load_backbone(f"random:{name}", device="cpu").text._model.visual
    _spread(visual)
    return visual


def _spread(visual: Any) -> None:
    """A fresh ModifiedResNet multiplies every residual branch by zero; give the branches something to say."""
    with torch.no_grad():
        for name, parameter in visual.named_parameters():
            if name.endswith("bn3.weight"):
                parameter.fill_(0.5)


def _steps(visual: Any, tower: ImageTower, *, compiled: bool) -> dict[str, Encoder]:
    chunk = tower.chunk
    steps: dict[str, Encoder] = {"plain, one batch": _encoder(visual, torch.no_grad())}
    if isinstance(visual, VisionTransformer):
        fused = tune_vit(visual, chunk, pack=False)
        steps["+ inference mode (PyTorch's fast attention path)"] = _encoder(visual)
        steps[f"+ chunks of {chunk}"] = _encoder(visual, chunk=chunk)
        steps["+ fused attention, SiLU, last block one token"] = _encoder(fused, chunk=chunk)
    else:
        pixels = torch.zeros(1, 3, 224, 224)
        folded = fold_batch_norms(visual, pixels)
        last: Any = fold_batch_norms(visual, pixels).to(memory_format=torch.channels_last)
        steps["+ inference mode"] = _encoder(visual)
        steps["+ folded batch-norms"] = _encoder(folded)
        steps["+ channels_last"] = _encoder(last, channels_last=True)
        steps[f"+ chunks of {chunk}"] = _encoder(last, channels_last=True, chunk=chunk)
        if hasattr(visual, "trunk"):  # timm's; CLIP's own ResNet has a tuned form of its own
            fused = fuse_activations(deepcopy(last), pixels, chunk)
            steps["+ activations fused with convolutions"] = _encoder(fused, channels_last=True, chunk=chunk)
    if compiled:
        steps["torch.compile of the plain tower, in chunks"] = _encoder(torch.compile(visual), chunk=chunk)
        steps["--compile"] = ImageTower(visual, 224, compile=True)
    steps["all of it (ours)"] = tower
    return steps


def _encoder(
    visual: Any,
    mode: AbstractContextManager[Any] | None = None,
    *,
    chunk: int | None = None,
    channels_last: bool = False,
) -> Encoder:
    order = torch.channels_last if channels_last else torch.contiguous_format

    def encode(pixels: Tensor) -> Tensor:
        with mode or torch.inference_mode():
            parts = [visual(part.contiguous(memory_format=order)) for part in pixels.split(chunk or len(pixels))]
            return F.normalize(torch.cat(parts), dim=-1)

    return encode


def _measure(steps: dict[str, Encoder], pixels: Tensor, repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    seconds = dict.fromkeys(steps, float("inf"))
    differences: dict[str, float] = {}
    plain: Tensor | None = None
    for repeat in range(repeats):
        for step, encode in steps.items():
            if repeat == 0:
                encode(pixels[:8])  # warm up: allocations, compilation
            start = time.perf_counter()
            features = encode(pixels)
            seconds[step] = min(seconds[step], time.perf_counter() - start)
            plain = features if plain is None else plain
            differences[step] = float((features - plain).abs().max())
    return seconds, differences


def _same_bits(tower: ImageTower, pixels: Tensor) -> bool:
    """One view alone, among three, and at another place among others: equal to the last bit?"""
    alone, three = tower(pixels[1:2])[0], tower(pixels[:3])[1]
    elsewhere = tower(torch.cat([pixels[5:12], pixels[1:2]]))[-1]
    return torch.equal(alone, three) and torch.equal(alone, elsewhere)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="16 views, two repeats, no torch.compile")
    parser.add_argument("--towers", nargs="+", default=TOWERS, metavar="NAME", help="(default: %(default)s)")
    parser.add_argument("--views", type=int, metavar="N", help="a multiple of 8 (default: 64, quick 16)")
    options = parser.parse_args()
    run(options.quick, towers=options.towers, views=options.views)


if __name__ == "__main__":
    main()
