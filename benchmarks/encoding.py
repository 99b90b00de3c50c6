"""The image tower against plain open_clip: ``python -m benchmarks.encoding [--quick]``.

Seconds for 64 views (quick: 16) of 224 pixels, architectures of real size with random weights: CLIP's own towers and a
convolutional one of timm. Rounds are interleaved and the fastest counts, so that other work on the machine disturbs all
rows alike. The largest difference to the plain features is printed next to each row.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from open_clip import CustomTextCLIP, get_tokenizer, image_transform
from torch import Tensor

from benchmarks.engine import plain_model
from otpt.backbones import Backbone, load_backbone

Encoder = Callable[[Tensor], Tensor]

TIMM = "timm:"
TOWERS = ("RN50-quickgelu", "ViT-B-16-quickgelu", f"{TIMM}tf_efficientnet_lite0")


def random_model(name: str) -> Any:
    """A model with random weights, by open_clip's name, or ``timm:`` and timm's."""
    if name.startswith(TIMM):
        vision = {"timm_model_name": name.removeprefix(TIMM), "timm_pool": "avg", "timm_proj": "linear"}
        text = {"width": 64, "heads": 1, "layers": 1}  # not used here
        torch.manual_seed(0)
        return CustomTextCLIP(embed_dim=512, vision_cfg=vision, text_cfg=text).eval().requires_grad_(False)
    model = plain_model(name.removesuffix("-quickgelu"))
    for key, parameter in model.visual.named_parameters():
        if key.endswith("bn3.weight"):  # a fresh ModifiedResNet multiplies every residual branch by zero
            parameter.fill_(0.5)
    return model


def backbone_of(model: Any, *, compile: bool = False) -> Backbone:
    """Our tower of the model."""
    transform = image_transform((224, 224), is_train=False)
    return load_backbone(model, tokenizer=get_tokenizer("ViT-B-32"), preprocess=transform, compile=compile)


def encoders(model: Any, *, compiled: bool) -> dict[str, Encoder]:
    """By name: pixels (N, 3, S, S) to unit features (N, D)."""

    def plain(visual: Any, chunk: int | None = None) -> Encoder:
        @torch.inference_mode()
        def encode(pixels: Tensor) -> Tensor:
            return F.normalize(torch.cat([visual(part) for part in pixels.split(chunk or len(pixels))]), dim=-1)

        return encode

    found = {"plain, one batch": plain(model.visual), "plain, chunks of 8": plain(model.visual, 8)}
    if compiled:
        found["torch.compile of the plain tower"] = plain(torch.compile(model.visual), 8)
        found["ours, --compile"] = backbone_of(model, compile=True).encode_pixels
    found["ours"] = backbone_of(model).encode_pixels
    return found


def run(
    quick: bool = False, *, towers: Sequence[str] = TOWERS, views: int | None = None, compiled: bool = False
) -> None:
    """Print a table per tower."""
    views, rounds = views or (16 if quick else 64), 2 if quick else 3
    print(f"Encoding {views} views, {torch.get_num_threads()} threads, float32, best of {rounds}")
    pixels = torch.randn(views, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    for name in towers:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ways = encoders(random_model(name), compiled=compiled)
        seconds, features = dict.fromkeys(ways, float("inf")), {}
        for each in range(rounds):
            for way, encode in ways.items():
                if each == 0:
                    encode(pixels[:8])  # warm up: allocations, compilation
                start = time.perf_counter()
                features[way] = encode(pixels)
                seconds[way] = min(seconds[way], time.perf_counter() - start)
        first = next(iter(ways))
        print(f"\n{name}\n{'':36}{'seconds':>9}{'gain':>8}{'difference':>12}")
        for way in ways:
            difference = float((features[way] - features[first]).abs().max())
            print(f"{way:36}{seconds[way]:9.2f}{seconds[first] / seconds[way]:7.2f}×{difference:12.1e}", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="16 views, two rounds")
    parser.add_argument("--compile", action="store_true", help="measure torch.compile as well")
    parser.add_argument("--towers", nargs="+", default=TOWERS, metavar="NAME", help="(default: %(default)s)")
    parser.add_argument("--views", type=int, metavar="N", help="(default: 64, quick 16)")
    options = parser.parse_args()
    run(options.quick, towers=options.towers, views=options.views, compiled=options.compile)


if __name__ == "__main__":
    main()
