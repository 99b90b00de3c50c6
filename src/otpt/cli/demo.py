"""``otpt demo``: four methods on the embedded model and bench, no download."""

from __future__ import annotations

import os
import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from otpt.cli import options as o
from otpt.cli.app import command_line
from otpt.cli.evaluate import make_progress, note_missing_classes
from otpt.cli.metrics import print_summary
from otpt.settings import DEFAULT_METHOD

if TYPE_CHECKING:
    from otpt.report import Difference, Results

BASE = "zero-shot"
BACKBONE = "pocket"
DATASETS = ("emoji/animals", "emoji/food", "emoji/travel", "emoji/line")
SHARD_SIZE = 20  # small, so that both processes have something to do until the end
TITLE = "Emoji by an artist the model has not seen"


def demo(
    *,
    out: Annotated[Path, o.out("folder to write to", "DIR")] = Path("otpt-demo"),
    methods: Annotated[
        tuple[str, ...],
        o.option(f"methods next to {BASE}", "--methods", "--method", metavar="NAME"),
    ] = ("tpt", "o-tpt", DEFAULT_METHOD),
    seeds: o.Seeds = None,
    images: Annotated[int, o.option("images of each data set")] = 80,
    workers: Annotated[int | None, o.option("processes (default: two, or one per core)")] = None,
    threads: o.Threads = None,
) -> int:
    """Evaluate zero-shot, TPT, O-TPT and the default method with the embedded model on three sets of emoji and on line
    art; print a table, draw reliability diagrams, and make a page with everything else."""
    from otpt.data import load_dataset
    from otpt.evaluation import EvaluationSettings, duration, evaluate
    from otpt.report import open_results
    from otpt.report.figures import draw, save
    from otpt.report.page import make_page, write_page

    chosen = tuple(dict.fromkeys((BASE, *methods)))
    settings = EvaluationSettings(methods=chosen, seeds=seeds or (0,), limit=images, shard_size=SHARD_SIZE)
    datasets = [load_dataset(name) for name in DATASETS]  # a missing package of the bench is reported first
    o.use_threads(threads)
    print(
        f"The embedded model {BACKBONE!r}, a small CLIP, classifies emoji by an artist it has not seen:\n"
        f"{images} images of each of {len(DATASETS)} sets, 64 views per image, {len(chosen)} methods in one pass.\n",
        flush=True,
    )
    engine = o.local_engine(min(2, os.cpu_count() or 1) if workers is None else workers, "cpu")
    result = evaluate(
        datasets,
        _load,
        settings,
        out=out / "run",
        engine=engine,
        progress=make_progress(),
        device="cpu",
        threads=threads,
        command=shlex.join(command_line()),
    )
    note_missing_classes(datasets, images)
    results = open_results([out / "run"])
    print_summary(results)
    print(textwrap.fill(finding(results, chosen), 100))
    save(draw("reliability", results), out / "reliability.png")
    write_page(out / "report.html", make_page(results, title=TITLE, command=shlex.join(command_line())))
    print(f"\nThis took {duration(result.seconds)}. Where to go next:")
    print(f"  {out / 'reliability.png'}   reliability diagrams")
    print(f"  {out / 'report.html'}       all tables, tests, diagrams, and images where methods disagree")
    print(f"  otpt compare {out / 'run'}    paired tests of two methods")
    print("  otpt predict IMAGE --classes NAME NAME … --backbone ViT-B-16/openai")
    return 0


def _load(device: str) -> Any:
    from otpt.backbones import load_backbone

    return load_backbone(BACKBONE, device=device)


def finding(results: Results, methods: Sequence[str]) -> str:
    """One sentence: which method has the lowest debiased ECE, and what it changes against zero-shot beyond chance."""
    from otpt.report import gap

    places = {method: [(name, results.prompts_of(name, method)[0]) for name in DATASETS] for method in methods}

    def between(metric: str, method: str) -> Difference | None:
        return gap(results, metric, (method, places[method]), (BASE, places[BASE]))

    found = {method: each for method in methods if method != BASE and (each := between("debiased_ece", method))}
    if not found:
        return "The methods have not seen the same images, so nothing can be said of their differences."
    best = min(found, key=lambda method: found[method].a)
    error = found[best]
    if error.b <= error.a:
        return f"No method is better calibrated than {BASE} on average (debiased ECE {100 * error.b:.2f} %)."
    accuracy = between("accuracy", best)
    words = [
        f"{best} is best calibrated: debiased ECE {100 * error.a:.2f} % against {100 * error.b:.2f} % of {BASE}"
        f"{', a difference that may be chance' if error.is_noise else f' (p = {error.p:.2g})'}"
    ]
    if accuracy is not None:
        more = "more" if accuracy.a > accuracy.b else "less"
        size = f"{100 * abs(accuracy.a - accuracy.b):.2f} points {more} accurate"
        words.append("equally accurate within chance" if accuracy.is_noise else f"{size} (p = {accuracy.p:.2g})")
    return " and ".join(words) + "."
