"""Metrics of predictions: pure functions of (probabilities, labels), or of (confidence, correct).

Inputs are numpy arrays or torch tensors. Values are Python floats; fractions lie between 0 and 1 and
are not percentages: ``percent`` and ``Metrics.as_percent`` print them as published tables do.
"""

import lazy_loader as lazy

_attribute, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
_ELSEWHERE = {
    **dict.fromkeys(
        ("CalibrationError", "MulticlassCalibrationError", "ECE"),
        "write RunningMetric('ece', bins=15), which accumulates, or expected_calibration_error",
    ),
    "ece": "write expected_calibration_error",
    "nll": "write negative_log_likelihood",
    **dict.fromkeys(("Accuracy", "MulticlassAccuracy"), "write RunningMetric('accuracy'), or accuracy"),
}
"""Names of torchmetrics, and short ones."""


def __getattr__(name: str) -> object:
    if name in __all__:
        return _attribute(name)
    from otpt.errors import no_attribute

    raise no_attribute(__name__, name, __all__, _ELSEWHERE)
