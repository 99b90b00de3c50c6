"""The bench of unknown images against scikit-learn."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import roc_auc_score, roc_curve

from benchmarks.rejection import SCORES, Bench, kept_classes, tables


def test_half_of_the_classes_is_kept() -> None:
    for classes in (2, 5, 40):
        kept = kept_classes(classes, 1)
        assert len(set(kept)) == (classes + 1) // 2
        assert set(kept) <= set(range(classes))
    assert kept_classes(40, 0) != kept_classes(40, 1)


def test_numbers_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    bench, expected = Bench(), {}
    for name in ("a", "b"):
        known = rng.random(60) < 0.5
        values = {score: np.round(rng.normal(size=60) + ~known, 1) for score in SCORES}
        rejected = {"msp": values["msp"] > 0.5}
        bench.add(name, known, values, rejected)
        for score, each in values.items():
            expected[name, "AUROC %", score] = roc_auc_score(~known, each)
            false, true, _ = roc_curve(known, -each, drop_intermediate=False)
            expected[name, "FPR95 %", score] = false[np.argmax(true >= 0.95)]
            if score == "msp":
                assert bench.rates["msp"][-1] == (np.mean(each[known] > 0.5), np.mean(each[~known] > 0.5))
    for (name, metric, score), value in expected.items():
        assert np.isclose(bench.value((metric, score), name), value)
    for metric in ("AUROC %", "FPR95 %"):
        estimate, low, high = bench.average((metric, "msp"))
        assert np.isclose(estimate, np.mean([expected[name, metric, "msp"] for name in ("a", "b")]))
        assert low < estimate < high
    assert f"{100 * expected['a', 'AUROC %', 'energy']:.1f}" in tables(bench)["sets"]
