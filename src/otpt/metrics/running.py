"""torchmetrics interface, for ``MetricCollection``, checkpoints and distributed runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from torchmetrics import Metric as TorchMetric

from otpt import metrics
from otpt.errors import OtptError
from otpt.metrics.inputs import Values, check_probabilities, to_numpy
from otpt.metrics.table import Metrics, evaluate, get_metric


class RunningMetric(TorchMetric):  # type: ignore[misc]
    """Metric accumulated over batches, equal to the metric of the concatenated batches.

    ``ece = RunningMetric("ece", n_bins=15)``, then ``ece.update(probabilities, labels)`` and ``ece.compute()``.

    Args:
        metric: name of a metric, such as "accuracy", "ece" or "expected_calibration_error", or a function of
            (probabilities, labels). By default :func:`otpt.metrics.evaluate`, which returns all metrics by name.
        logits: whether batches contain logits; their softmax is computed in float64.
        options: options of the metric, such as ``n_bins=15``.
    """

    full_state_update = False
    is_differentiable = False

    def __init__(self, metric: str | Callable[..., Any] = "evaluate", *, logits: bool = False, **options: Any) -> None:
        super().__init__()
        function: Any = metric
        if isinstance(metric, str):
            function = evaluate if metric == "evaluate" else getattr(metrics, get_metric(metric).aliases[0])
        try:
            inspect.signature(function).bind(None, None, **options)
        except TypeError as error:
            raise OtptError(
                f"Invalid metric {metric!r}: {error}; expected the name of a metric or a function, and its options."
            ) from None
        self._function, self._logits = partial(function, **options), logits
        self.probabilities: Any
        self.labels: Any
        self.add_state("probabilities", default=[], dist_reduce_fx="cat")
        self.add_state("labels", default=[], dist_reduce_fx="cat")

    def __repr__(self) -> str:
        options = {**self._function.keywords, **({"logits": True} if self._logits else {})}
        name = getattr(self._function.func, "__name__", type(self._function.func).__name__)
        return f"RunningMetric({', '.join([repr(name), *(f'{key}={value!r}' for key, value in options.items())])})"

    def update(self, preds: Values, target: Values) -> None:
        """Add a batch: probabilities (N, C), or logits with ``logits=True``, and labels (N,)."""
        p, y = check_probabilities(_softmax(preds) if self._logits else preds, target)
        self.probabilities.append(torch.from_numpy(np.array(p)))
        self.labels.append(torch.from_numpy(y))

    def compute(self) -> Any:
        """Compute the metric of all batches so far."""
        if len(self.labels) == 0:
            raise OtptError("The metric has no batches; call update(probabilities, labels) before compute().")
        found = self._function(_joined(self.probabilities), _joined(self.labels))
        # plain numbers, since torchmetrics does not support frozen objects
        return found.as_dict() if isinstance(found, Metrics) else found


def _softmax(logits: Values) -> Any:
    values = to_numpy(logits, "logits").astype(np.float64)
    if values.ndim != 2 or values.size == 0 or not np.isfinite(values).all():
        raise OtptError(f"expected finite logits of shape (N, C), but got shape {values.shape}, or nan or infinity.")
    return softmax(values, axis=1)


def _joined(state: Any) -> Any:
    """Concatenate the batches; torchmetrics has done so already in a distributed run."""
    if isinstance(state, torch.Tensor):
        return state
    if len({each.shape[1:] for each in state}) > 1:
        raise OtptError(
            f"expected batches of the same classes, but got shapes {[tuple(each.shape) for each in state]}."
        )
    wide = max((each.dtype for each in state), key=lambda dtype: dtype.itemsize)
    return torch.cat([each.to(wide) for each in state])
