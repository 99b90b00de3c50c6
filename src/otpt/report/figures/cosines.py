"""Figures of the cosine similarity of text features: per image, over templates, and between classes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from otpt.errors import OtptError
from otpt.report.figures import style
from otpt.report.results import Results
from otpt.report.rows import init_cosine, mean_cosines

Floats = npt.NDArray[np.float64]
MAX_PROMPTS = 24
_FEWEST = 3
_ARROW = 0.25
"""Length of the longest arrow of 'geometry', as a fraction of half the panel."""


def draw_cosine(results: Results) -> Figure:
    """Draw the mean cosine similarity of each image, its distribution and its initial value, one row per data set."""
    count = 2 * len(results.datasets)
    figure, axes = style.panels(count, size=(2.6, 2.1), across=2, sharey="row", width_ratios=[3, 1])
    for points, marginal, dataset in zip(axes[::2], axes[1::2], results.datasets, strict=True):
        cosines = {method: mean_cosines(results, results.first_key(dataset, method)) for method in results.methods}
        values = np.concatenate(list(cosines.values()))
        edges = np.linspace(values.min(), values.max() + 1e-9, 41)
        for method, look in style.looks(results.methods).items():
            per_image = cosines[method]
            points.scatter(
                style.first_rows(results, dataset, method).indices,
                per_image,
                s=float(np.clip(900 / len(per_image), 5.0, 18.0)),
                color=look.colour,
                marker=look.marker,
                edgecolor=style.paper(),
                linewidth=0.2,
                rasterized=len(per_image) > 3000,
                label=f"{style.short(method)}, mean {per_image.mean():.4f}",
            )
            fractions = np.histogram(per_image, edges)[0] / len(per_image)
            marginal.stairs(fractions, edges, orientation="horizontal", color=look.colour, fill=True, alpha=0.45)
        initial = init_cosine(results, results.first_key(dataset, results.methods[0]))
        if initial is not None:
            points.axhline(
                initial, color=style.ink(), linewidth=1.0, dashes=(4, 2), label=f"initial prompt, {initial:.4f}"
            )
            marginal.axhline(initial, color=style.ink(), linewidth=1.0, dashes=(4, 2))
        points.set(xlabel="test image", ylabel="mean cosine similarity", title=style.short(dataset))
        points.xaxis.set_major_locator(MaxNLocator(integer=True))
        points.legend(loc="upper left", fontsize=6.5, ncols=2, bbox_to_anchor=(0, -0.28))
        marginal.set_xlabel("fraction")
    style.footnote(figure, style.note(results, one_seed=True, bins=False))
    return figure


def draw_templates(results: Results, *, best: int = 10) -> Figure:
    """Draw ECE against mean cosine similarity of templates, the ``best`` most accurate highlighted."""
    method = results.methods[0]
    if best < _FEWEST:
        raise OtptError(f"--best was given {best}; expected {_FEWEST} or more, since a correlation needs them.")
    figure, axes = style.panels(len(results.datasets), size=(2.7, 2.5))
    for panel, dataset in zip(axes, results.datasets, strict=True):
        scores = results.whole.select(dataset=dataset, method=method)
        means = scores.groupby("prompt", sort=False)[["ece", "accuracy", "mean_cosine"]].mean()
        if len(means) < _FEWEST:
            raise OtptError(
                f"The runs hold {len(means)} prompts on {dataset!r}, {_FEWEST} are needed; make a run with "
                "'otpt sweep … --prompts imagenet-80'."
            )
        top = means.sort_values("accuracy", ascending=False, kind="stable").head(best)
        rest = means.drop(top.index)
        panel.scatter(
            100 * rest["ece"], rest["mean_cosine"], s=14, color="none", edgecolor=style.GREY, label="other templates"
        )
        label = f"{len(top)} most accurate"
        panel.scatter(100 * top["ece"], top["mean_cosine"], s=26, color=style.BLUE, marker="D", label=label)
        words = []
        for name, templates in ((label, top), (f"all {len(means)}", means)):
            r, rho = (templates[["ece", "mean_cosine"]].corr(kind).iloc[0, 1] for kind in ("pearson", "spearman"))
            words.append(f"{name}  r {r:+.2f}  ρ {rho:+.2f}".replace("-", "−"))
        panel.annotate(
            "\n".join(words), (0, 1), xycoords="axes fraction", va="bottom", fontsize=6.5, color=style.faint()
        )
        panel.set_title(style.short(dataset), pad=20)
        panel.set(xlabel="ECE %", ylabel="mean cosine similarity")
    style.legend(figure)
    style.footnote(figure, f"{style.short(method)}; r Pearson, ρ Spearman; {style.note(results, ece=True)}")
    return figure


def draw_similarity(cosines: Mapping[str, Floats], labels: Mapping[str, str], *, title: str, note: str) -> Figure:
    """Draw the density of cosine similarities between text features for each prompt.

    Args:
        cosines: by prompt, (C(C − 1)/2,) off-diagonal entries of E Eᵀ.
        labels: further words on a prompt in the legend, such as its ECE.
    """
    if not 1 <= len(cosines) <= MAX_PROMPTS:
        raise OtptError(f"{len(cosines)} prompts are chosen; expected 1 to {MAX_PROMPTS}, given after --prompts.")
    figure, (axes,) = style.panels(1, size=(6.0, 3.3))
    everything = np.concatenate(list(cosines.values()))
    margin = 0.08 * max(float(np.ptp(everything)), 0.05)
    at = np.linspace(everything.min() - margin, min(everything.max() + margin, 1.0 + margin), 256)
    looks = style.looks([f"prompt {i}" for i in range(len(cosines))]).values()
    for (prompt, similarities), look in zip(cosines.items(), looks, strict=True):
        values = density(similarities, at)
        mean = f"{style.short(prompt, 34)}, mean {similarities.mean():.3f}"
        axes.plot(
            at,
            values,
            color=look.colour,
            linestyle=look.dash,
            marker=look.marker,
            markevery=[int(values.argmax())],
            label="\n".join(filter(None, [mean, labels.get(prompt, "")])),
        )
        axes.plot(similarities.mean(), 0, color=look.colour, marker=look.marker, clip_on=False, zorder=3)
    axes.set(xlabel="cosine similarity of two text features", ylabel="density", title=style.short(title, 60))
    axes.set_ylim(0)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=3.2, labelspacing=0.8)
    style.footnote(figure, f"markers: the peak, and on the axis the mean; {note}")
    return figure


def draw_geometry(features: Mapping[str, Floats], *, title: str, note: str) -> Figure:
    """Draw text features before and after test-time tuning: in a plane, their angles, and their dispersion.

    Args:
        features: by method, unit rows (C, D); the first are those of the initial prompt.
        title: name of the data set.
        note: further words below the figure.
    """
    if len(features) < 2:
        raise OtptError("The figure 'geometry' needs a method that tunes the prompt; choose some with --methods.")
    names = list(features)
    before = features[names[0]]
    figure, axes = style.panels(len(names) - 1 + 2, size=(2.6, 3.0), across=len(names) + 1)
    centre = before.mean(axis=0)
    plane = np.linalg.svd(before - centre, full_matrices=False)[2][:2]
    looks = dict(zip(names, style.looks(names).values(), strict=True))
    places = {name: (rows - centre) @ plane.T for name, rows in features.items()}
    limit = 1.1 * max(float(np.abs(place).max()) for place in places.values())
    moves = {name: place - places[names[0]] for name, place in places.items()}
    longest = max(float(np.linalg.norm(move, axis=1).max()) for move in moves.values())
    factor = max(round(_ARROW * limit / max(longest, 1e-9)), 1)
    for panel, name in zip(axes, names[1:], strict=False):
        panel.quiver(
            *places[names[0]].T,
            *(factor * moves[name]).T,
            angles="xy",
            scale_units="xy",
            scale=1,
            width=0.005,
            color=looks[name].colour,
            zorder=3,
        )
        panel.scatter(places[names[0]][:, 0], places[names[0]][:, 1], s=7, color=style.GREY, alpha=0.6)
        across, up = places[name].mean(axis=0)
        panel.scatter(across, up, s=60, marker="+", color=looks[name].colour)
        panel.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect="equal", title=style.short(name))
        panel.set(xlabel="first direction", ylabel="second direction")
    angles_panel, dispersion_panel = axes[len(names) - 1], axes[len(names)]
    for name, rows in features.items():
        angles = np.degrees(np.arccos(np.clip(pairwise_cosines(rows), -1.0, 1.0)))
        counts, edges = np.histogram(angles, 60, density=True)
        look = looks[name]
        angles_panel.stairs(counts, edges, color=look.colour, label=f"{style.short(name)}, mean {angles.mean():.2f}°")
        distance = np.linalg.norm(rows - rows.mean(axis=0), axis=1)
        cosines = rows @ rows.T
        np.fill_diagonal(cosines, -1.0)
        nearest = np.degrees(np.arccos(np.clip(cosines.max(axis=1), -1.0, 1.0)))
        label = f"{style.short(name)}, mean distance {distance.mean():.4f}"
        dispersion_panel.scatter(distance, nearest, s=7, color=look.colour, marker=look.marker, alpha=0.3)
        centre_of = (float(distance.mean()), float(nearest.mean()))
        dispersion_panel.scatter(
            *centre_of, s=60, color=look.colour, marker=look.marker, edgecolor=style.ink(), zorder=4, label=label
        )
    angles_panel.set(xlabel="angle between two features (°)", ylabel="density", title="angles")
    dispersion_panel.set(xlabel="distance from the centroid", ylabel="angle to the nearest (°)", title="dispersion")
    for panel in (angles_panel, dispersion_panel):
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.24), fontsize=6.5)
    words = (
        f"arrows: how each class moves from the initial prompt (grey), {factor} times as long, in the plane of the "
        "initial features' two largest directions; +: centroid; large markers: means"
    )
    style.footnote(figure, f"{title}; {words}; {note}")
    return figure


def density(values: Floats, at: Floats) -> Floats:
    """Compute the Gaussian kernel density at the points ``at`` from a histogram of 2048 cells."""
    counts, edges = np.histogram(values, 2048, (values.min() - 1e-3, values.max() + 1e-3))
    centres = (edges[:-1] + edges[1:]) / 2
    width = max(0.9 * float(values.std()) * len(values) ** -0.2, 1e-3)
    kernel = np.exp(-0.5 * ((at[:, None] - centres) / width) ** 2)
    return np.asarray(kernel @ counts / (len(values) * width * np.sqrt(2 * np.pi)), np.float64)


def pairwise_cosines(text_features: npt.ArrayLike) -> Floats:
    """Return the C(C − 1)/2 entries above the diagonal of W = E Eᵀ, for unit rows E of shape (C, D).

    >>> pairwise_cosines([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    array([0. , 0.6, 0.8])
    """
    features = np.asarray(text_features, dtype=np.float64)
    above = np.triu_indices(len(features), k=1)
    return np.asarray((features @ features.T)[above], dtype=np.float64)
