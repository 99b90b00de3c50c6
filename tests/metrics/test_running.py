"""Accumulating metrics: the value of the joined batches, alone and in a collection of torchmetrics."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError, MulticlassF1Score

from otpt import metrics
from otpt.errors import OtptError
from otpt.metrics import RunningMetric
from otpt.metrics.plain_base import PlainBase
from otpt.metrics.running import FUNCTIONS

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
            "ece": RunningMetric("expected_calibration_error", bins=15, logits=True),
            "mce": RunningMetric(metrics.maximum_calibration_error, bins=15, logits=True),
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


@pytest.mark.parametrize("name", FUNCTIONS)
def test_batches_merged_and_joined_are_the_same(name: str) -> None:
    logits, labels = (torch.cat(parts) for parts in zip(*batches(), strict=True))
    p = logits.double().softmax(dim=1)
    given: tuple[torch.Tensor, torch.Tensor] = (p, labels)
    if name == "macro_f1":
        given = (p.argmax(dim=1), labels)
    elif next(iter(inspect.signature(getattr(metrics, name)).parameters)) == "confidence":
        given = (p.amax(dim=1), p.argmax(dim=1) == labels)
    expected = getattr(metrics, name)(*given)
    one, two = (RunningMetric(name, logits=True) for _ in range(2))
    for i, (own, y) in enumerate(batches()):
        (one if i % 2 else two).update(own, y)
    one.merge_state(two)
    value = one.compute()
    if name == "evaluate":
        assert {key: value[key] for key in ("images", "bins", "side")} == {"images": 46, "bins": 20, "side": "right"}
        for key in ("accuracy", "ece", "nll", "aurc"):
            assert value[key] == pytest.approx(getattr(expected, key), abs=1e-12)
    else:
        assert value == pytest.approx(expected, abs=1e-12)
    again = pickle.loads(pickle.dumps(one))
    assert again.compute() == value


def test_numpy_and_lists_and_one_object_for_all_metrics() -> None:
    everything = RunningMetric(bins=10)
    everything.update(np.array([[0.9, 0.1], [0.8, 0.2]]), [0, 1])
    everything.update([[0.4, 0.6]], np.array([1]))
    found = everything.compute()
    assert (found["images"], found["bins"]) == (3, 10)
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["nll"] == pytest.approx(-(np.log(0.9) + np.log(0.2) + np.log(0.6)) / 3)


def test_a_collection_takes_keywords_and_shows_which_metric_is_which() -> None:
    p, y = torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0])
    both = MetricCollection({"ours": RunningMetric("accuracy"), "theirs": MulticlassAccuracy(num_classes=2)})
    assert both(preds=p, target=y)["ours"] == 0.5
    both.update(preds=p[:1], target=y[:1])
    assert both.compute()["ours"] == pytest.approx(2 / 3)
    assert repr(RunningMetric("ece", bins=15)) == "RunningMetric('expected_calibration_error', bins=15)"
    assert repr(RunningMetric("accuracy", logits=True)) == "RunningMetric('accuracy', logits=True)"


def test_names_of_torchmetrics_say_what_to_write() -> None:
    with pytest.raises(AttributeError, match=r"write RunningMetric\('ece', bins=15\)"):
        metrics.MulticlassCalibrationError  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match="did you mean brier_score"):
        metrics.brier_scores  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(metrics, "__wrapped__")


def test_what_is_wrong_is_said() -> None:
    ece = RunningMetric("expected_calibration_error")
    with pytest.raises(OtptError, match="expected probabilities >= 0"):
        ece.update(torch.randn(3, 4), torch.zeros(3, dtype=torch.long))
    with pytest.raises(OtptError, match="Unknown metric 'acuracy'"):
        RunningMetric("acuracy")
    with pytest.raises(OtptError, match="accuracy has no option 'bins'; expected top"):
        RunningMetric("accuracy", bins=3)
    with pytest.raises(OtptError, match=r"has no option 'n_bins'; did you mean bins\?"):
        RunningMetric("ece", n_bins=15)
    with pytest.raises(OtptError, match="has no option 'norm'; expected bins or side"):
        RunningMetric("ece", norm="l1")
    with pytest.raises(OtptError, match="The metric is a list; expected one name"):
        RunningMetric(["ece", "accuracy"])  # type: ignore[arg-type]
    with pytest.raises(OtptError, match="expected finite logits"):
        RunningMetric("accuracy", logits=True).update([[float("nan"), 1.0]], [0])
    with pytest.raises(OtptError, match="has no option 'labels'"):
        RunningMetric("ece", labels=3)
    ece.update([[0.9, 0.1]], [0])
    ece.update([[0.8, 0.1, 0.1]], [0])
    with pytest.raises(OtptError, match="expected batches of the same classes, but got 2 and 3 columns"):
        ece.compute()


def test_options_of_a_function_that_takes_any() -> None:
    metric = RunningMetric(lambda p, y, **options: float(len(y) * options["scale"]), scale=3)
    metric.update([[0.9, 0.1]], [0])
    assert metric.compute() == 3


WITHOUT = """
import sys
sys.modules["torchmetrics"] = None
from otpt.errors import OtptError
from otpt.metrics import RunningMetric
from otpt.metrics.plain_base import PlainBase
one, two = RunningMetric("accuracy"), RunningMetric("accuracy")
assert isinstance(one, PlainBase)
assert one([[0.9, 0.1], [0.2, 0.8]], [0, 0]) == 0.5
assert one([[0.9, 0.1]], [0]) == 1
try:
    one([[0.9, 0.9]], [0])
except OtptError:
    assert len(one.labels) == 2, "a batch that is refused leaves the others alone"
two.update([[0.3, 0.7]], [1])
one.merge_state(two)
assert one.compute() == 0.75
one.reset()
try:
    one.compute()
except OtptError as error:
    print(error)
"""


@pytest.mark.slow
def test_without_torchmetrics() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert done.stdout.startswith("There are no batches"), done.stderr
    assert not isinstance(RunningMetric("accuracy"), PlainBase)
