"""What is drawn is what the rows say: bars, points and lines against numbers computed from the rows by hand."""

from __future__ import annotations

import itertools
import math
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.collections import PathCollection
from oracles.runs.figure_bench import BINS, PROMPTS, SETS, Bench
from oracles.runs.simulated_runs import simulate_run, simulated_dataset
from scipy.stats import binomtest

from otpt.errors import OtptError
from otpt.evaluation import Settings, sweep_method
from otpt.methods import get_method
from otpt.report import ResultKey, Results, open_results
from otpt.report.figures import FIGURES, THEMES, draw, save, select
from otpt.report.figures.drawing.looks import looks

pytestmark = pytest.mark.slow

FROM = {"seeds": ("seeds",), "pareto": ("main", "sweep"), "templates": ("prompts",)}


def drawn(bench: Bench, kind: str, **chosen: Any) -> Any:
    return draw(kind, select(bench.results(*FROM.get(kind, ())), usual=FIGURES[kind].usual, **chosen))


def cell(dataset: str, method: str, seed: int = 0, prompt: str = PROMPTS[0]) -> ResultKey:
    return ResultKey(dataset, seed, prompt, method)


def literal_bins(results: Results, where: ResultKey) -> list[tuple[int, float, float]]:
    """(images, accuracy, confidence) of each bin (lo, hi], one after the other."""
    rows = results.rows(where)
    found = []
    for m in range(BINS):
        low, high = np.float32(m / BINS), np.float32((m + 1) / BINS)
        own = [i for i, c in enumerate(rows.confidences) if low < c <= high]
        right = [bool(rows.correct[i]) for i in own]
        sure = [float(rows.confidences[i]) for i in own]
        found.append((len(own), np.mean(right) if own else math.nan, np.mean(sure) if own else math.nan))
    return found


def heights(axes: Any, label: str) -> list[float]:
    return [bar.get_height() for bars in axes.containers if bars.get_label() == label for bar in bars]


def points(axes: Any, label: str) -> np.ndarray:
    (found,) = [each for each in axes.collections if isinstance(each, PathCollection) and each.get_label() == label]
    return np.asarray(found.get_offsets())


def test_reliability(bench: Bench) -> None:
    results = bench.results()
    figure = drawn(bench, "reliability", datasets=SETS[:2], methods=["tpt", "o-tpt"])
    assert len(figure.axes) == 2 * 2 * 2
    for row, method in enumerate(("tpt", "o-tpt")):
        for column, dataset in enumerate(SETS[:2]):
            upper, lower = figure.axes[4 * row + column], figure.axes[4 * row + 2 + column]
            bins = literal_bins(results, cell(dataset, method))
            filled = [each for each in bins if each[0]]
            assert heights(upper, "accuracy") == pytest.approx([accuracy for _, accuracy, _ in filled])
            gaps = [confidence - accuracy for _, accuracy, confidence in filled]
            assert heights(upper, "over-confident") == pytest.approx([gap for gap in gaps if gap > 0])
            assert heights(upper, "under-confident") == pytest.approx([gap for gap in gaps if gap <= 0])
            total = sum(count for count, _, _ in bins)
            assert [bar.get_height() for bar in lower.patches] == pytest.approx([n / total for n, _, _ in bins])
            score = results.score(cell(dataset, method))
            assert score is not None
            assert score.metrics is not None
            assert f"ECE {100 * score.metrics.ece:.2f}, " in upper.texts[0].get_text()
            # each bar has its interval, and is the fainter the fewer images it stands for
            (lines,) = [each for each in upper.collections if each.get_label() == "interval"]
            ends = [binomtest(round(n * a), n).proportion_ci(method="wilson") for n, a, _ in filled]
            shown = np.array([(low, high) for (_, low), (_, high) in lines.get_segments()])
            assert shown == pytest.approx(np.array([(each.low, each.high) for each in ends]), abs=1e-5)
            (bars,) = [bars for bars in upper.containers if bars.get_label() == "accuracy"]
            most = max(n for n, _, _ in filled)
            assert [bar.get_alpha() for bar in bars] == pytest.approx(
                [0.25 + 0.75 * math.sqrt(n / most) for n, _, _ in filled]
            )


