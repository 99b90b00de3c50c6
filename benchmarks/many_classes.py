"""The text side with many classes, before and after: ``python -m benchmarks.many_classes [--quick] [--parts …]``.

Four tables, each of ratios within one run; seconds are those of one thread's processor time, so that other programs on
the machine disturb little, and the ways take turns.

exact
    O-TPT's text side of one image with the shared-prefix encoder and with the encoder that is chosen, the trie where it
    pays; and by how much results differ.
gate
    Images of which three quarters agree, by O-TPT and by O-TPT with the gate ``agreement``; ImageNet's names.
frozen
    The approximation ``frozen-below`` against its threshold τ: how much faster, how many classes are tuned, and how far
    probabilities and labels are from the exact ones. On ImageNet's names, on emoji sets with ``pocket``, whose images
    are real, and on small random CLIPs. ``--figure`` draws it.
together
    Eight images by one, four and eight contexts per pass: matrix products that are larger by so many.

Text towers are ViT-B/16's with random weights (quick: a small random CLIP's); image features are drawn around text
features, so that views are as confident as CLIP's are on ImageNet.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor
from torch.nn import functional as F

from benchmarks.costs_figure import BLUE, GREY, STYLE, VERMILION
from benchmarks.engine import class_names
from benchmarks.paths import TESTS
from otpt.classifier import Classifier
from otpt.data import load_dataset
from otpt.data.classes import builtin_class_list
from otpt.methods import get_method
from otpt.methods.prompt_tuning import TextSide, TuningConfig, tune
from otpt.methods.prompt_tuning.frozen_classes import tuned_classes
from otpt.methods.prompt_tuning.one_step import tune_one_step
from otpt.methods.running.groups import TextGroup
from otpt.methods.running.predictor import Predictor
from otpt.methods.task import Task
from otpt.prompts import Prompt, TrieEncoder
from otpt.threads import one_thread
from otpt.views import ViewRecipe

PARTS = ("exact", "gate", "frozen", "together")
LISTS = (
    "cars", "aircraft", "sun397", "imagenet",
    "caltech101", "dtd", "eurosat", "flowers102", "food101", "imagenet-a", "imagenet-r", "pets", "ucf101",
)  # fmt: skip
TOGETHER, COUNTS = (1, 4, 8), (10, 100)
THRESHOLDS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
EMOJI = ("emoji/objects", "emoji/food")
VIEWS, CONFIDENCE = 64, 0.6


def names_of(dataset: str) -> list[str]:
    """The class names of a data set."""
    return class_names(1000) if dataset == "imagenet" else list(builtin_class_list(dataset).names)


def real_backbone() -> Any:
    """ViT-B/16 with random weights."""
    from otpt.backbones import load_backbone

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_backbone("random:ViT-B-16", device="cpu")


def small_backbone(seed: int = 0, precision: str = "float32") -> Any:
    """A random CLIP of the tests."""
    if str(TESTS) not in sys.path:
        sys.path.insert(0, str(TESTS))
    from oracles.models.tiny import tiny_backbone  # type: ignore[import-not-found]

    return tiny_backbone("vit", precision, seed)


def drawn_views(text: TextSide, images: int, *, seed: int = 0) -> Tensor:
    """(B, V, D) unit features around text features, such that the mean confidence of a view is :data:`CONFIDENCE`.

    An image's views look like one class, and like a second one to a degree that differs from view to view.
    """
    generator = torch.Generator().manual_seed(seed)
    texts = text.text_features
    directions = F.normalize(texts - texts.mean(dim=0), dim=-1)
    first, second = torch.randint(len(texts), (2, images), generator=generator)
    degrees = 0.6 * torch.rand(images, VIEWS, 1, generator=generator).to(texts)
    towards = directions[first, None] + degrees * directions[second, None]
    noise = F.normalize(torch.randn(images, VIEWS, texts.shape[1], generator=generator).to(texts), dim=-1)
    low, high = 0.0, 100.0
    for _ in range(30):
        strength = (low + high) / 2
        views = F.normalize(noise + strength * towards, dim=-1)
        confidence = text.logits(views, texts).softmax(dim=-1).amax(dim=-1).mean()
        low, high = (strength, high) if confidence < CONFIDENCE else (low, strength)
    return views


def config_of(method: str, **changes: float) -> TuningConfig:
    """The steps of a method on a fine-grained set."""
    config = get_method(method).override({key.replace("_", "-"): value for key, value in changes.items()})
    tuning = config.tuning("fine-grained")
    assert tuning is not None
    return tuning


def seconds(ways: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """The least processor time of each way; they take turns, and the first round warms up."""
    found: list[list[float]] = [[] for _ in ways]
    for _ in range(repeats + 1):
        for own, way in zip(found, ways, strict=True):
            started = time.process_time()
            way()
            own.append(time.process_time() - started)
    return [min(own[1:]) for own in found]


def exact(backbone: Any, lists: Sequence[str], repeats: int) -> Iterator[str]:
    """A row for each class list."""
    yield (
        f"{'':10}{'classes':>8}{'encoder':>9}{'rows':>12}{'before':>9}{'after':>9}{'ratio':>8}"
        f"{'Δ features':>12}{'Δ probabilities':>17}"
    )
    config = config_of("o-tpt")
    for name in lists:
        names = names_of(name)
        with patch("otpt.prompts.encoders.choosing.trie_pays", return_value=False):
            before = TextSide(backbone, names, allow_duplicates=True)
        after = TextSide(backbone, names, allow_duplicates=True)
        views = drawn_views(before, 1)
        answers = [tune(text, views, [config], keep_texts=True)[config] for text in (before, after)]
        logits = [each.logits.double().softmax(dim=-1) for each in answers]
        texts = [each.text_features for each in answers]
        assert texts[0] is not None
        assert texts[1] is not None
        times = seconds([partial(tune, text, views, [config]) for text in (before, after)], repeats)
        kind = "trie" if isinstance(after.encoder, TrieEncoder) else "prefix"
        rows = f"{_row_count(before.encoder)}/{_row_count(after.encoder)}"
        yield (
            f"{name:10}{len(names):8}{kind:>9}{rows:>12}{times[0]:8.2f}s{times[1]:8.2f}s{times[0] / times[1]:7.2f}×"
            f"{float((texts[0] - texts[1]).abs().max()):12.1e}{float((logits[0] - logits[1]).abs().max()):17.1e}"
        )


def _row_count(encoder: Any) -> int:
    return sum(len(chunk.rows.fixed) for chunk in encoder._prepared)


def gate(backbone: Any, dataset: str, repeats: int) -> Iterator[str]:
    """Four images of which three agree, by both methods."""
    names = names_of(dataset)
    text = TextSide(backbone, names, allow_duplicates=True)
    views = drawn_views(text, 4)
    clean = views[:, 0].clone()
    for i in range(len(views)):  # augmented views of the same label as the clean one, or of another
        views[i, 1:] = clean[i] if i else clean[1]
    task = Task(tuple(names), family="fine-grained", recipe=ViewRecipe(n_views=VIEWS), allow_duplicates=True)
    predictors = []
    for method in map(get_method, ("o-tpt", "o-tpt+agreement")):
        group = TextGroup(task.prompts[0].name, (method,), backbone, text, task)
        predictors.append(Predictor(backbone, task, [method], groups=[group]))
    adapted = sum(each[0].extras["adapted"] for each in predictors[1].of_features(views))
    times = seconds([partial(each.of_features, views) for each in predictors], repeats)
    yield f"{dataset}, {len(names)} classes: {int(adapted)} of {len(views)} images are adapted"
    each = [taken / len(views) for taken in times]
    yield f"per image, all {each[0]:.3f} s, gated {each[1]:.3f} s: {each[0] / each[1]:.2f}×"


@dataclass(frozen=True)
class Point:
    """What a threshold τ does: fraction of tuned classes, how much faster, difference of an image's probabilities (the
    largest of its classes; largest and mean over images), fraction of other labels."""

    title: str
    method: str
    below: float
    tuned: float
    ratio: float
    largest: float
    mean: float
    other: float

    def __str__(self) -> str:
        return (
            f"{self.title:22}{self.method:8}{self.below:8.0e}{100 * self.tuned:7.1f} %{self.ratio:7.2f}×"
            f"{self.largest:11.1e}{self.mean:11.1e}{100 * self.other:7.1f} %"
        )


def points(title: str, text: TextSide, views: Tensor, method: str, *, timed: int, repeats: int) -> Iterator[Point]:
    """A point for each τ; times are those of the first ``timed`` images."""
    plain, *frozen = config_of(method), *(config_of(method, frozen_below=below) for below in THRESHOLDS)
    times = seconds([partial(tune, text, views[:timed], [each]) for each in (plain, *frozen)], repeats)
    exact_way = tune(text, views, [plain])[plain].logits.double().softmax(dim=-1)
    for below, config, taken in zip(THRESHOLDS, frozen, times[1:], strict=True):
        found = tune(text, views, [config])[config].logits.double().softmax(dim=-1)
        classes = [len(tuned_classes(text, image, config)) for image in views]
        tuned = sum(classes) / len(classes) / found.shape[1]
        largest = (exact_way - found).abs().amax(dim=1)
        other = (exact_way.argmax(dim=1) != found.argmax(dim=1)).double()
        differences = float(largest.max()), float(largest.mean()), float(other.mean())
        yield Point(title, method, below, tuned, times[0] / taken, *differences)


def frozen(
    backbone: Any, dataset: str, images: int, repeats: int, *, emoji: Sequence[str], kept: list[Point]
) -> Iterator[str]:
    """The curve on ImageNet's names, on emoji sets and on small random CLIPs; the points are added to ``kept``."""
    yield f"{'':22}{'method':8}{'τ':>8}{'tuned':>9}{'ratio':>8}{'max |Δp|':>11}{'mean |Δp|':>11}{'labels':>9}"
    text = TextSide(backbone, names_of(dataset), allow_duplicates=True)
    sets: list[tuple[str, TextSide, Tensor, tuple[str, ...], int]]
    sets = [(f"{dataset}, drawn", text, drawn_views(text, images), ("o-tpt",), 1)]
    sets += [(f"{name}, pocket", *_emoji_views(name, images), ("tpt", "o-tpt"), 8) for name in emoji]
    for seed in range(2):
        small = TextSide(small_backbone(seed), names_of("imagenet")[:200], allow_duplicates=True)
        sets.append((f"200 names, random {seed}", small, drawn_views(small, images, seed=seed), ("tpt", "o-tpt"), 8))
    for title, own, features, methods, timed in sets:
        for method in methods:
            for point in points(title, own, features, method, timed=timed, repeats=repeats):
                kept.append(point)
                yield str(point)


