"""``otpt demo``: all steps on the embedded model and bench: four methods, three sets, one shift, a page."""

from __future__ import annotations

import argparse
import os
import textwrap
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from otpt.cli.evaluate import DEFAULT_METHODS, backbone_on, chosen_reporter
from otpt.cli.results import print_score_tables
from otpt.cli.spellings import add_out_option, add_threads_option, use_threads

if TYPE_CHECKING:
    from otpt.report import Results
    from otpt.runs import Average

BACKBONE = "pocket"
DATASETS = ("emoji/animals", "emoji/food", "emoji/travel", "emoji/line")
IMAGES = 80  # of each set: within two minutes on two cores
SHARD_SIZE = 20  # small, so that both processes have something to do until the end
TITLE = "Emoji by an artist the model has not seen"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``demo``."""
    parser.description = (
        "Evaluate zero-shot, TPT, C-TPT and O-TPT with the embedded model on three sets of emoji and on "
        "line art; print accuracy and calibration, draw reliability diagrams, and make a page."
    )
    add_out_option(parser, metavar="DIR", words="(default: %(default)s)", default=Path("otpt-demo"))
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
    from otpt.report import open_results
    from otpt.report.figures import draw, save, select
    from otpt.report.page import make_page, write_page
    from otpt.report.tables import metric_table

    out: Path = options.out
    use_threads(options.threads)
    settings = Settings(methods=DEFAULT_METHODS, limit=options.images, shard_size=SHARD_SIZE)
    makers = [partial(load_dataset, name) for name in DATASETS]
    for make in makers:
        make()  # report missing packages of the bench first
    print(
        f"The embedded model {BACKBONE!r}, a small CLIP that learned emoji by other artists, is shown OpenMoji's:\n"
        f"three sets, and one of line art; {options.images} image{'s' * (options.images > 1)} of each, 64 views "
        f"per image, {len(DEFAULT_METHODS)} methods in one pass.\n",
        flush=True,
    )
    job = Job(
        backbone=partial(backbone_on, BACKBONE, "float32", None, None),
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
    print_score_tables([metric_table(result.scores, metric) for metric in ("accuracy", "ece")], width=120)
    results = open_results([out / "run"])
    print(textwrap.fill(f"{conclusion(result.averages)} {certainty(results, result.averages)}", 110))
    save(draw("reliability", select(results)), out / "reliability.png")
    write_page(out / "report.html", make_page(results, title=TITLE, command=options.command_line))
    print(f"\nThis took {duration(result.seconds)}. Look at")
    print(f"  {out / 'report.html'}      tables, diagrams, and images on which the methods are wrong or disagree")
    print(f"  {out / 'reliability.png'}  reliability diagrams")
    print(f"  {out / 'run'}              one row per image and method, for 'otpt table', 'otpt compare', 'otpt plot'")
    return 0


def certainty(results: Results, averages: list[Average]) -> str:
    """Whether the best calibrated of the tuned methods differs from the next one by more than chance."""
    from otpt.report import compare_methods
    from otpt.report import conclusion as in_words

    error = {average.method: average.metrics["ece"] for average in averages if average.method in DEFAULT_METHODS[1:]}
    best, second = sorted(error, key=lambda name: error[name])[:2]
    return in_words(compare_methods(results, best, second)[-1], best, second)


def conclusion(averages: list[Average]) -> str:
    """What the averages over the data sets say, in two sentences."""
    from otpt.metrics import percent

    zero, tpt, ctpt, otpt = ({a.method: a.metrics for a in averages}[name] for name in DEFAULT_METHODS)
    surer = tpt["ece"] > zero["ece"] and tpt["overconfidence"] > zero["overconfidence"]
    error = {"TPT": tpt["ece"], "C-TPT": ctpt["ece"], "O-TPT": otpt["ece"]}
    first = (
        f"On average TPT takes accuracy from {percent(zero['accuracy'])} to {percent(tpt['accuracy'])} % "
        f"and the calibration error from {percent(zero['ece'])} to {percent(tpt['ece'])} %: "
        + ("it becomes surer than it is right." if surer else "here it does not become over-confident.")
    )
    second = (
        f"Spreading the text features (C-TPT) leaves an error of {percent(ctpt['ece'])} %, pushing them towards "
        f"orthogonality (O-TPT) {percent(otpt['ece'])} % at {percent(otpt['accuracy'])} % accuracy: "
        f"of the three, {min(error, key=lambda name: error[name])} is best calibrated."
    )
    return f"{first} {second}"
