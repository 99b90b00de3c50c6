"""``otpt demo``: four methods on emoji, and three photographs, with the embedded models; no download."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Annotated

from otpt import evaluation
from otpt.backbones.sources import DRAWINGS, PHOTOGRAPHS
from otpt.classifier import load
from otpt.cli import options as o
from otpt.cli.terminal import command_line, print_table, say, terminal_width
from otpt.data import load_dataset, photograph
from otpt.data.photographs import PHOTOGRAPH_CLASSES
from otpt.evaluation import Evaluation, Progress, duration
from otpt.methods import DEFAULT_METHOD, Protocol, get_methods
from otpt.report import compare_methods, evaluation_table, open_results, ranked
from otpt.report.figures import draw, save
from otpt.report.page import make_page, write_page
from otpt.workers import local_pool

BASE = "zero-shot"
BACKBONE = DRAWINGS
DATASETS = ("emoji/animals", "emoji/food", "emoji/travel", "emoji/line")
SHARD_SIZE = 20  # small, so that both processes have something to do until the end
TITLE = "Emoji by an artist the model has not seen"


def demo(
    *,
    out: Annotated[Path, o.out("folder to write to", "DIR")] = Path("otpt-demo"),
    methods: Annotated[tuple[str, ...], o.methods(f"methods next to {BASE}")] = ("tpt", "o-tpt", DEFAULT_METHOD),
    seeds: o.Seeds = None,
    images: Annotated[int, o.option("images of each data set")] = 80,
    workers: Annotated[int | None, o.option("processes (default: two, or one per core)", at_least=1)] = None,
    threads: o.Threads = None,
) -> int:
    """Evaluate zero-shot, TPT, O-TPT and the default method with the embedded model on three sets of emoji and on line
    art; print the averages, draw reliability diagrams, and make a page with everything else. Then classify three
    photographs with the embedded model of photographs.

    otpt demo
    otpt demo --methods o-tpt c-tpt --images 200 --out my-demo
    """
    chosen = tuple(dict.fromkeys((BASE, *methods)))
    datasets = [load_dataset(name) for name in DATASETS]  # a missing package of the bench is reported first
    o.use_threads(threads)
    print(
        f"The embedded model {BACKBONE!r}, a small CLIP, classifies emoji by an artist\n"
        f"it has not seen: {images} images of each of {len(DATASETS)} sets, 64 views per image,\n"
        f"{len(chosen)} methods in one pass.\n",
        flush=True,
    )
    result = evaluation.evaluate(
        datasets,
        o.ModelOptions(chosen=BACKBONE).load,
        Evaluation(
            protocol=Protocol(methods=get_methods(chosen)), seeds=seeds or (0,), limit=images, shard_size=SHARD_SIZE
        ),
        out=out / "run",
        pool=local_pool(workers or min(2, os.cpu_count() or 1), "cpu"),
        progress=Progress(log=say),
        device="cpu",
        threads=threads,
        command=command_line(),
    )
    results = open_results([out / "run"])
    width = min(terminal_width() or 80, 100)
    print(evaluation_table(results, averages=True).to_text(width))
    best = next((name for name in ranked(results, "debiased_ece") if name != BASE), None)
    if best is not None:
        print(textwrap.fill(compare_methods(results, best, BASE)[-1].conclusion, width))
    save(draw("pooled", results), out / "reliability.png")
    write_page(out / "report.html", make_page(results, title=TITLE, command=command_line()))
    _classify_photographs()
    print(f"\nThe comparison took {duration(result.seconds)}. Where to go next:")
    steps = [
        (f"  {out / 'reliability.png'}", "whether confidences are true, over all sets"),
        (f"  {out / 'report.html'}", "each set, tests, images where methods disagree"),
        (f"  otpt compare {out / 'run'}", "paired tests of two methods"),
    ]
    print_table(("", ""), steps, names=2)
    print("  otpt predict IMAGE --classes NAME NAME … --backbone pocket-photo")
    return 0


def _classify_photographs() -> None:
    print(f"\nPhotographs with {PHOTOGRAPHS!r}, method {DEFAULT_METHOD}, ten classes each:", flush=True)
    classifier = load(PHOTOGRAPHS, DEFAULT_METHOD, device="cpu")
    rows = []
    for name, classes in PHOTOGRAPH_CLASSES.items():
        classifier.set_classes(classes)
        answers = classifier.predict(photograph(name)).top(3)
        rows.append((f"{name}.jpg", *(f"{label} {probability:.2f}" for label, probability in answers)))
    print_table(("photograph", "first", "second", "third"), rows, names=4)
