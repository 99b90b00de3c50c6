"""Metrics of stored rows, and averages over data sets and seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from oracles.runs.runs_bench import CLASSES, PROMPT, config, fill, output

from otpt.metrics import evaluate as all_metrics
from otpt.runs import Run, averages, results_frame
from otpt.runs.scores import AVERAGED

Score = tuple[str, int, str, str, float | None]


def frame(*scores: Score) -> pd.DataFrame:
    """Of (data set, seed, prompt, method, value of all metrics or None without an image)."""
    found = pd.DataFrame(scores, columns=["dataset", "seed", "prompt", "method", "value"])
    own = dict.fromkeys(AVERAGED, found["value"])
    return found.assign(variant="", images=found["value"].notna().astype(int), **own)


def score(dataset: str, seed: int = 0, value: float | None = 0.5, *, prompt: str = "p", method: str = "tpt") -> Score:
    return dataset, seed, prompt, method, value


def test_scores_are_those_of_the_metrics_whatever_the_shards(tmp_path: Path) -> None:
    for size in (1, 4, 50):
        run = fill(tmp_path / str(size), config(("tpt",), images=40, shard_size=size))
        found = [(index, output("tiny", 0, (PROMPT, "tpt"), index)) for index in range(40)]
        p = np.stack([made.probabilities for _, made in found if made is not None])
        labels = np.array([index % len(CLASSES) for index, made in found if made is not None])
        assert len(labels) < 40
        for bins, side in ((20, "right"), (100, "left"), (1, "right")):
            (own,) = results_frame(run, n_bins=bins, side=side).to_dict("records")
            for name, value in all_metrics(p, labels, n_bins=bins, side=side).as_dict().items():
                assert own[name] == (value if isinstance(value, str) else pytest.approx(value, abs=1e-8)), name
            assert own["unreadable"] == 40 - len(labels)
        first = results_frame(Run(tmp_path / "1"))
        pd.testing.assert_frame_equal(results_frame(run).drop(columns="run"), first.drop(columns="run"))


def test_averages_are_means_of_their_rows() -> None:
    scores = [score("a", 0, 0.1), score("b", 0, 0.3), score("a", 1, 0.5), score("b", 1, 0.9)]
    (average,) = averages(frame(*scores))
    assert average["ece"] == pytest.approx(0.45)  # (0.2 + 0.7) / 2
    assert average["deviation"]["ece"] == pytest.approx(np.std([0.2, 0.7], ddof=1))
    assert averages(frame(scores[0]))[0]["deviation"] is None


def test_a_metric_that_is_not_defined_somewhere_has_no_average() -> None:
    """All predictions on one data set are right: the AUROC has nothing to compare."""
    found = frame(*(score(name, seed, value) for seed in (0, 1) for name, value in (("a", 0.5), ("b", 0.7))))
    found.loc[found.dataset == "b", "auroc"] = None
    (average,) = averages(found)
    assert average["auroc"] is None
    assert "auroc" not in average["deviation"]
    assert average["aurc"] == pytest.approx(0.6)


def test_no_average_without_every_data_set_and_seed() -> None:
    both = [score("a"), score("b")]
    found = averages(frame(*both, score("a", prompt="q"), score("a", prompt="q", method="o-tpt")))
    assert [(average["prompt"], average["method"]) for average in found] == [("p", "tpt")]
    assert averages(frame(score("a"), score("b", value=None))) == []


def test_a_method_with_seeds_of_its_own_keeps_its_average() -> None:
    """As a run has it that was asked for one more seed of one method."""
    one = [score("a", 0, 0.2), score("b", 0, 0.4)]
    two = [score(name, seed, 0.1 + seed, method="o-tpt") for name in "ab" for seed in (0, 1)]
    found = {average["method"]: average for average in averages(frame(*one, *two))}
    assert found["tpt"]["ece"] == pytest.approx(0.3)
    assert found["tpt"]["deviation"] is None
    assert found["o-tpt"]["ece"] == pytest.approx(0.6)
    assert [average["method"] for average in averages(frame(*one, *two[:-1]))] == ["tpt"]
