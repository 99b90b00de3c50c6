"""Calibration error against mean cosine similarity of the text features, one point per template."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from otpt.errors import OtptError
from otpt.report.figures.drawing.curves import pearson, spearman
from otpt.report.figures.drawing.looks import BLUE, GREY
from otpt.report.figures.drawing.style import faint, panels_in_rows
from otpt.report.figures.drawing.words import footnote, legend, short
from otpt.report.figures.selection import Selection

_FEWEST = 3


def draw_templates(selection: Selection, *, best: int = 10) -> Figure:
    """A panel for each data set: all templates in grey, the ``best`` most accurate in colour; correlations."""
    method = selection.methods[0]
    if best < _FEWEST:
        raise OtptError(f"--best was given {best}; expected {_FEWEST} or more, since a correlation needs them.")
    figure, axes = panels_in_rows(len(selection.datasets), size=(2.7, 2.5))
    for panel, dataset in zip(axes, selection.datasets, strict=True):
        prompts = selection.results.prompts_of(dataset, method)
        if len(prompts) < _FEWEST:
            raise OtptError(
                f"The runs hold {len(prompts)} prompts on {dataset!r}, {_FEWEST} are needed; make a run with "
                "'otpt sweep … --prompts imagenet-80'."
            )
        ece = np.array([100 * selection.mean("ece", dataset, method, prompt) for prompt in prompts])
        accuracy = np.array([selection.mean("accuracy", dataset, method, prompt) for prompt in prompts])
        cosine = np.array([_mean_cosine(selection, dataset, method, prompt) for prompt in prompts])
        top = np.argsort(-accuracy, kind="stable")[:best]
        rest = np.setdiff1d(np.arange(len(prompts)), top)
        panel.scatter(
            ece[rest], cosine[rest], s=14, color="none", edgecolor=GREY, linewidth=0.7, label="other templates"
        )
        panel.scatter(ece[top], cosine[top], s=26, color=BLUE, marker="D", label=f"{len(top)} most accurate")
        words = [
            f"{name}  r {pearson(ece[own], cosine[own]):+.2f}  ρ {spearman(ece[own], cosine[own]):+.2f}".replace(
                "-", "−"
            )
            for name, own in ((f"{len(top)} most accurate", top), (f"all {len(prompts)}", np.arange(len(prompts))))
        ]
        panel.annotate("\n".join(words), (0, 1), xycoords="axes fraction", va="bottom", fontsize=6.5, color=faint())
        panel.set_title(short(dataset), pad=20)
        panel.set(xlabel="ECE %", ylabel="mean cosine similarity")
    legend(figure, *axes[0].get_legend_handles_labels())
    footnote(figure, f"{short(method)}; r Pearson, ρ Spearman; {selection.note(ece=True)}")
    return figure


def _mean_cosine(selection: Selection, dataset: str, method: str, prompt: str) -> float:
    found = [selection.results.score(selection.key(dataset, method, seed, prompt)) for seed in selection.seeds]
    return float(np.mean([score.mean_cosine for score in found if score is not None and score.mean_cosine is not None]))
