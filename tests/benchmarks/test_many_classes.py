"""The approximation's curve, from points that are known."""

from __future__ import annotations

from benchmarks.many_classes import THRESHOLDS, Point, draw


def test_the_curve_shows_every_point_of_the_real_lists() -> None:
    titles = ("imagenet, drawn", "emoji/food, pocket", "200 names, random 0")
    kept = [
        Point(title, method, below, 0.5, 1 + i, 0.1, 0.01 * i, 0.0)
        for title in titles
        for method in ("tpt", "o-tpt")
        for i, below in enumerate(THRESHOLDS)
    ]
    (panel,) = draw(kept).axes
    curves = [line for line in panel.lines if len(line.get_xdata()) > 1]
    assert [list(line.get_xdata()) for line in curves] == [[1, 2, 3, 4, 5]] * 2, "O-TPT on the two that are not random"
    assert len(panel.lines) == 2 * (1 + len(THRESHOLDS))
    low, high = panel.get_ylim()
    assert low <= 0 < max(point.mean for point in kept) < high
    shown = [text.get_text() for text in panel.get_legend().get_texts()]
    assert shown == [*titles[:2], *(f"τ = {below:.0e}" for below in THRESHOLDS)]
    assert str(kept[3]) == "imagenet, drawn       tpt        1e-03   50.0 %   4.00×    1.0e-01    3.0e-02    0.0 %"
