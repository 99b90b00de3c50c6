"""Predicted against measured seconds: ``python -m benchmarks.costs [--quick]``.

This machine is measured as ``otpt doctor --speed`` does (matrix products, convolutions, bandwidth). From that and the
shapes alone follow the seconds of one core for encoding views and for the text side of O-TPT; the same work is then
done with random weights. Both in processor seconds of one thread, so that other programs count little; what they take
of the caches still does. On a quiet machine the ratio must be within 20 %.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import torch

from benchmarks.engine import class_names
from otpt.backbones import load_backbone
from otpt.costs import Device, image_cost, measure_speed, read_architecture, texts_of
from otpt.costs.devices import this_machine
from otpt.methods import get_method
from otpt.methods.prompt_tuning import prompt_state, tune

CASES = {"ViT-B-32": 16, "RN50": 16, "ViT-B-16": 16, "ViT-L-14": 8}
"""Architectures, and views to encode."""
ROUNDS = 3


def best(work: Callable[[], object]) -> float:
    """Processor seconds of the fastest of some rounds."""
    work()
    found = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return min(found)


def compare(architecture: str, views: int, classes: int, device: Device) -> Iterator[tuple[str, float, float]]:
    """(what, predicted, measured) seconds."""
    names = tuple(class_names(classes))
    model, method = read_architecture(architecture), get_method("o-tpt")
    cost = image_cost(model, texts_of(names), [method], views=views)
    backbone = load_backbone(f"random:{architecture}", device="cpu")
    size = backbone.preprocessing.size
    pixels = torch.randn(views, 3, size, size)
    yield f"{views} views", device.seconds(cost.image), best(lambda: backbone.encode_pixels(pixels))
    features = backbone.encode_pixels(pixels)[None].clone()
    text = prompt_state(backbone, names, allow_duplicates=True)
    config = method.tuning("fine-grained")
    assert config is not None
    yield (
        f"text, {classes} classes",
        device.seconds(cost.text) + device.seconds(cost.rest),
        best(lambda: tune(text, features, [config])),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="ViT-B/32 and RN50 alone, fewer classes")
    parser.add_argument("--classes", type=int, metavar="C", help="default: 100, in short 20")
    options = parser.parse_args()
    torch.set_num_threads(1)
    speed = measure_speed("this processor", clock=time.process_time)
    print(
        f"one thread: matrix products {speed.products / 1e9:.1f}, convolutions {speed.convolutions / 1e9:.1f} GFLOP/s, "
        f"bandwidth {speed.bandwidth / 1e9:.2f} GB/s\n"
    )
    print(f"{'':10} {'':18} predicted  measured  predicted/measured")
    classes = options.classes or (20 if options.quick else 100)
    for architecture, views in list(CASES.items())[: 2 if options.quick else None]:
        for what, predicted, measured in compare(architecture, views, classes, this_machine(speed)):
            ratio = predicted / measured
            print(f"{architecture:10} {what:18} {predicted:9.3f} {measured:9.3f} {ratio:19.2f}", flush=True)


if __name__ == "__main__":
    main()