def draw(kept: Sequence[Point]) -> Figure:
    """How far from exact against how much faster, of O-TPT: a line for each data set's class names, a marker for τ."""
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    panel = figure.subplots()
    own = [point for point in kept if point.method == "o-tpt" and "random" not in point.title]
    colors = dict(zip(dict.fromkeys(point.title for point in own), (BLUE, VERMILION, GREY), strict=False))
    markers = dict(zip(THRESHOLDS, "v^sDo", strict=True))
    for title, color in colors.items():
        line = [point for point in own if point.title == title]
        panel.plot([each.ratio for each in line], [each.mean for each in line], "-", color=color, linewidth=1)
        for each in line:
            panel.plot(each.ratio, each.mean, markers[each.below], color=color, markersize=6, clip_on=False)
    panel.set_xscale("log")
    panel.set_xticks(ticks := [1, 2, 5, 10, 20, 50], [f"{each}×" for each in ticks])
    panel.minorticks_off()
    panel.set_yscale("symlog", linthresh=1e-5)
    panel.set_ylim(0, 1)
    panel.set_xlabel("times as fast as exact, one thread")
    panel.set_ylabel("mean |Δp|")
    names = [Line2D([], [], color=color, label=title) for title, color in colors.items()]
    names += [
        Line2D([], [], marker=marker, color="black", linestyle="", label=f"τ = {below:.0e}")
        for below, marker in markers.items()
    ]
    panel.legend(handles=names, frameon=False, loc="lower right")
    return figure


