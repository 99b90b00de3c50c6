"""Metrics that accumulate over batches: ``update``, ``compute``, ``reset``, ``merge_state``.

    ece = RunningMetric("expected_calibration_error", bins=15)
    for probabilities, labels in batches:
        ece.update(probabilities, labels)
    ece.compute()

If torchmetrics is installed this is one of its metrics, for ``MetricCollection``, checkpoints and distributed runs.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from otpt.errors import OtptError, unknown
from otpt.metrics import scores, selective
from otpt.metrics._inputs import check_probabilities, to_numpy
from otpt.metrics.calibration.calibration_error import (
    adaptive_calibration_error,
    classwise_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
)
from otpt.metrics.calibration.classwise_adaptive import classwise_adaptive_calibration_error
from otpt.metrics.calibration.debiased import debiased_ece
from otpt.metrics.calibration.ks import ks_calibration_error
from otpt.metrics.calibration.smooth import smooth_ece
from otpt.metrics.f1 import macro_f1
from otpt.metrics.plain_base import PlainBase
from otpt.metrics.ranking import fpr95, misclassification_auroc
from otpt.metrics.summary import Metrics, evaluate

if TYPE_CHECKING:
    from otpt.metrics._inputs import Values

    Base = PlainBase
else:
    try:
        from torchmetrics import Metric as Base
    except ImportError:
        Base = PlainBase

Function = Callable[..., Any]

OF_PROBABILITIES: tuple[Function, ...] = (
    scores.accuracy,
    scores.brier_score,
    scores.negative_log_likelihood,
    scores.overconfidence,
    scores.mean_entropy,
    expected_calibration_error,
    adaptive_calibration_error,
    maximum_calibration_error,
    classwise_calibration_error,
    classwise_adaptive_calibration_error,
)
OF_CONFIDENCE: tuple[Function, ...] = (
    scores.top_label_brier_score,
    debiased_ece,
    smooth_ece,
    ks_calibration_error,
    misclassification_auroc,
    fpr95,
    selective.aurc,
    selective.excess_aurc,
    selective.selective_accuracy,
    selective.coverage_at_risk,
)
FUNCTIONS: dict[str, Function] = {
    "evaluate": evaluate,
    **{function.__name__: function for function in OF_PROBABILITIES},
    **{function.__name__: function for function in OF_CONFIDENCE},
    macro_f1.__name__: macro_f1,
}
"""Metrics by name."""
SHORT: dict[str, Function] = {
    "ece": expected_calibration_error,
    "adaptive_ece": adaptive_calibration_error,
    "mce": maximum_calibration_error,
    "sce": classwise_calibration_error,
    "brier": scores.brier_score,
    "top_label_brier": scores.top_label_brier_score,
    "nll": scores.negative_log_likelihood,
    "entropy": scores.mean_entropy,
    "ks_error": ks_calibration_error,
    "auroc": misclassification_auroc,
}
"""Those whose names in :class:`Metrics`, and on the command line, are shorter."""


class RunningMetric(Base):
    """A metric of all batches so far: exactly that of the joined batches, whose probabilities are kept.

    Args:
        metric: the name of a metric, such as "accuracy", "ece" or "expected_calibration_error", or a function of
            (probabilities, labels); :func:`otpt.metrics.evaluate`, all metrics at once, as numbers by name, by default.
        logits: batches hold logits, whose softmax is taken in float64.
        options: of the function, such as ``bins=15``.
    """

    full_state_update = False
    is_differentiable = False

    def __init__(self, metric: str | Function = "evaluate", *, logits: bool = False, **options: Any) -> None:
        super().__init__()
        named = {**FUNCTIONS, **SHORT}
        if isinstance(metric, str) and metric not in named:
            raise unknown("metric", metric, named)
        function = named[metric] if isinstance(metric, str) else metric
        if not callable(function):
            raise OtptError(
                f"The metric is a {type(metric).__name__}; expected one name, such as 'ece', or a function. Several "
                "metrics: MetricCollection({'ece': RunningMetric('ece'), …}), or RunningMetric(), which has all."
            )
        _check_options(function, options)
        self._function, self._logits = partial(function, **options), logits
        self.probabilities: Any
        self.labels: Any
        self.add_state("probabilities", default=[], dist_reduce_fx="cat")
        self.add_state("labels", default=[], dist_reduce_fx="cat")

    def __repr__(self) -> str:
        """The metric with its options."""
        options = {**self._function.keywords, **({"logits": True} if self._logits else {})}
        name = getattr(self._function.func, "__name__", type(self._function.func).__name__)
        return f"RunningMetric({', '.join([repr(name), *(f'{key}={value!r}' for key, value in options.items())])})"

    def update(self, preds: Values, target: Values) -> None:
        """Add a batch: probabilities (N, C), or logits if it was made for them, and labels (N,).

        The arguments have the names of torchmetrics, whose collections pass on only those that they know.
        """
        p, y = check_probabilities(_softmax(preds) if self._logits else preds, target)
        self.probabilities.append(torch.from_numpy(np.array(p)))
        self.labels.append(torch.from_numpy(y))

    def compute(self) -> Any:
        """The metric of all batches so far."""
        if len(self.labels) == 0:
            raise OtptError("There are no batches to compute a metric of; call update(probabilities, labels) first.")
        p, y = _joined(self.probabilities), _joined(self.labels)
        function = self._function.func
        if function in OF_CONFIDENCE:
            return self._function(*scores.confidence_and_correct(p, y))
        found = self._function(p.argmax(dim=1) if function is macro_f1 else p, y)
        # plain numbers: torchmetrics looks into what a metric returns, and cannot take a frozen object
        return found.as_dict() if isinstance(found, Metrics) else found


_NOT_NEEDED = ("task", "num_classes")
"""Arguments of torchmetrics' classes."""


def _check_options(function: Function, options: Mapping[str, Any]) -> None:
    parameters = list(inspect.signature(function).parameters.values())[2:]  # after probabilities and labels
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return
    known = [each.name for each in parameters]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            if name in _NOT_NEEDED:
                hint = "leave it out: the columns of the probabilities are the classes"
            elif near:
                hint = f"did you mean {near[0]}?"
            else:
                hint = f"expected {' or '.join(known)}" if known else "it has none"
            stop = "" if hint.endswith("?") else "."
            raise OtptError(f"{getattr(function, '__name__', 'The metric')} has no option {name!r}; {hint}{stop}")


def _softmax(logits: Values) -> Any:
    values = to_numpy(logits, "logits").astype(np.float64)
    if values.ndim != 2 or values.size == 0 or not np.isfinite(values).all():
        raise OtptError(f"expected finite logits of shape (N, C), but got shape {values.shape}, or nan or infinity.")
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _joined(state: Any) -> Any:
    """Batches as one tensor; torchmetrics has joined them already where several processes share the work."""
    if isinstance(state, torch.Tensor):
        return state
    classes = dict.fromkeys(each.shape[1] for each in state if each.ndim == 2)
    if len(classes) > 1:
        raise OtptError(f"expected batches of the same classes, but got {' and '.join(map(str, classes))} columns.")
    wide = max((each.dtype for each in state), key=lambda dtype: dtype.itemsize)
    return torch.cat([each.to(wide) for each in state])
