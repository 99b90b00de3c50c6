"""torchmetrics interface, for ``MetricCollection``, checkpoints and distributed runs.

torchmetrics is optional, and its import takes seconds. It is imported when the first :class:`RunningMetric` is created,
whose class then derives from ``torchmetrics.Metric`` as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, partial
from types import new_class
from typing import TYPE_CHECKING, Self

import numpy as np
from scipy.special import softmax

from otpt.errors import OtptError
from otpt.metrics.inputs import FloatArray, Values, check_probabilities, to_numpy
from otpt.metrics.table import Metrics, evaluate, get_metric

if TYPE_CHECKING:
    from torch import Tensor
    from torchmetrics import Metric as TorchMetric
else:
    TorchMetric = object


class RunningMetric(TorchMetric):  # type: ignore[misc]
    """Metric accumulated over batches, equal to the metric of the concatenated batches.

    It is a ``torchmetrics.Metric``: ``ece = RunningMetric("ece", n_bins=15)``, then ``ece.update(probabilities,
    labels)`` and ``ece.compute()``.

    Args:
        metric: name of a metric, such as "accuracy", "ece" or "expected_calibration_error", or a function of
            (probabilities, labels). By default :func:`otpt.metrics.evaluate`, which returns all metrics by name.
        logits: whether batches contain logits; their softmax is computed in float64.
        options: options of the metric, such as ``n_bins=15``.
    """

    full_state_update = False
    is_differentiable = False

    probabilities: list[Tensor]
    labels: list[Tensor]

    def __new__(cls, *args: object, **options: object) -> Self:
        return object.__new__(_with_torchmetrics(cls))  # type: ignore[arg-type]  # mypy: type[Self] is not hashable

    def __init__(
        self, metric: str | Callable[..., float | Metrics] = "evaluate", *, logits: bool = False, **options: object
    ) -> None:
        super().__init__()
        function = _named(metric) if isinstance(metric, str) else metric
        try:
            inspect.signature(function).bind(None, None, **options)
        except TypeError as error:
            raise OtptError(
                f"Invalid metric {metric!r}: {error}; expected the name of a metric or a function, and its options."
            ) from None
        self._function = partial(function, **options)
        self._logits = logits
        self.add_state("probabilities", default=[], dist_reduce_fx="cat")
        self.add_state("labels", default=[], dist_reduce_fx="cat")

    def __reduce__(self) -> tuple[object, ...]:
        written = type(self).__mro__[1]  # the class in its module, from which _with_torchmetrics derives
        return written.__new__, (written,), self.__getstate__()

    def __repr__(self) -> str:
        options = {**self._function.keywords, **({"logits": True} if self._logits else {})}
        name = getattr(self._function.func, "__name__", type(self._function.func).__name__)
        return f"RunningMetric({', '.join([repr(name), *(f'{key}={value!r}' for key, value in options.items())])})"

    def update(self, preds: Values, target: Values) -> None:
        """Add a batch: probabilities (N, C), or logits with ``logits=True``, and labels (N,)."""
        import torch

        p, y = check_probabilities(_softmax(preds) if self._logits else preds, target)
        self.probabilities.append(torch.from_numpy(np.array(p)))
        self.labels.append(torch.from_numpy(y))

    def compute(self) -> float | dict[str, int | float | str | None]:
        """Compute the metric of all batches so far; a dict by name for all metrics."""
        if len(self.labels) == 0:
            raise OtptError("The metric has no batches; call update(probabilities, labels) before compute().")
        value = self._function(_joined(self.probabilities), _joined(self.labels))
        # plain numbers, since torchmetrics does not support frozen objects
        return value.as_dict() if isinstance(value, Metrics) else value


@cache
def _with_torchmetrics(cls: type[RunningMetric]) -> type[RunningMetric]:
    """Return a class of the same name that derives from ``cls`` and ``torchmetrics.Metric``."""
    try:
        from torchmetrics import Metric
    except ImportError as error:
        raise OtptError("RunningMetric is a metric of torchmetrics; install it: pip install torchmetrics.") from error
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return new_class(cls.__name__, (cls, Metric), exec_body=lambda namespace: namespace.update(names))


def _named(metric: str) -> Callable[..., float | Metrics]:
    return evaluate if metric == "evaluate" else get_metric(metric).function


def _softmax(logits: Values) -> FloatArray:
    values = to_numpy(logits, "logits").astype(np.float64)
    if values.ndim != 2 or values.size == 0 or not np.isfinite(values).all():
        raise OtptError(f"expected finite logits of shape (N, C), but got shape {values.shape}, or nan or infinity.")
    return np.asarray(softmax(values, axis=1))


def _joined(state: list[Tensor] | Tensor) -> Tensor:
    """Concatenate the batches; torchmetrics has done so already in a distributed run."""
    import torch

    if isinstance(state, torch.Tensor):
        return state
    if len({batch.shape[1:] for batch in state}) > 1:
        raise OtptError(
            f"expected batches of the same classes, but got shapes {[tuple(batch.shape) for batch in state]}."
        )
    wide = max((batch.dtype for batch in state), key=lambda dtype: dtype.itemsize)
    return torch.cat([batch.to(wide) for batch in state])
