"""Densities of the cosine similarity between text features, one curve per prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from otpt.errors import OtptError
from otpt.metrics import Metrics, percent
from otpt.report.figures.drawing.curves import Floats, density
from otpt.report.figures.drawing.looks import Look, looks
from otpt.report.figures.drawing.style import new_figure
from otpt.report.figures.drawing.words import footnote, short

MAX_PROMPTS = 24


@dataclass(frozen=True)
class PromptTexts:
    """The text features of one prompt.

    Attributes:
        cosines: (C(C − 1)/2,) off-diagonal entries of E Eᵀ.
        metrics: of a method with this prompt, for the legend.
    """

    prompt: str
    cosines: Floats
    metrics: Metrics | None = None


def draw_similarity(texts: Sequence[PromptTexts], *, title: str, note: str) -> Figure:
    """One density per prompt, its marker at the peak, in the legend and, for the mean, on the axis."""
    if not 1 <= len(texts) <= MAX_PROMPTS:
        raise OtptError(f"{len(texts)} prompts are chosen; expected 1 to {MAX_PROMPTS}, given after --prompts.")
    figure = new_figure(6.4, 3.6)
    axes = figure.subplots()
    everything = np.concatenate([each.cosines for each in texts])
    margin = 0.08 * max(float(np.ptp(everything)), 0.05)
    at = np.linspace(everything.min() - margin, min(everything.max() + margin, 1.0 + margin), 256)
    styles = list(looks([f"prompt {i}" for i in range(len(texts))]).values())
    for each, look in zip(texts, styles, strict=True):
        _draw_curve(each, at, look, figure)
    axes.set(xlabel="cosine similarity of two text features", ylabel="density", title=short(title, 60), ylim=(0, None))
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=3.2, labelspacing=0.8)
    footnote(figure, f"markers: the peak, and on the axis the mean; {note}")
    return figure


def _draw_curve(texts: PromptTexts, at: Floats, look: Look, figure: Figure) -> None:
    label = f"{short(texts.prompt, 34)}, mean {texts.cosines.mean():.3f}"
    if texts.metrics is not None:
        label += f"\nECE {percent(texts.metrics.ece)}, acc. {percent(texts.metrics.accuracy)}"
    mean = float(texts.cosines.mean())
    (axes,) = figure.axes
    line: dict[str, Any] = {"color": look.colour, "linestyle": look.dash, "marker": look.marker}
    values = density(texts.cosines, at)
    axes.plot(at, values, **line, markevery=[int(values.argmax())], label=label)
    axes.plot(mean, 0, color=look.colour, marker=look.marker, clip_on=False, zorder=3)
