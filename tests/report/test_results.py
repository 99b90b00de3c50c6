"""Runs as results: what may be in one table, frames, classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from oracles.runs.report_bench import METHODS, SEEDS, SETS, probabilities
from oracles.runs.simulated_runs import simulate_run, simulated_dataset

from otpt import OtptError
from otpt.evaluation import Evaluation as Settings
from otpt.methods import get_method
from otpt.report import ResultKey, Results, confusions, open_models, open_results, per_class


def test_frame_has_a_row_for_each_combination(results: Results) -> None:
    keys = results.frame[["dataset", "seed", "prompt", "method"]]
    assert len(keys.drop_duplicates()) == len(keys) == len(SETS) * len(SEEDS) * len(METHODS)
    assert (results.datasets, results.seeds) == ([data.name for data in SETS], list(SEEDS))
    rows = results.rows(ResultKey("dtd", 5, "a photo of a", "tpt"))
    np.testing.assert_allclose(rows.confidences, probabilities(2, "tpt", 5).max(axis=1), rtol=1e-6)


def test_per_class_and_confusions(results: Results) -> None:
    p, labels = probabilities(2, "tpt", 5), np.array(SETS[2].labels)
    found = per_class(results)
    own = found[(found["dataset"] == "dtd") & (found["seed"] == 5) & (found["method"] == "tpt")]
    predicted = p.argmax(axis=1)
    assert list(own["images"]) == np.bincount(labels).tolist()
    assert list(own["accuracy"]) == pytest.approx([(predicted[labels == c] == c).mean() for c in range(5)])
    pairs = confusions(results, 3)
    first = pairs[(pairs["dataset"] == "dtd") & (pairs["seed"] == 5) & (pairs["method"] == "tpt")].iloc[0]
    counts = np.zeros((5, 5), int)
    np.add.at(counts, (labels, predicted), 1)
    np.fill_diagonal(counts, 0)
    assert first["images"] == counts.max()


def test_runs_of_several_models(tmp_path: Path) -> None:
    settings = Settings(methods=("zero-shot", "tpt"))
    data = simulated_dataset("dtd", 5, 20)
    folders = [simulate_run(tmp_path / name, [data], settings, model=f"{name}/openai") for name in ("RN50", "RN101")]
    models = open_models(folders)
    assert list(models) == ["RN50/openai", "RN101/openai"]
    with pytest.raises(OtptError, match="RN101"):
        open_results(folders)
    other = simulate_run(tmp_path / "other", [simulated_dataset("dtd", 5, 30)], settings, model="RN50x4/openai")
    with pytest.raises(OtptError, match="dtd"):
        open_models([*folders, other])


def test_runs_that_cannot_be_compared(tmp_path: Path) -> None:
    data = [simulated_dataset("dtd", 5, 20)]
    first = simulate_run(tmp_path / "first", data, Settings(methods=("zero-shot",)))
    pairs = {
        "images": ([simulated_dataset("dtd", 4, 20)], Settings(methods=("tpt",)), "images"),
        "seeds": (data, Settings(methods=("tpt",), seeds=(3,)), "seeds"),
        "bins": (data, Settings(methods=("tpt",), n_bins=10), "bins"),
    }
    for name, (sets, settings, word) in pairs.items():
        with pytest.raises(OtptError, match=word):
            open_results([first, simulate_run(tmp_path / name, sets, settings)])
    assert open_results([first, tmp_path / "bins"], n_bins=15).n_bins == 15


def test_what_differs_between_runs_is_part_of_the_names(tmp_path: Path) -> None:
    """What was computed alike is shown once, and every other difference is named."""
    data = [simulated_dataset("dtd", 5, 20)]
    methods = ("zero-shot", "o-tpt")
    gentle = get_method("o-tpt").override({"lambda": 2})
    requests = {
        "main": Settings(methods=methods, views=8),
        "again": Settings(methods=methods, views=8),
        "views": Settings(methods=methods, views=32),
        "lambda": Settings(methods=("zero-shot", gentle), views=8),
        "precision": Settings(methods=methods, views=8, official_precision=True),
        "augmix": Settings(methods=methods, views=8, augmix=False),
    }
    folders = {name: simulate_run(tmp_path / name, data, settings) for name, settings in requests.items()}
    names = {
        "again": ["zero-shot", "o-tpt"],
        "views": ["zero-shot", "o-tpt[views=8]", "o-tpt[views=32]"],
        "lambda": ["zero-shot", "o-tpt[orthogonality=published]", "o-tpt[orthogonality=2.0]"],
        "precision": [f"{name}[official-precision={word}]" for word in ("off", "on") for name in methods],
    }
    for name, expected in names.items():
        results = open_results([folders["main"], folders[name]])
        assert results.methods == expected
        for key in results.keys_of():
            assert len(results.rows(key)) == 20
    chosen = open_results([folders["main"], folders["views"]], methods=["o-tpt[views=32]"])
    assert chosen.methods == ["o-tpt[views=32]"]
    assert len(open_results([folders["main"], folders["augmix"]]).methods) > 2


def test_bad_input(runs: dict[str, Path], tmp_path: Path) -> None:
    for folders, options, value in [
        ([], {}, "at least one"),
        ([tmp_path / "none"], {}, "none"),
        ([runs["main"]], {"seeds": [9]}, "9"),
        ([runs["main"]], {"methods": ["otpt"]}, "otpt"),
        ([runs["main"]], {"n_bins": 0}, "0"),
    ]:
        with pytest.raises(OtptError, match=value):
            open_results(folders, **options)
