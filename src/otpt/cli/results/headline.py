"""The table that closes an evaluation: accuracy, ECE and debiased ECE of each method, with intervals over images."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from otpt.cli.results.score_tables import print_score_tables
from otpt.cli.terminal import terminal_width
from otpt.report.defaults import FEW, LEVEL

if TYPE_CHECKING:
    from otpt.runs import Run, Score

HEADLINE = ("accuracy", "ece", "debiased_ece", "nll")
_MOST_ROWS = 100_000  # rows of images and methods that are resampled unasked: some ten seconds


def print_headline(run: Run, scores: Sequence[Score], *, bins: int | None = None, side: str | None = None) -> None:
    """The averages over the data sets with their intervals, then a word about few images."""
    from otpt.errors import OtptError
    from otpt.report.intervals import RunIntervals
    from otpt.report.tables.scores import TITLES, ScoreRow, ScoreTable, number_of

    known = [score for score in scores if score.metrics is not None]
    if not known or sum(score.metrics.images for score in known if score.metrics is not None) > _MOST_ROWS:
        return
    scoring = run.config["scoring"]
    intervals = RunIntervals(
        run,
        HEADLINE,
        bins=bins or scoring["bins"],
        side=side or scoring["side"],
        level=LEVEL,
        seeds={each.seed for each in known},
    )
    datasets = list(dict.fromkeys(score.dataset for score in scores))
    rows = []
    for method, prompt in dict.fromkeys((score.method, score.prompt) for score in known):
        own = [score for score in scores if (score.method, score.prompt) == (method, prompt)]
        try:
            numbers = [number_of(own, metric, datasets, intervals=intervals) for metric in HEADLINE]
        except OtptError:  # seeds of a run in progress that have not seen the same images
            continue
        if None not in numbers:
            rows.append(ScoreRow(method, prompt, tuple(numbers)))
    if rows:
        title = "average" if len(datasets) > 1 else datasets[0]
        print_score_tables([ScoreTable(title, tuple(TITLES[name] for name in HEADLINE), tuple(rows))], width=80)
    if words := few_images(known):
        print(textwrap.fill(words, min(80, terminal_width() or 80)))


def few_images(scores: Sequence[Score]) -> str:
    """What must be said of an ECE from few images; nothing if there are enough."""
    least = min(score.metrics.images for score in scores if score.metrics is not None)
    if least >= FEW:
        return ""
    return (
        f"With fewer than {FEW} images of a data set ({least} here), most of an ECE may be bias, which a calibrated "
        "model would have too; the debiased ECE is without it."
    )
