"""One function that draws whatever there is to see of an object."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from otpt.calibration import Calibration
from otpt.errors import OtptError
from otpt.evaluation import Result
from otpt.prediction import Prediction, Predictions
from otpt.report.figures import draw, draw_before_after, styled
from otpt.report.results import Results, open_results
from otpt.runs import Run


def plot(shown: object, kind: str | None = None, **options: str | int | None) -> Figure:
    """Return a figure of predictions, a calibration or an evaluation.

    Args:
        shown: :class:`~otpt.Prediction` or :class:`~otpt.Predictions`: the images with bars; a
            :class:`~otpt.calibration.Calibration`: reliability before and after; a :class:`~otpt.evaluation.Result`, a
            run, :class:`~otpt.report.Results` or a run folder: the kind of figure.
        kind: of an evaluation, as ``otpt plot`` lists them; "reliability" by default.
        options: ``columns`` and ``limit`` of predictions; ``methods``, ``datasets`` and further ones of
            :func:`otpt.report.figures.draw`.

    Example:
        >>> import numpy as np
        >>> import otpt
        >>> prediction = otpt.Prediction("cat", 0.8, 0, np.array([0.8, 0.2]), ("cat", "dog"), "zero-shot")
        >>> type(otpt.plot(prediction)).__name__
        'Figure'
    """
    if isinstance(shown, (str, Path, Run, Result, Results)):
        return draw("reliability" if kind is None else kind, _results(shown), **options)  # type: ignore[arg-type]
    if kind is not None:
        raise OtptError(f"kind is {kind!r}, but only evaluations have several figures; leave it out.")
    if isinstance(shown, Predictions):
        return shown.plot(**options)  # type: ignore[arg-type]  # it validates them
    if options:
        raise OtptError(f"A {type(shown).__name__} has no options such as {next(iter(options))!r}; leave it out.")
    if isinstance(shown, Prediction):
        return shown.plot()
    if isinstance(shown, Calibration):
        return draw_calibration(shown)
    raise OtptError(
        f"There is no figure of {shown!r:.80}; expected predictions, a calibration, the result of an evaluation, or "
        "its run folder."
    )


def draw_calibration(calibration: Calibration) -> Figure:
    """Draw reliability before and after a calibration, on images by maps that were fitted without them."""
    metrics = {metric.name: metric.words() for metric in calibration.held_out}
    ece, nll = ("label_ece", "label_nll") if calibration.multi_label else ("debiased_ece", "nll")
    words = {
        "before": f"{metrics[ece][0]}, {metrics[nll][0]}",
        "after": f"{metrics[ece][1]}, {metrics[nll][1]}",
    }
    with styled():
        return draw_before_after(calibration.diagram, words, calibration.method)


def _results(shown: str | Path | Run | Result | Results) -> Results:
    if isinstance(shown, Results):
        return shown
    run = shown.run if isinstance(shown, Result) else shown
    return open_results([run.folder if isinstance(run, Run) else Path(run)])
