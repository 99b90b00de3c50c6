"""Words on figures keep clear of each other and inside the canvas, by their bounding boxes."""

from __future__ import annotations

import itertools
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from oracles.runs.figure_bench import Bench

from otpt.errors import OtptError
from otpt.report.figures import FIGURES, THEMES, PromptTexts, draw, draw_similarity, select, styled
from otpt.report.figures.drawing.curves import density
from otpt.report.figures.drawing.looks import looks
from otpt.report.figures.drawing.words import label_points, legend

pytestmark = pytest.mark.slow

FROM = {"seeds": ("seeds",), "pareto": ("main", "sweep"), "templates": ("prompts",)}


def rendered(figure: Figure) -> Any:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas.get_renderer()


@pytest.mark.parametrize("kind", FIGURES)
def test_the_legend_is_never_cut(bench: Bench, kind: str) -> None:
    """Of the smallest figure of each kind: one data set where that is allowed."""
    results = bench.results(*FROM.get(kind, ()))
    fewest = results.datasets if kind == "radar" else results.datasets[:1]
    figure = draw(kind, select(results, datasets=fewest, usual=FIGURES[kind].usual))
    renderer = rendered(figure)
    legends = [*figure.legends, *(each for axes in figure.axes if (each := axes.get_legend()) is not None)]
    assert legends
    for each in legends:
        box = each.get_window_extent(renderer)
        assert min(box.x0, box.y0) >= -1
        assert box.x1 <= figure.bbox.width + 1
        assert box.y1 <= figure.bbox.height + 1


def test_labels_do_not_overlap() -> None:
    """Points in a heap, some of them equal: every label finds a place of its own, inside the axes."""
    draws = np.random.default_rng(3)
    heap = [(12.0, 48.0)] * 3 + [(12.0 + x, 48.0 + y) for x, y in draws.normal(0, 0.4, (9, 2))]
    others = [(12.2, 48.1), (14.0, 50.0)]
    with styled():
        figure = Figure(figsize=(3.4, 2.9), layout="constrained")
        axes = figure.subplots()
        axes.scatter(*zip(*heap, *others, strict=True))
        axes.margins(0.2)
        label_points(axes, heap, [f"λ={i}" for i in range(len(heap))], others)
        renderer = rendered(figure)
        notes = [each for each in axes.texts if isinstance(each, Annotation)]
        assert len(notes) == len(heap)
        boxes = [mpl.text.Text.get_window_extent(note, renderer) for note in notes]
        for a, b in itertools.combinations(boxes, 2):
            assert not a.overlaps(b)
        frame = axes.get_window_extent(renderer)
        marks = axes.transData.transform([*heap, *others])
        for box in boxes:
            assert frame.x0 + 3 <= box.x0 < box.x1 <= frame.x1 - 3
            assert frame.y0 + 3 <= box.y0 < box.y1 <= frame.y1 - 3
            assert not any(box.contains(*mark) for mark in marks)


def test_markers_of_a_similarity_are_in_its_legend() -> None:
    draws = np.random.default_rng(0)
    texts = [PromptTexts(f"prompt {i}", draws.normal(0.2 * i, 0.1, 60)) for i in range(3)]
    with styled():
        figure = draw_similarity(texts, title="some", note="some model")
    (axes,) = figure.axes
    legend = axes.get_legend()
    assert legend is not None
    for each, line, text in zip(texts, legend.get_lines(), legend.get_texts(), strict=True):
        (curve,) = [drawn for drawn in axes.lines if drawn.get_label() == text.get_text()]
        (mark,) = [drawn for drawn in axes.lines if drawn.get_xdata()[0] == pytest.approx(each.cosines.mean())]
        assert line.get_marker() == curve.get_marker() == mark.get_marker() != "None"
        assert line.get_color() == curve.get_color() == mark.get_color()
        assert curve.get_ydata() == pytest.approx(density(each.cosines, np.asarray(curve.get_xdata())))
        assert f"mean {each.cosines.mean():.3f}" in text.get_text()


def _luminance(colour: Any) -> float:
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", THEMES)
def test_words_can_be_read_in_both_themes(bench: Bench, theme: str) -> None:
    """WCAG's contrast of 4.5 between every word and the background."""
    for kind in ("reliability", "groups", "radar"):
        chosen = None if kind == "radar" else ["first"]
        figure = draw(kind, select(bench.results(), datasets=chosen, methods=["tpt", "o-tpt"]), theme=theme)
        rendered(figure)
        ground = _luminance(figure.get_facecolor())
        words = [text for text in figure.findobj(mpl.text.Text) if text.get_text().strip() and text.get_visible()]
        assert len(words) > 10
        for text in words:
            light = _luminance(text.get_color())
            assert (max(light, ground) + 0.05) / (min(light, ground) + 0.05) >= 4.5, text.get_text()
    with pytest.raises(OtptError, match="Unknown theme 'blue'"):
        draw("radar", select(bench.results()), theme="blue")


@pytest.mark.parametrize("theme", THEMES)
def test_methods_are_told_apart_and_seen(theme: str) -> None:
    """No two share colour and dash, however many there are; every colour stands out from the background."""
    styles = looks(["zero-shot", "tpt", "c-tpt", "o-tpt", *(f"method {i}" for i in range(12))])
    assert len({(look.colour, look.dash) for look in styles.values()}) == len(styles)
    with styled(theme):
        ground = _luminance(mpl.rcParams["figure.facecolor"])
    for look in styles.values():
        light = _luminance(look.colour)
        assert (max(light, ground) + 0.05) / (min(light, ground) + 0.05) >= 2, look


def test_a_legend_is_read_line_by_line() -> None:
    """In rows of equal length, the first entries in the first row."""
    with styled():
        figure = Figure(figsize=(3.6, 2.0), layout="constrained")
        (line,) = figure.subplots().plot([0, 1])
        found = legend(figure, [line] * 7, [f"the method {i}" for i in range(7)])
    renderer = rendered(figure)
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in found.get_texts()]
    read = [name for name, box in sorted(boxes, key=lambda each: (-round(each[1].y0), each[1].x0))]
    assert read == [f"the method {i}" for i in range(7)]


def test_legends_do_not_lie_on_curves(bench: Bench) -> None:
    figure = draw("risk-coverage", select(bench.results()))
    renderer = rendered(figure)
    for axes in figure.axes:
        found = axes.get_legend()
        if found is not None:
            assert not found.get_window_extent(renderer).overlaps(axes.get_window_extent(renderer))


def test_few_images_are_told_beside_an_ece(bench: Bench) -> None:
    """Of the bench's images, fewer than 500, an ECE may be bias; the figures of ECE say so, others do not."""
    chosen = select(bench.results())
    assert "most of an ECE may be bias" in chosen.note(ece=True)
    assert "bias" not in chosen.note()
    for kind in ("reliability", "posthoc", "radar"):
        footnote = draw(kind, select(bench.results(), usual=FIGURES[kind].usual)).get_supxlabel()
        assert "bias" in " ".join(footnote.split())
