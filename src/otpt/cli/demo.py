"""``otpt demo``: the whole job on the embedded model and bench: four methods, three sets, one shift, a page."""

from __future__ import annotations

import argparse
import os
import shlex
import textwrap
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from otpt.cli.evaluate import DEFAULT_METHODS, backbone_on, chosen_reporter
from otpt.cli.tables import score_tables

if TYPE_CHECKING:
    from otpt.evaluation import Average

BACKBONE = "pocket"
DATASETS = ("emoji/animals", "emoji/food", "emoji/travel", "emoji/line")
PICTURES = 80  # of each set: within two minutes on two cores
PART_SIZE = 20  # small, so that both processes have something to do until the end
TITLE = "Emoji by an artist the model has not seen"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``demo``."""
    parser.description = (
        "Evaluate zero-shot, TPT, C-TPT and O-TPT with the embedded model on three sets of emoji and on "
        "line art; print accuracy and calibration, draw reliability diagrams, and make a page."
    )
    parser.add_argument("--out", type=Path, default=Path("otpt-demo"), metavar="DIR", help="(default: %(default)s)")
    parser.add_argument(
        "--pictures", type=int, default=PICTURES, metavar="N", help="of each data set (default: %(default)s)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Evaluate, print, draw."""
    from rich.console import Console

    from otpt.data import load_dataset
    from otpt.evaluation import Job, LocalEngine, ProcessEngine, Settings, duration, run_job
    from otpt.report import open_results
    from otpt.report.figures import draw, save, select
    from otpt.report.page import make_page, write_page

    out: Path = options.out
    settings = Settings(methods=DEFAULT_METHODS, limit=options.pictures, part_size=PART_SIZE)
    makers = [partial(load_dataset, name) for name in DATASETS]
    for make in makers:
        make()  # what is wrong with the bench's packages is told first
    print(
        f"The embedded model {BACKBONE!r}, a small CLIP that learned emoji by other artists, is shown OpenMoji's:\n"
        f"three sets, and one of line art; {options.pictures} picture{'s' * (options.pictures > 1)} of each, 64 views "
        f"a picture, {len(DEFAULT_METHODS)} methods in one pass.\n",
        flush=True,
    )
    job = Job(
        backbone=partial(backbone_on, BACKBONE, "float32", None, None),
        datasets=makers,
        settings=settings,
        folder=out / "run",
        device="cpu",
    )
    engine = ProcessEngine(2) if (os.cpu_count() or 1) > 1 else LocalEngine()
    result = run_job(job, engine, chosen_reporter(list(DATASETS), settings))
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=120)
    for table in score_tables(result.scores)[:2]:  # accuracy and ECE
        console.print(table)
        print()
    print(textwrap.fill(conclusion(result.averages), 110))
    results = open_results([out / "run"])
    save(draw("reliability", select(results)), out / "reliability.png")
    write_page(out / "report.html", make_page(results, title=TITLE, command=command(options)))
    print(f"\nThis took {duration(result.seconds)}. Look at")
    print(f"  {out / 'report.html'}      tables, diagrams, and pictures on which the methods are wrong or disagree")
    print(f"  {out / 'reliability.png'}  reliability diagrams")
    print(f"  {out / 'run'}              one row a picture and method, for 'otpt table', 'otpt compare', 'otpt plot'")
    return 0


def command(options: argparse.Namespace) -> str:
    """The call as one would type it again."""
    fewer = [] if options.pictures == PICTURES else ["--pictures", str(options.pictures)]
    return shlex.join(["otpt", "demo", "--out", str(options.out), *fewer])


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
        f"Spreading the class texts (C-TPT) leaves an error of {percent(ctpt['ece'])} %, pushing them towards "
        f"orthogonality (O-TPT) {percent(otpt['ece'])} % at {percent(otpt['accuracy'])} % accuracy: "
        f"of the three, {min(error, key=lambda name: error[name])} is best calibrated."
    )
    return f"{first} {second}"
