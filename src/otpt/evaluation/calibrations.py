"""Calibration files of an evaluation: which one serves which method, and what it makes of an output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from otpt.calibration import Calibrated, Calibration, read_calibration
from otpt.errors import OtptError
from otpt.methods.facts import calibration_facts
from otpt.methods.preparing import columns

if TYPE_CHECKING:
    from otpt.methods import Method
    from otpt.methods.output import Output
    from otpt.settings import Settings

CALIBRATED = "+calibrated"
"""Behind the name of a method in the results, if a calibration file was used with it."""

CalibrationSource: TypeAlias = "str | Path | Calibration | Calibrated"


def with_calibrations(
    methods: tuple[Method, ...], sources: Sequence[CalibrationSource]
) -> tuple[tuple[Method, ...], tuple[Calibrated, ...]]:
    """The methods, renamed where there is a calibration of them; and the calibrations, read."""
    found = tuple(_read(source) for source in sources)
    for own in found:
        name = str(own.calibration.facts["method"]["name"])
        if sum(other.calibration.facts["method"]["name"] == name for other in found) > 1:
            raise OtptError(f"Two calibrations of the method {name!r} were given; expected one per method.")
        names = [method.name for method in methods]
        if name not in names and name + CALIBRATED not in names:
            raise OtptError(
                f"The calibration was made for the method {name!r}, not for {', '.join(map(repr, names))}; name that "
                "method, or leave the calibration out."
            )
        methods = tuple(replace(each, name=name + CALIBRATED) if each.name == name else each for each in methods)
    return methods, found


def check_calibrations(
    backbone: Any, settings: Settings, methods: Sequence[Method], calibrations: Mapping[str, Calibrated | None]
) -> None:
    """``OtptError`` if a calibration was made for another model, class list, prompt or setting of its method."""
    for method in methods:
        own = calibrations.get(method.name)
        if own is None:
            continue
        plain = replace(method, name=method.name.removesuffix(CALIBRATED))
        for prompt, _ in columns(settings, [method]):
            own.calibration.check(calibration_facts(backbone, plain, prompt, settings))


def calibrated_output(calibrated: Calibrated, output: Output, label: int) -> Output:
    """An output with calibrated probabilities; what was asked of the calibration becomes columns of the results."""
    answer = calibrated.answer(output.probabilities, output.index)
    extras = {**output.extras, "uncalibrated_confidence": output.confidence}
    if answer.classes is not None:
        extras |= {"set_size": float(len(answer.classes)), "covered": float(label in answer.classes)}
    if answer.abstained is not None:
        extras["answered"] = float(not answer.abstained)
    return replace(output, probabilities=answer.probabilities, index=answer.index, extras=extras, logits=None)


def _read(source: CalibrationSource) -> Calibrated:
    if isinstance(source, Calibrated):
        return source
    return Calibrated(source if isinstance(source, Calibration) else read_calibration(source))