def together(backbone: Any, counts: Sequence[int], repeats: int) -> Iterator[str]:
    """A row for each number of classes; one thread has the images of a pass."""
    heads = "".join(f"{f'{size} per pass':>14}{'ratio':>8}" for size in TOGETHER)
    yield f"{'classes':>8}{heads}{'Δ logits':>12}"
    config = config_of("o-tpt")
    for count in counts:
        names = class_names(count)
        sides = [TextSide(backbone, names, allow_duplicates=True, contexts_per_pass=size) for size in TOGETHER]
        views = drawn_views(sides[0], max(TOGETHER))
        ways = [partial(tune_one_step, side, views, [config]) for side in sides]
        logits = [way()[0].logits for way in ways]
        times = seconds(ways, repeats)
        largest = max(float((each - logits[0]).abs().max()) for each in logits[1:])
        shown = "".join(f"{taken / len(views):12.3f} s{times[0] / taken:7.2f}×" for taken in times)
        yield f"{count:8}{shown}{largest:12.1e}"


def _emoji_views(name: str, images: int) -> tuple[TextSide, Tensor]:
    """The text side of an emoji set under ``pocket``, and features of some of its images."""
    from otpt.backbones import load_backbone

    backbone, dataset = load_backbone("pocket", device="cpu"), load_dataset(name)
    classifier = Classifier(backbone).set_classes(dataset.class_names)
    step = max(len(dataset) // images, 1)
    features = [classifier.encode_views(dataset[i].source) for i in range(0, step * images, step)]
    text = TextSide(backbone, dataset.class_names, Prompt())
    return text, torch.stack(features).to(text.text_features)


def run(
    quick: bool = False, parts: Sequence[str] = PARTS, images: int | None = None, figure: Path | None = None
) -> None:
    """Print the tables, a row as soon as it is measured; draw the curve of the approximation."""
    kept: list[Point] = []
    repeats, images = (1, images or 2) if quick else (3, images or 16)
    backbone = small_backbone() if quick else real_backbone()
    tables: dict[str, Callable[[], Iterator[str]]] = {
        "exact": lambda: exact(backbone, LISTS[:2] if quick else LISTS, repeats),
        "gate": lambda: gate(backbone, "imagenet", 1),
        "frozen": lambda: frozen(backbone, "imagenet", images, repeats, emoji=() if quick else EMOJI, kept=kept),
        "together": lambda: together(backbone, COUNTS, repeats),
    }
    with one_thread():
        for part in parts:
            print(f"\n-- {part}", flush=True)
            for line in tables[part]():
                print(line, flush=True)
    if figure is not None and kept:
        with mpl.rc_context(STYLE):
            draw(kept).savefig(figure, metadata={"Date": None})


def main() -> None:
    """The tables that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small text tower")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--images", type=int, help="images for the deviations (16; quick: 2)")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="the approximation's curve, such as frozen.svg")
    options = parser.parse_args()
    run(options.quick, options.parts, options.images, options.figure)


if __name__ == "__main__":
    main()
