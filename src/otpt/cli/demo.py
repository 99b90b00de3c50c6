"""``otpt demo``: every core method on one picture, with nothing to download."""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

from PIL import Image, ImageDraw, ImageFilter
from rich.console import Console
from rich.table import Table

from otpt.classifier import Prediction, load
from otpt.methods import builtin_methods

BACKBONE = "random:ViT-B-32"
CLASSES = [
    "sailing boat",
    "mountain",
    "sunflower",
    "red panda",
    "bicycle",
    "coffee cup",
    "lighthouse",
    "umbrella",
]


def add_command(commands: Any) -> None:
    """Register ``demo``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo",
        help="all methods on one picture, no download",
        description="Classify a drawn picture by every core method with a CLIP of random weights.",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Draw, classify, print."""
    methods = {name: method for name, method in builtin_methods().items() if method.ready}
    print(
        f"A ViT-B/32 with random weights, {len(CLASSES)} classes, 64 views of a drawn picture, {len(methods)} methods."
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classifier = load(BACKBONE, device="cpu").set_classes(CLASSES)
    started = time.perf_counter()
    answers = classifier.compare(draw_boat(), list(methods))
    seconds = time.perf_counter() - started
    Console(highlight=False).print(_table(answers))
    print(
        f"\nAll of them together took {seconds:.1f} s: "
        "the views are made and encoded once, and the entropy's gradient is shared."
    )
    print("The weights are random, so the labels mean nothing; what is computed is the real thing. With real weights:")
    print(
        '  otpt predict photo.jpg --classes cat dog "red panda" --backbone ViT-B-16/openai --method zero-shot tpt o-tpt'
    )
    return 0


def draw_boat() -> Image.Image:
    """A boat on the sea, 480×360."""
    picture = Image.new("RGB", (480, 360), (135, 190, 235))
    pen = ImageDraw.Draw(picture)
    pen.ellipse((370, 30, 430, 90), fill=(250, 220, 90))
    pen.rectangle((0, 240, 480, 360), fill=(30, 90, 150))
    pen.polygon([(230, 60), (230, 225), (330, 225)], fill=(245, 245, 240))
    pen.polygon([(220, 90), (220, 225), (150, 225)], fill=(200, 60, 50))
    pen.polygon([(120, 235), (350, 235), (310, 280), (160, 280)], fill=(110, 70, 40))
    return picture.filter(ImageFilter.GaussianBlur(0.8))


def _table(answers: dict[str, Prediction]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method")
    table.add_column("label")
    table.add_column("confidence %", justify="right")
    table.add_column("mean text cosine", justify="right")
    for method, prediction in answers.items():
        table.add_row(method, prediction.label, f"{100 * prediction.confidence:.1f}", f"{prediction.mean_cosine:.4f}")
    return table
