"""Figures: what they draw is what the rows hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from otpt import OtptError
from otpt.report import Results
from otpt.report.figures import (
    check_format,
    draw,
    draw_similarity,
    figure_names,
    pairwise_cosines,
    register_figure,
    save,
    styled,
)
from otpt.report.figures.bins import risk_coverage
from otpt.report.figures.cosines import density
from otpt.report.figures.metrics import pareto_front
from otpt.report.selection import swept_settings

RUN_OF = {"templates": "prompts", "sweep": "sweep", "pareto": "sweep", "heatmap": "grid"}


FEWER = {"datasets": ["dtd"], "methods": ["tpt", "o-tpt"]}


@pytest.mark.slow
@pytest.mark.parametrize("kind", figure_names())
def test_every_figure(kind: str, opened: dict[str, Results], tmp_path: Path) -> None:
    options = {"best": 3} if kind == "templates" else FEWER if kind in ("reliability", "confidence") else {}
    figure = draw(kind, opened[RUN_OF.get(kind, "main")], theme="dark", **options)
    for suffix in ("png", "svg", "pdf") if kind == "posthoc" else ("png",):
        save(figure, tmp_path / f"figure.{suffix}", dpi=60)
        assert (tmp_path / f"figure.{suffix}").stat().st_size > 1000


@pytest.mark.usefixtures("registries")
def test_a_registered_figure(results: Results) -> None:
    def draw_names(results: Results, *, metric: str = "ece") -> Figure:
        return Figure(label=", ".join([metric, *results.methods]))

    register_figure("names", draw_names, methods=["tpt", "absent"])
    assert draw("names", results).get_label() == "ece, tpt"
    assert draw("names", results, methods=["c-tpt", "o-tpt"], metric="nll").get_label() == "nll, c-tpt, o-tpt"
    assert figure_names()[-1] == "names"


def test_sweep_draws_the_metric_against_the_setting(opened: dict[str, Results]) -> None:
    results = opened["sweep"]
    figure = draw("sweep", results, metric="nll", datasets=["dtd"])
    line = next(line for line in figure.axes[0].lines if len(line.get_xdata()) == 3)
    frame = results.select(dataset="dtd").set_index("method")["nll"]
    assert list(line.get_xdata()) == [0, 2, 18]
    assert list(line.get_ydata()) == pytest.approx([frame[f"o-tpt[lambda={x}]"] for x in (0, 2, 18)])


def test_bars_are_percentages(results: Results) -> None:
    figure = draw("posthoc", results, methods=["tpt", "o-tpt"], datasets=["dtd", "own"])
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    means = 100 * results.frame.pivot_table("ece", "method", "dataset").loc[["tpt", "o-tpt"], ["dtd", "own"]]
    assert heights == pytest.approx([x for row in means.to_numpy() for x in (*row, row.mean())])


def test_curves_and_settings() -> None:
    coverage, risk = risk_coverage(np.array([0.9, 0.5, 0.5, 0.2]), np.array([True, False, True, False]))
    np.testing.assert_allclose((coverage, risk), ([0.25, 0.75, 1], [0, 1 / 3, 0.5]))
    front = pareto_front(np.array([0.7, 0.8, 0.6, 0.8]), np.array([0.1, 0.2, 0.3, 0.25]))
    assert front.tolist() == [1, 0]
    at = np.linspace(-1, 2, 500)
    values = np.random.default_rng(0).random(300)
    assert np.trapezoid(density(values, at), at) == pytest.approx(1.0, abs=1e-3)
    assert list(swept_settings(["tpt", "a[x=10]", "a[x=9]"])["x"]) == [9, 10]


def test_similarity() -> None:
    cosines = {"a photo of a": pairwise_cosines(np.eye(5)[:, :4] + 0.1), "an icon of": np.linspace(0, 1, 10)}
    with styled():
        figure = draw_similarity(cosines, {"an icon of": "ECE 3.00"}, title="dtd", note="note")
    assert len(figure.axes[0].lines) == 4


@pytest.mark.parametrize(
    ("kind", "run", "options", "value"),
    [
        ("relability", "main", {}, "relability"),
        ("sweep", "main", {}, "sweep"),
        ("sweep", "sweep", {"setting": "steps"}, "steps"),
        ("sweep", "sweep", {"metric": "eec"}, "eec"),
        ("radar", "sweep", {}, "three"),
        ("seeds", "sweep", {}, "one seed"),
        ("templates", "main", {}, "1 prompts"),
        ("posthoc", "main", {"methods": ["x"]}, "'x'"),
        ("posthoc", "main", {"theme": "pink"}, "pink"),
    ],
)
def test_bad_input(kind: str, run: str, options: dict, value: str, opened: dict[str, Results]) -> None:
    with pytest.raises(OtptError, match=value):
        draw(kind, opened[run], **options)


def test_unknown_format() -> None:
    with pytest.raises(OtptError, match="jpg"):
        check_format(Path("figure.jpg"))