def test_confidence(bench: Bench) -> None:
    (panel,) = drawn(bench, "confidence", datasets=["first"], methods=["c-tpt"]).axes
    bins = literal_bins(bench.results(), cell("first", "c-tpt"))
    total = sum(count for count, _, _ in bins)
    right = [n * accuracy / total if n else 0.0 for n, accuracy, _ in bins]
    assert heights(panel, "correct") == pytest.approx(right)
    assert heights(panel, "wrong") == pytest.approx([n / total - r for (n, _, _), r in zip(bins, right, strict=True)])
    rows = bench.results().rows(cell("first", "c-tpt"))
    lines = {line.get_label(): line.get_xdata()[0] for line in panel.lines}
    assert lines == pytest.approx({"mean confidence": np.mean(rows.confidences), "accuracy": np.mean(rows.correct)})


def test_radar(bench: Bench) -> None:
    results = bench.results()
    (panel,) = drawn(bench, "radar", methods=["tpt", "c-tpt", "o-tpt"]).axes
    ece = {(m, d): results.score(cell(d, m)).metrics.ece for m in ("tpt", "c-tpt", "o-tpt") for d in SETS}
    for line in panel.lines:  # one scale from 0 on every axis: a radius is the ECE itself
        shown = [100 * ece[line.get_label(), dataset] for dataset in (*SETS, SETS[0])]
        assert line.get_ydata() == pytest.approx(shown)
    assert panel.get_rmin() == 0
    names = [label.get_text() for label in panel.get_xticklabels()]
    own = [100 * ece[method, "first"] for method in ("tpt", "c-tpt", "o-tpt")]
    assert names[0] == f"first\n{min(own):.2f} – {max(own):.2f}"
    with pytest.raises(OtptError, match="three data sets or more, but 2"):
        drawn(bench, "radar", datasets=SETS[:2])


def test_cosine(bench: Bench) -> None:
    results = bench.results()
    upper, _ = drawn(bench, "cosine", datasets=["second"]).axes
    for method in ("tpt", "c-tpt", "o-tpt"):
        rows = results.rows(cell("second", method))
        label = f"{method}, mean {np.mean(rows.mean_cosines):.4f}"
        assert points(upper, label) == pytest.approx(np.stack([rows.indices, rows.mean_cosines], axis=1))
    (line,) = upper.lines
    assert line.get_ydata()[0] == pytest.approx(results.rows(cell("second", "zero-shot")).mean_cosines[0])
    without = draw("cosine", select(bench.results("seeds"), datasets=["first"]))
    assert not without.axes[0].lines, "no initial value is known without a method that adapts nothing"


@pytest.mark.parametrize("theme", THEMES)
def test_points_of_cosines_stand_out(bench: Bench, theme: str) -> None:
    """WCAG asks for a contrast of 3 of what is drawn, its transparency included."""
    upper, _ = draw("cosine", select(bench.results(), datasets=["second"]), theme=theme).axes
    paper = np.array(upper.get_facecolor()[:3])
    for drawn_points in upper.collections:
        *colour, alpha = drawn_points.get_facecolor()[0]
        low, high = sorted(_luminance(each) for each in (alpha * np.array(colour) + (1 - alpha) * paper, paper))
        assert (high + 0.05) / (low + 0.05) >= 3, drawn_points.get_label()


