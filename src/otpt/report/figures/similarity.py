"""Densities of the cosine similarity between text features, one curve per prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from otpt.errors import OtptError
from otpt.metrics import Metrics, percent
from otpt.report.figures.curves import Floats, density
from otpt.report.figures.style import Look, footnote, looks, new_figure, short

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
    """One density per prompt; the mean of each is marked on the axis."""
    if not 1 <= len(texts) <= MAX_PROMPTS:
        raise OtptError(f"{len(texts)} prompts are chosen; expected 1 to {MAX_PROMPTS}, given after --prompts.")
    figure = new_figure(5.6, 3.4)
    axes = figure.subplots()
    everything = np.concatenate([each.cosines for each in texts])
    margin = 0.08 * max(float(np.ptp(everything)), 0.05)
    at = np.linspace(everything.min() - margin, min(everything.max() + margin, 1.0 + margin), 256)
    styles = list(looks([f"prompt {i}" for i in range(len(texts))]).values())
    for each, look in zip(texts, styles, strict=True):
        _draw_curve(each, at, look, figure)
    axes.set(xlabel="cosine similarity of two text features", ylabel="density", title=short(title, 60), ylim=(0, None))
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    footnote(figure, note)
    return figure


def _draw_curve(texts: PromptTexts, at: Floats, look: Look, figure: Figure) -> None:
    label = short(texts.prompt, 34)
    if texts.metrics is not None:
        label += f"\nECE {percent(texts.metrics.ece)}, acc. {percent(texts.metrics.accuracy)}"
    mean = float(texts.cosines.mean())
    (axes,) = figure.axes
    axes.plot(at, density(texts.cosines, at), color=look.colour, linestyle=look.dash, label=label)
    axes.plot(mean, 0, color=look.colour, marker=look.marker, clip_on=False, zorder=3)
