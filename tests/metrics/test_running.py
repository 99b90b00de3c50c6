"""Accumulating metrics: the value of the joined batches, alone and in a collection of torchmetrics."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torchmetrics
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError, MulticlassF1Score

from otpt import metrics
from otpt.errors import OtptError
from otpt.metrics import METRICS, RunningMetric

CLASSES = 5


def batches(count: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Logits and labels, of unequal sizes."""
    generator = torch.Generator().manual_seed(0)
    return [
        (
            2 * torch.randn(7 + 3 * i, CLASSES, generator=generator),
            torch.randint(CLASSES, (7 + 3 * i,), generator=generator),
        )
        for i in range(count)
    ]


def test_in_a_collection_it_agrees_with_torchmetrics_own() -> None:
    ours = MetricCollection(
        {
            "ece": RunningMetric("ece", n_bins=15, logits=True),
            "mce": RunningMetric(metrics.maximum_calibration_error, n_bins=15, logits=True),
            "accuracy": RunningMetric("accuracy", logits=True),
            "top2": RunningMetric("accuracy", top=2, logits=True),
            "f1": RunningMetric("macro_f1", logits=True),
        }
    )
    theirs = MetricCollection(
        {
            "ece": MulticlassCalibrationError(CLASSES, n_bins=15, norm="l1"),
            "mce": MulticlassCalibrationError(CLASSES, n_bins=15, norm="max"),
            "accuracy": MulticlassAccuracy(CLASSES, average="micro"),
            "top2": MulticlassAccuracy(CLASSES, average="micro", top_k=2),
            "f1": MulticlassF1Score(CLASSES, average="macro"),
        }
    )
    for logits, labels in batches():
        ours.update(logits, labels)
        theirs.update(logits.softmax(dim=1), labels)
    expected = {name: float(value) for name, value in theirs.compute().items()}
    assert ours.compute() == pytest.approx(expected, abs=1e-6)
    ours.reset()
    logits, labels = batches()[0]
    assert ours(logits, labels)["accuracy"] == pytest.approx(float((logits.argmax(1) == labels).float().mean()))


@pytest.mark.parametrize("name", ["evaluate", "brier", *(METRICS[name].aliases[0] for name in METRICS)])
def test_batches_merged_and_joined_are_the_same(name: str) -> None:
    logits, labels = (torch.cat(parts) for parts in zip(*batches(), strict=True))
    function = getattr(metrics, "brier_score" if name == "brier" else name)
    expected = function(logits.double().softmax(dim=1), labels)
    one, two = (RunningMetric(name, logits=True) for _ in range(2))
    for i, (own, y) in enumerate(batches()):
        (one if i % 2 else two).update(own, y)
    one.merge_state(two)
    value = one.compute()
    assert value == pytest.approx(expected.as_dict() if name == "evaluate" else expected, abs=1e-12)
    assert pickle.loads(pickle.dumps(one)).compute() == value


def test_numpy_and_lists_and_one_object_for_all_metrics() -> None:
    everything = RunningMetric(n_bins=10)
    everything.update(np.array([[0.9, 0.1], [0.8, 0.2]]), [0, 1])
    everything.update([[0.4, 0.6]], np.array([1]))
    found = everything.compute()
    assert (found["images"], found["n_bins"]) == (3, 10)
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["nll"] == pytest.approx(-(np.log(0.9) + np.log(0.2) + np.log(0.6)) / 3)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ({"metric": "acuracy"}, "acuracy"),
        ({"metric": "accuracy", "n_bins": 3}, "n_bins"),
        ({"metric": "ece", "norm": "l1"}, "norm"),
        ({"metric": "ece", "num_classes": 5}, "num_classes"),
        ({"metric": ["ece", "accuracy"]}, "not a callable"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], value: str) -> None:
    with pytest.raises(OtptError, match=value):
        RunningMetric(**arguments)  # type: ignore[arg-type]


def test_bad_batches() -> None:
    ece = RunningMetric("ece")
    with pytest.raises(OtptError, match="probabilities >= 0"):
        ece.update(torch.randn(3, 4), torch.zeros(3, dtype=torch.long))
    with pytest.raises(OtptError, match="nan"):
        RunningMetric("accuracy", logits=True).update([[float("nan"), 1.0]], [0])
    ece.update([[0.9, 0.1]], [0])
    ece.update([[0.8, 0.1, 0.1]], [0])
    with pytest.raises(OtptError, match=r"\(1, 2\), \(1, 3\)"):
        ece.compute()


def test_options_of_a_function_that_takes_any() -> None:
    metric = RunningMetric(lambda p, y, **options: float(len(y) * options["scale"]), scale=3)
    metric.update([[0.9, 0.1]], [0])
    assert metric.compute() == 3


def test_without_torchmetrics(monkeypatch: pytest.MonkeyPatch) -> None:
    class NewMetric(RunningMetric):
        """A class that has not been created before."""

    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    with pytest.raises(OtptError, match="pip install torchmetrics"):
        NewMetric("ece")


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda metric: pickle.loads(pickle.dumps(metric))])
def test_copies_are_metrics_of_both_libraries(copied: Callable[[RunningMetric], RunningMetric]) -> None:
    metric = RunningMetric("ece", n_bins=5)
    metric.update([[0.9, 0.1]], [0])
    again = copied(metric)
    assert isinstance(again, RunningMetric)
    assert isinstance(again, torchmetrics.Metric)
    assert type(again) is type(metric)
    assert repr(again) == repr(metric)
    assert again.compute() == metric.compute()


def test_the_package_is_imported_without_torch() -> None:
    """In a fresh interpreter, because torch is already imported here."""
    code = "import sys, otpt.metrics; sys.exit('torch' in sys.modules or 'torchmetrics' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