def _luminance(colour: np.ndarray) -> float:
    linear = np.where(colour <= 0.03928, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_groups(bench: Bench) -> None:
    results = bench.results()
    figure = drawn(bench, "groups", datasets=["first"])
    similarity = results.rows(cell("first", "tpt")).mean_cosines
    start = results.rows(cell("first", "zero-shot")).mean_cosines[0]
    for position, threshold in ((0, sorted(similarity)[5] / 2 + sorted(similarity)[6] / 2), (2, start)):
        for method in ("tpt", "c-tpt", "o-tpt"):
            rows = results.rows(cell("first", method))
            expected = []
            for own in (similarity > threshold, similarity <= threshold):
                expected.append(100 * sum(rows.correct[own]) / own.sum() if own.any() else math.nan)
            assert heights(figure.axes[position], method) == pytest.approx(expected, nan_ok=True)
    (c_tpt,) = [bars for bars in figure.axes[1].containers if bars.get_label() == "c-tpt"]
    rows, own = results.rows(cell("first", "c-tpt")), similarity > np.median(similarity)
    error = 0.0
    for m in range(BINS):
        inside = own & (rows.confidences > np.float32(m / BINS)) & (rows.confidences <= np.float32((m + 1) / BINS))
        error += abs(rows.confidences[inside].sum() - rows.correct[inside].sum())
    assert c_tpt[0].get_height() == pytest.approx(100 * error / own.sum())
    with pytest.raises(OtptError, match="'tpt', which the runs do not hold"):
        draw("groups", select(bench.results("prompts")))


def test_templates(bench: Bench) -> None:
    results = bench.results("prompts")
    figure = draw("templates", select(results), best=3)
    for panel, dataset in zip(figure.axes, SETS[:2], strict=True):
        scores = [results.score(cell(dataset, "zero-shot", prompt=prompt)) for prompt in PROMPTS]
        where = [(100 * s.metrics.ece, s.mean_cosine) for s in scores]
        order = sorted(range(4), key=lambda i: -scores[i].metrics.accuracy)
        assert points(panel, "3 most accurate") == pytest.approx(np.array([where[i] for i in order[:3]]))
        assert points(panel, "other templates") == pytest.approx(np.array([where[i] for i in order[3:]]))
        r = np.corrcoef(np.array(where).T)[0, 1]
        words = panel.texts[0].get_text()
        assert f"all 4  r {r:+.2f}".replace("-", "−") in words
        assert words.startswith("3 most accurate  r "), "as the legend calls them"


def test_posthoc(bench: Bench) -> None:
    results = bench.results()
    (panel,) = drawn(bench, "posthoc").axes
    assert [bars.get_label() for bars in panel.containers] == ["tpt", "c-tpt", "tpt+ts", "o-tpt"]
    for method in ("tpt", "tpt+ts"):
        own = [100 * results.score(cell(dataset, method)).metrics.ece for dataset in SETS]
        assert heights(panel, method) == pytest.approx([*own, sum(own) / 3])


def test_posthoc_has_error_bars_with_several_seeds(bench: Bench) -> None:
    results = bench.results("seeds")
    (panel,) = draw("posthoc", select(results)).axes
    for method in ("tpt", "o-tpt"):
        (bars,) = [bars for bars in panel.containers if bars.get_label() == method and hasattr(bars, "patches")]
        ece = [[100 * results.score(cell(d, method, s)).metrics.ece for s in (0, 1)] for d in SETS[:2]]
        ece.append([sum(each) / 2 for each in zip(*ece, strict=True)])
        _, _, (spans,) = bars.errorbar
        lengths = [span[1][1] - span[0][1] for span in spans.get_segments()]
        assert lengths == pytest.approx([2 * abs(a - b) / math.sqrt(2) for a, b in ece])
    (single,) = draw("posthoc", select(results, seeds=[0])).axes
    assert all(getattr(bars, "errorbar", None) is None for bars in single.containers)


def test_groups_mark_the_ece_of_few_images(tmp_path: Path) -> None:
    sets = [simulated_dataset("some", classes=5, images=240)]
    results = open_results([simulate_run(tmp_path / "run", sets, Settings(methods=("zero-shot", "tpt")))])
    figure = draw("groups", select(results, methods=["tpt"]))
    accuracy, ece = figure.axes[2:]  # split at the initial value: uneven groups
    counts = [int(label.get_text().split("\n")[1].split()[0]) for label in ece.get_xticklabels()]
    assert sum(counts) == 240
    assert min(counts) < 100 < max(counts)
    marked = [label.get_text().endswith("*") for label in ece.get_xticklabels()]
    assert marked == [count < 100 for count in counts]
    assert [bar.get_alpha() < 1 for bar in ece.patches] == marked
    assert not any(label.get_text().endswith("*") for label in accuracy.get_xticklabels())
    assert "* fewer than 100 images" in figure.get_supxlabel().replace("\n", " ")


def test_bars_that_are_compared_have_one_scale(bench: Bench) -> None:
    """Fractions of two methods on a data set, and each metric under both splits: a taller bar is a larger number."""
    figure = drawn(bench, "reliability", datasets=SETS[:2], methods=["tpt", "o-tpt"])
    groups = drawn(bench, "groups", datasets=["first"])
    pairs = [(figure.axes[2 + column], figure.axes[6 + column]) for column in (0, 1)]
    for one, other in [*pairs, *zip(groups.axes[:2], groups.axes[2:], strict=True)]:
        assert one.get_ylim() == other.get_ylim()
        assert one.get_ylim()[0] == 0
        assert all(
            bar.get_height() <= one.get_ylim()[1] for bar in (*one.patches, *other.patches) if bar.get_height() > 0
        )


def test_bins_are_told_only_where_there_are_bins(bench: Bench) -> None:
    for kind, binned in (("cosine", False), ("risk-coverage", False), ("posthoc", True), ("confidence", True)):
        assert (f"{BINS} bins" in drawn(bench, kind).get_supxlabel()) == binned, kind


def test_pareto(bench: Bench) -> None:
    results = bench.results("main", "sweep")
    selection = select(results, datasets=["first"], methods=["tpt", *bench.results("sweep").methods])
    (panel,) = draw("pareto", selection).axes
    names = [f"o-tpt[lambda={value}]" for value in (0, 2, 18)]
    metrics = [results.score(cell("first", name)).metrics for name in names]
    assert points(panel, "o-tpt, swept") == pytest.approx(np.array([(100 * m.ece, 100 * m.accuracy) for m in metrics]))
    assert [text.get_text() for text in panel.texts] == ["λ=0", "λ=2", "λ=18"]
    unbeaten = {
        (100 * m.ece, 100 * m.accuracy)
        for m in metrics
        if not any((o.ece < m.ece and o.accuracy >= m.accuracy) or (o.ece <= m.ece and o.accuracy > m.accuracy)
                   for o in metrics)
    }  # fmt: skip
    joined = {xy for line in panel.lines for xy in zip(line.get_xdata(), line.get_ydata(), strict=True)}
    assert joined == (unbeaten if len(unbeaten) > 1 else set())


def test_pareto_promises_no_line_that_is_not_drawn(tmp_path: Path) -> None:
    sets = [simulated_dataset("some", classes=5, images=60)]
    methods = [f"o-tpt[lambda={value}]" for value in (1, 6, 18)]
    swept = sweep_method(get_method("o-tpt"), {"lambda": ["1", "6", "18"]})
    results = open_results([simulate_run(tmp_path / "run", sets, Settings(methods=swept))])
    for chosen in (methods, methods[:1]):
        figure = draw("pareto", select(results, methods=chosen))
        (panel,) = figure.axes
        (legend,) = figure.legends
        promised = "Pareto front of the sweep" in [text.get_text() for text in legend.get_texts()]
        assert promised == bool(panel.lines)
        assert "line" not in figure.get_supxlabel()


def test_seeds(bench: Bench) -> None:
    results = bench.results("seeds")
    upper, lower = drawn(bench, "seeds").axes
    for panel, metric in ((upper, "accuracy"), (lower, "ece")):
        for bars, method in zip(panel.containers, ("tpt", "o-tpt"), strict=True):
            values = [
                [100 * getattr(results.score(cell(d, method, s)).metrics, metric) for s in (0, 1)] for d in SETS[:2]
            ]
            middle, _, (spans,) = bars
            assert middle.get_ydata() == pytest.approx([sum(each) / 2 for each in values])
            # of two values the sample deviation is |a − b|/√2
            lengths = [span[1][1] - span[0][1] for span in spans.get_segments()]
            assert lengths == pytest.approx([2 * abs(a - b) / math.sqrt(2) for a, b in values])
    with pytest.raises(OtptError, match="hold one seed, 0"):
        draw("seeds", select(bench.results()))


def test_risk_coverage(bench: Bench) -> None:
    rows = bench.results().rows(cell("third", "tpt"))
    (panel,) = drawn(bench, "risk-coverage", datasets=["third"], methods=["tpt"]).axes
    expected = []
    for threshold in sorted(set(rows.confidences), reverse=True):
        given = [bool(right) for c, right in zip(rows.confidences, rows.correct, strict=True) if c >= threshold]
        expected.append((100 * len(given) / len(rows), 100 * given.count(False) / len(given)))
    (line,) = panel.lines
    assert np.stack([line.get_xdata(), line.get_ydata()], axis=1) == pytest.approx(np.array(expected))
    area = bench.results().score(cell("third", "tpt")).metrics.aurc
    assert line.get_label() == f"tpt, AURC {100 * area:.2f}"


def test_the_same_bytes_in_every_format(bench: Bench, tmp_path: Path) -> None:
    for suffix, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        for name in ("a", "b"):
            save(drawn(bench, "posthoc"), tmp_path / f"{name}.{suffix}")
        first, second = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in ("a", "b"))
        assert first == second
        assert first.startswith(start)
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert ET.fromstring(text).tag.endswith("svg")
    assert "dc:date" not in text
    assert b"/Type0" in (tmp_path / "a.pdf").read_bytes(), "letters as letters"
    for path in ("a.gif", "a"):
        with pytest.raises(OtptError, match=r"Unknown figure format 'gif'|no suffix"):
            save(drawn(bench, "posthoc"), tmp_path / path)


