"""Results and rows as DataFrames."""

from __future__ import annotations

from pathlib import Path

import pytest
from oracles.runs.runs_bench import config, fill

from otpt.runs import Run, read_rows, results_frame, score_run


def test_frame_has_the_metrics_of_every_key(tmp_path: Path) -> None:
    run = fill(tmp_path / "run", config(seeds=[0, 1], datasets=("one", "two")))
    frame = results_frame(run)
    assert len(frame) == 2 * 2 * 2
    scores = {(s.dataset, s.seed, s.prompt, s.method): s for s in score_run(run)}
    for _, row in frame.iterrows():
        score = scores[row.dataset, row.seed, row.prompt, row.method]
        assert score.metrics is not None
        assert (row.accuracy, row.ece, row.images) == (score.metrics.accuracy, score.metrics.ece, score.metrics.images)
        assert row.images + row.unreadable == row.planned == 10


def test_rows_of_all_keys_in_one_frame(tmp_path: Path) -> None:
    run = fill(tmp_path / "run", config(seeds=[0, 1]))
    frame = Run(run.folder).to_pandas()
    assert len(frame) == 2 * 2 * 10
    own = frame[(frame.seed == 1) & (frame.method == "o-tpt") & frame.error.isna()]
    rows = read_rows(run, "tiny", 1, (own.prompt.iloc[0], "o-tpt"))
    assert rows is not None
    assert own.confidence.tolist() == rows.confidences.tolist()
    of_results = results_frame(run).query("seed == 1 and method == 'o-tpt'")
    assert own.correct.mean() == pytest.approx(of_results.accuracy.iloc[0])
