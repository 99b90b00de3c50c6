"""Figures of the cosine similarity of text features: per image, in groups, over templates, and between classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from otpt.errors import OtptError
from otpt.metrics import get_metric
from otpt.report.figures.style import (
    BLUE,
    GREY,
    Selection,
    faint,
    footnote,
    ink,
    legend,
    looks,
    panel_grid,
    panels,
    paper,
    short,
)
from otpt.report.rows import SPLIT_BY, SPLITS, group_value, init_cosine, mean_cosines, split_images

Floats = npt.NDArray[np.float64]
FEW = 100
"""Images below which the ECE of a group is marked: of 100, a calibrated model shows 10 % and more with 20 bins."""
MAX_PROMPTS = 24
_FEWEST = 3


def draw_cosine(selection: Selection) -> Figure:
    """A line of panels for each data set: one point per image and method, their distribution, the initial value."""
    figure, axes = panels(len(selection.datasets), 2, size=(2.6, 2.1), sharey="row", width_ratios=[3, 1])
    for (points, marginal), dataset in zip(axes, selection.datasets, strict=True):
        results = selection.results
        found = {method: mean_cosines(results, selection.key(dataset, method)) for method in selection.methods}
        values = np.concatenate(list(found.values()))
        edges = np.linspace(values.min(), values.max() + 1e-9, 41)
        for method, look in looks(selection.methods).items():
            own, indices = found[method], selection.rows(dataset, method).indices
            dots: dict[str, Any] = {"marker": look.marker, "edgecolor": paper(), "linewidth": 0.2}
            dots |= {"s": float(np.clip(900 / len(own), 5.0, 18.0)), "rasterized": len(own) > 3000}
            points.scatter(indices, own, color=look.colour, label=f"{short(method)}, mean {own.mean():.4f}", **dots)
            fractions = np.histogram(own, edges)[0] / len(own)
            marginal.stairs(fractions, edges, orientation="horizontal", color=look.colour, fill=True, alpha=0.45)
        initial = init_cosine(selection.results, selection.key(dataset, selection.methods[0]))
        if initial is not None:
            points.axhline(initial, color=ink(), linewidth=1.0, dashes=(4, 2), label=f"initial prompt, {initial:.4f}")
            marginal.axhline(initial, color=ink(), linewidth=1.0, dashes=(4, 2))
        points.set(xlabel="test image", ylabel="mean cosine similarity")
        points.set_title(short(dataset))
        points.legend(loc="upper left", fontsize=6.5, ncols=2, bbox_to_anchor=(0, -0.22))
        marginal.set_xlabel("fraction")
    footnote(figure, selection.note(one_seed=True, bins=False))
    return figure


def draw_groups(selection: Selection) -> Figure:
    """Accuracy and ECE in the two groups of images that TPT's similarity makes; data sets down."""
    datasets, results = selection.datasets, selection.results
    known = all(init_cosine(results, selection.key(dataset, SPLIT_BY)) is not None for dataset in datasets)
    splits = SPLITS if known else SPLITS[:1]
    figure, axes = panels(len(datasets), 2 * len(splits), size=(2.1, 2.2))
    width, few = 0.8 / len(selection.methods), False
    for line, dataset in zip(axes, datasets, strict=True):
        for at, panel in enumerate(line):
            split, metric = splits[at // 2], ("accuracy", "ece")[at % 2]
            threshold, above = split_images(results, selection.key(dataset, SPLIT_BY), split)
            masks = (above, ~above)
            small = [metric == "ece" and 0 < mask.sum() < FEW for mask in masks]
            few |= any(small)
            for k, (method, look) in enumerate(looks(selection.methods).items()):
                key = selection.key(dataset, method)
                heights = [100 * group_value(results, key, metric, mask) for mask in masks]
                style: dict[str, Any] = {"color": look.colour, "hatch": look.hatch, "edgecolor": paper()}
                place = np.arange(2) - 0.4 + (k + 0.5) * width
                bars = panel.bar(place, heights, width, label=short(method), linewidth=0.4, **style)
                for bar, faded in zip(bars, small, strict=True):
                    bar.set_alpha(0.35 if faded else 1.0)
            names = [
                f"{sign} {threshold:.3f}\n{mask.sum()} images{' *' if faded else ''}"
                for sign, mask, faded in zip(">≤", masks, small, strict=True)
            ]
            panel.set_xticks([0, 1], names)
            panel.grid(visible=False, axis="x")
            at_value = "median" if split == "median" else "initial value"
            panel.set_title(f"{get_metric(metric).heading}, split at the {at_value}", fontsize=7.5)
        for k in (0, 1):
            top = max(panel.get_ylim()[1] for panel in line[k::2])
            for panel in line[k::2]:
                panel.set_ylim(0, top)
        line[0].set_ylabel(short(dataset))
    legend(figure)
    note = "" if known else "; the runs hold no initial value ('zero-shot')"
    note += f"; * fewer than {FEW} images: such an ECE is mostly noise, so its bars are faint" if few else ""
    footnote(figure, f"split by TPT's mean cosine similarity of each image{note}; {selection.note(one_seed=True)}")
    return figure


def draw_templates(selection: Selection, *, best: int = 10) -> Figure:
    """ECE against mean cosine similarity, a point per template: the ``best`` most accurate in colour; correlations."""
    method = selection.methods[0]
    if best < _FEWEST:
        raise OtptError(f"--best was given {best}; expected {_FEWEST} or more, since a correlation needs them.")
    figure, axes = panel_grid(len(selection.datasets), size=(2.7, 2.5))
    for panel, dataset in zip(axes, selection.datasets, strict=True):
        own = selection.results.select(dataset=dataset, method=method)
        means = own.groupby("prompt", sort=False)[["ece", "accuracy", "mean_cosine"]].mean()
        if len(means) < _FEWEST:
            raise OtptError(
                f"The runs hold {len(means)} prompts on {dataset!r}, {_FEWEST} are needed; make a run with "
                "'otpt sweep … --prompts imagenet-80'."
            )
        top = means.sort_values("accuracy", ascending=False, kind="stable").head(best)
        rest = means.drop(top.index)
        panel.scatter(
            100 * rest["ece"], rest["mean_cosine"], s=14, color="none", edgecolor=GREY, label="other templates"
        )
        label = f"{len(top)} most accurate"
        panel.scatter(100 * top["ece"], top["mean_cosine"], s=26, color=BLUE, marker="D", label=label)
        words = []
        for name, each in ((label, top), (f"all {len(means)}", means)):
            r, rho = (each[["ece", "mean_cosine"]].corr(kind).iloc[0, 1] for kind in ("pearson", "spearman"))
            words.append(f"{name}  r {r:+.2f}  ρ {rho:+.2f}".replace("-", "−"))
        panel.annotate("\n".join(words), (0, 1), xycoords="axes fraction", va="bottom", fontsize=6.5, color=faint())
        panel.set_title(short(dataset), pad=20)
        panel.set(xlabel="ECE %", ylabel="mean cosine similarity")
    legend(figure)
    footnote(figure, f"{short(method)}; r Pearson, ρ Spearman; {selection.note(ece=True)}")
    return figure


def draw_similarity(cosines: Mapping[str, Floats], labels: Mapping[str, str], *, title: str, note: str) -> Figure:
    """Densities of the cosine similarity between text features, a curve for each prompt.

    Args:
        cosines: by prompt, (C(C − 1)/2,) off-diagonal entries of E Eᵀ.
        labels: further words on a prompt in the legend, such as its ECE.
    """
    if not 1 <= len(cosines) <= MAX_PROMPTS:
        raise OtptError(f"{len(cosines)} prompts are chosen; expected 1 to {MAX_PROMPTS}, given after --prompts.")
    figure, ((axes,),) = panels(1, 1, size=(6.0, 3.3))
    everything = np.concatenate(list(cosines.values()))
    margin = 0.08 * max(float(np.ptp(everything)), 0.05)
    at = np.linspace(everything.min() - margin, min(everything.max() + margin, 1.0 + margin), 256)
    for (prompt, own), look in zip(
        cosines.items(), looks([f"prompt {i}" for i in range(len(cosines))]).values(), strict=True
    ):
        values = density(own, at)
        label = "\n".join(filter(None, [f"{short(prompt, 34)}, mean {own.mean():.3f}", labels.get(prompt, "")]))
        line: dict[str, Any] = {"color": look.colour, "linestyle": look.dash, "marker": look.marker}
        axes.plot(at, values, markevery=[int(values.argmax())], label=label, **line)
        axes.plot(own.mean(), 0, color=look.colour, marker=look.marker, clip_on=False, zorder=3)
    axes.set(xlabel="cosine similarity of two text features", ylabel="density", title=short(title, 60))
    axes.set_ylim(0)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=3.2, labelspacing=0.8)
    footnote(figure, f"markers: the peak, and on the axis the mean; {note}")
    return figure


def density(values: Floats, at: Floats) -> Floats:
    """Gaussian kernel density at the points ``at``, of values in 2048 cells, since 1000 classes have half a million."""
    counts, edges = np.histogram(values, 2048, (values.min() - 1e-3, values.max() + 1e-3))
    centres = (edges[:-1] + edges[1:]) / 2
    width = max(0.9 * float(values.std()) * len(values) ** -0.2, 1e-3)
    kernel = np.exp(-0.5 * ((at[:, None] - centres) / width) ** 2)
    return np.asarray(kernel @ counts / (len(values) * width * np.sqrt(2 * np.pi)), np.float64)


def pairwise_cosines(text_features: npt.ArrayLike) -> Floats:
    """The C(C − 1)/2 entries above the diagonal of W = E Eᵀ, for unit rows E of shape (C, D).

    >>> pairwise_cosines([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    array([0. , 0.6, 0.8])
    """
    features = np.asarray(text_features, dtype=np.float64)
    above = np.triu_indices(len(features), k=1)
    return np.asarray((features @ features.T)[above], dtype=np.float64)