def test_names_that_would_break_a_drawing(tmp_path: Path) -> None:
    """Formulas, markup, letters that the font lacks, and very long names; warnings are errors here."""
    names = ["$x_{", "<b>&\"'", "שלום العربية", "長い名前" * 40]
    sets = [simulated_dataset(name, classes=3, images=6) for name in names]
    results = open_results([simulate_run(tmp_path / "run", sets, Settings(methods=("tpt", "o-tpt")))])
    before = dict(mpl.rcParams)
    for kind in ("reliability", "radar"):
        save(draw(kind, select(results, methods=["o-tpt"])), tmp_path / f"{kind}.svg")
        assert ET.parse(tmp_path / f"{kind}.svg").getroot().tag.endswith("svg")
    assert dict(mpl.rcParams) == before, "no global state is left behind"


def test_a_run_in_progress_is_marked(tmp_path: Path) -> None:
    sets = [simulated_dataset("some", classes=3, images=20)]
    folder = simulate_run(tmp_path / "run", sets, Settings(methods=("tpt",), shard_size=5), items=3)
    figure = draw("confidence", select(open_results([folder])))
    assert "run in progress, 15 of 20 images" in figure.get_supxlabel().replace("\n", " ")


def test_methods_keep_their_colours_and_differ(bench: Bench) -> None:
    many = ["o-tpt", *(f"mine {i}" for i in range(20))]
    found = looks(many)
    assert found["o-tpt"] == looks(["tpt", "o-tpt"])["o-tpt"]
    own = [(look.colour, look.dash) for look in found.values()]
    assert not any(a == b for a, b in itertools.combinations(own, 2))
    main = looks(["zero-shot", "tpt", "c-tpt", "o-tpt", "confident-half"])
    assert len({look.colour for look in main.values()}) == len({look.marker for look in main.values()}) == 5
    for each in looks(["mine", "other", "tpt+sals"]).values():  # alone in a figure, they borrow nothing from these
        assert each.colour not in {look.colour for look in main.values()}
        assert each.marker not in {look.marker for look in main.values()}


def test_what_is_not_there_is_told(bench: Bench) -> None:
    results = bench.results()
    with pytest.raises(OtptError, match=r"Unknown data set 'frist'\. Did you mean: first"):
        select(results, datasets=["frist"])
    with pytest.raises(OtptError, match="Unknown seed '7'"):
        select(results, seeds=[7])
    with pytest.raises(OtptError, match=r"hold no 'o-tpt\[lambda=2\]' on 'third'"):
        draw("posthoc", select(bench.results("main", "sweep"), methods=["tpt", "o-tpt[lambda=2]"], datasets=["third"]))
    with pytest.raises(OtptError, match="hold no sweep"):
        draw("pareto", select(results))
    with pytest.raises(OtptError, match="hold 1 prompts on 'first'"):
        draw("templates", select(results))
    with pytest.raises(OtptError, match="Unknown figure 'pie'"):
        draw("pie", select(results))
