"""``otpt demo``: all steps on the embedded model and bench: some methods, three sets, one shift, a page."""

from __future__ import annotations

import argparse
import os
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from otpt.cli.evaluating.evaluate import backbone_on, chosen_reporter
from otpt.cli.notes import tell_missing_classes
from otpt.cli.options.spellings import (
    add_methods_option,
    add_out_option,
    add_seeds_option,
    add_threads_option,
    use_threads,
)
from otpt.cli.terminal import terminal_width

if TYPE_CHECKING:
    from otpt.report import Difference, Results

BASE = "zero-shot"
BACKBONE = "pocket"
DATASETS = ("emoji/animals", "emoji/food", "emoji/travel", "emoji/line")
IMAGES = 80  # of each set: within two minutes on two cores
SHARD_SIZE = 20  # small, so that both processes have something to do until the end
TITLE = "Emoji by an artist the model has not seen"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``demo``."""
    parser.description = (
        "Evaluate zero-shot, TPT, O-TPT and the default method with the embedded model on three sets of emoji "
        "and on line art; print accuracy and calibration with what is more than chance, draw reliability diagrams, and "
        "make a page."
    )
    add_out_option(parser, metavar="DIR", words="(default: %(default)s)", default=Path("otpt-demo"))
    add_methods_option(
        parser, default=None, words=f"methods beside {BASE} (default: tpt, o-tpt and that of 'otpt predict')"
    )
    add_seeds_option(parser, default=[0], words="seeds of the views (default: 0)")
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: two, or one per core)")
    add_threads_option(parser)
    parser.add_argument(
        "--images", type=int, default=IMAGES, metavar="N", help="of each data set (default: %(default)s)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Evaluate, print, draw."""
    from otpt.data import load_dataset
    from otpt.evaluation import Job, LocalEngine, ProcessEngine, Settings, duration, run_job
    from otpt.report import evaluation_table, open_results
    from otpt.report.figures import draw, save
    from otpt.report.page import make_page, write_page

    out: Path = options.out
    use_threads(options.threads)
    methods = chosen_methods(options.methods)
    settings = Settings(methods=methods, seeds=options.seeds, limit=options.images, shard_size=SHARD_SIZE)
    makers = [partial(load_dataset, name) for name in DATASETS]
    datasets = [make() for make in makers]  # report missing packages of the bench first
    print(
        f"The embedded model {BACKBONE!r}, a small CLIP that learned emoji by other artists, is shown OpenMoji's:\n"
        f"three sets, and one of line art; {options.images} image{'s' * (options.images > 1)} of each, 64 views "
        f"per image, {len(methods)} methods in one pass.\n",
        flush=True,
    )
    job = Job(
        backbone=partial(backbone_on, BACKBONE),
        datasets=makers,
        settings=settings,
        folder=out / "run",
        device="cpu",
        threads=options.threads,
        command=options.command_line,
    )
    workers = min(2, os.cpu_count() or 1) if options.workers is None else options.workers
    engine = LocalEngine() if workers == 1 else ProcessEngine(workers)
    result = run_job(job, engine, chosen_reporter())
    tell_missing_classes(datasets, options.images)
    results = open_results([out / "run"])
    print(evaluation_table(results).to_text(terminal_width() or 80))
    print("In words, of the averages over the sets (accuracy, and debiased ECE for calibration):")
    for sentence in findings(results, methods):
        print(textwrap.fill(sentence, 110, initial_indent="- ", subsequent_indent="  "))
    save(draw("reliability", results), out / "reliability.png")
    write_page(out / "report.html", make_page(results, title=TITLE, command=options.command_line))
    print(f"\nThis took {duration(result.seconds)}. Look at")
    print(f"  {out / 'report.html'}      tables, diagrams, and images on which the methods are wrong or disagree")
    print(f"  {out / 'reliability.png'}  reliability diagrams")
    print(f"  {out / 'run'}              one row per image and method, for 'otpt table', 'otpt compare', 'otpt plot'")
    return 0


def chosen_methods(given: Sequence[str] | None = None) -> tuple[str, ...]:
    """Zero-shot, and what is compared with it: by default TPT, O-TPT and the default method."""
    from otpt.settings import DEFAULT_METHOD

    return tuple(dict.fromkeys((BASE, *(given or ("tpt", "o-tpt", DEFAULT_METHOD)))))


def findings(results: Results, methods: Sequence[str]) -> list[str]:
    """What each method changes against zero-shot, and which one is best calibrated: as far as it is not chance."""
    from otpt.report import gap

    places = {method: [(name, results.prompts_of(name, method)[0]) for name in DATASETS] for method in methods}

    def between(metric: str, a: str, b: str) -> Difference | None:
        return gap(results, metric, (a, places[a]), (b, places[b]))

    lines = [
        against_base(method, between("accuracy", method, BASE), between("debiased_ece", method, BASE))
        for method in methods
        if method != BASE
    ]
    gaps = {method: found for method in methods if (found := between("debiased_ece", method, BASE)) is not None}
    error = {method: found.a for method, found in gaps.items()}
    if len(error) > 1:
        first, second = sorted(error, key=lambda method: error[method])[:2]
        lines.append(best_calibrated(first, second, between("debiased_ece", first, second)))
    return lines


def against_base(method: str, accuracy: Difference | None, error: Difference | None) -> str:
    """One sentence: by how much a method is more or less accurate, better or worse calibrated than zero-shot."""
    if accuracy is None or error is None:
        return f"{method} has not seen the images of {BASE}, so nothing can be said of it."
    words = [
        _change(accuracy, "more accurate", "less accurate", "accuracy", sign=1),
        _change(error, "better calibrated", "worse calibrated", "calibration", sign=-1),
    ]
    return f"{method} against {BASE}: {words[0]}; {words[1]}."


def _change(found: Difference, better: str, worse: str, what: str, *, sign: int) -> str:
    from otpt.metrics import percent

    if found.is_noise:
        return f"no difference in {what} beyond chance (p = {found.p:.2g})"
    difference = found.a - found.b
    low, high = sorted((abs(found.low), abs(found.high)))
    word = better if sign * difference > 0 else worse
    return f"{word} by {percent(abs(difference))} points (95 %: {percent(low)} to {percent(high)})"


def best_calibrated(first: str, second: str, between: Difference | None) -> str:
    """The lowest debiased ECE and the next one, and whether that is chance."""
    if between is None or between.is_noise:
        shown = "" if between is None else f" (p = {between.p:.2g})"
        return f"The lowest debiased ECE is that of {first}; the next, {second}, differs by no more than chance{shown}."
    return f"{first} is best calibrated, beyond chance: the next one, {second}, is worse (p = {between.p:.2g})."
