"""What is done with probabilities: calibration, prediction sets, abstention and rejection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, InstanceOf, field_serializer, field_validator, model_validator

from otpt.calibration import Calibrated, Calibration, read_calibration
from otpt.errors import OtptError, unknown
from otpt.files import Json
from otpt.methods import Method, Task
from otpt.records import NO_OPTION, Frozen, join_spelling, one_or_several
from otpt.rejection import DEFAULT_SCORE, Rejection, get_threshold

CalibrationSource = str | Path | Calibration | Calibrated
"""File of ``otpt calibrate``, or an object in memory."""

CALIBRATED_FIELDS = ("coverage", "sets", "mondrian", "risk", "guarantee")
"""Fields that say how calibrations are used."""


class Decision(Frozen):
    """What is done with probabilities.

    ``calibration`` is accepted for a single one of ``calibrations``, and ``reject=True`` for the default score.

    Example:
        >>> Decision(reject=True).rejection.score
        'word-margin'
    """

    spellings: ClassVar[Mapping[str, str]] = {"calibration": "calibrations"}

    calibrations: tuple[str | Path | InstanceOf[Calibration] | InstanceOf[Calibrated], ...] = Field(
        (), description="calibration files of 'otpt calibrate', one per method"
    )
    coverage: float | None = Field(
        None, gt=0, lt=1, description="probability that a prediction set contains the true class"
    )
    sets: Literal["lac", "aps", "raps"] = Field("aps", description="kind of prediction sets")
    mondrian: bool = Field(False, description="class-conditional coverage of the prediction sets")
    risk: float | None = Field(
        None, gt=0, lt=1, description="maximum error rate on answered images; abstain on the others"
    )
    guarantee: float = Field(0.95, gt=0, lt=1, description="probability with which the risk is controlled")
    reject: str | None = Field(
        None, description="score for rejecting images that fit none of the classes ('word-margin' is recommended)"
    )
    reject_threshold: float | None = Field(
        None, allow_inf_nan=False, description="reject images with a higher score (default: depends on the score)"
    )
    threshold: float = Field(
        0.5,
        ge=0,
        le=1,
        description="probability that labels must reach with several labels, and a class or group with groups",
        json_schema_extra={NO_OPTION: {"evaluate": "rows of an evaluation have all probabilities"}},
    )
    within: str | None = Field(
        None,
        description="group of classes to choose from; probabilities are those given that the image shows one of them",
        json_schema_extra={NO_OPTION: {"evaluate": "the labels of a data set are of all its classes"}},
    )

    @model_validator(mode="before")
    @classmethod
    def _read(cls, values: dict[str, object]) -> dict[str, object]:
        values = dict(values)
        join_spelling(values, "calibration", "calibrations")
        return values

    @field_validator("calibrations", mode="before")
    @classmethod
    def _read_calibrations(cls, value: object) -> tuple[object, ...]:
        return tuple(_read_source(item) for item in one_or_several(value))

    @field_validator("reject", mode="before")
    @classmethod
    def _read_reject(cls, value: object) -> object:
        if value is True:
            return DEFAULT_SCORE
        return None if value is False or (isinstance(value, str) and not value) else value

    @model_validator(mode="after")
    def _check(self) -> Decision:
        if self.reject is not None:
            get_threshold(self.reject, self.reject_threshold)
        elif self.reject_threshold is not None:
            raise OtptError(
                f"The rejection threshold is {self.reject_threshold}, but no score is set; set it with --reject."
            )
        used = [name for name in CALIBRATED_FIELDS if name in self.model_fields_set and self._differs(name)]
        if used and not self.calibrations:
            raise OtptError(f"{used[0]} is set without a calibration; pass a calibration as well.")
        if used and any(isinstance(source, Calibrated) for source in self.calibrations):
            raise OtptError(f"{used[0]} is set next to a Calibrated object, which has its own; set it there.")
        if self.risk is None and self._differs("guarantee"):
            raise OtptError(f"The guarantee is {self.guarantee}, but no risk is set; set one, such as risk=0.05.")
        for name in ("sets", "mondrian"):
            if self.coverage is None and self._differs(name):
                raise OtptError(
                    f"{name} is {getattr(self, name)!r}, but no coverage is set; set one, such as coverage=0.9."
                )
        self._check_within()
        return self

    def _check_within(self) -> None:
        """Raise an :class:`OtptError` for a group next to a guarantee, which is for all classes."""
        if self.within is None:
            return
        for one in (self, *(source for source in self.calibrations if isinstance(source, Calibrated))):
            for name in ("coverage", "risk"):
                if getattr(one, name) is not None:
                    raise OtptError(
                        f"within is {self.within!r} and {name} is {getattr(one, name)}, but the guarantee of a "
                        "calibration is for all classes; pass only one of them."
                    )

    def _differs(self, name: str) -> bool:
        return bool(getattr(self, name) != type(self).model_fields[name].default)

    @field_serializer("calibrations", when_used="json")
    def _calibrations_to_json(self, value: tuple[CalibrationSource, ...]) -> Json:
        return [_source_to_json(source) for source in value]

    @property
    def rejection(self) -> Rejection | None:
        """Score and threshold for images that fit none of the classes, or None."""
        return None if self.reject is None else Rejection(self.reject, self.reject_threshold)

    @cached_property
    def calibrated(self) -> tuple[Calibrated, ...]:
        """Calibrations with the requested coverage and risk."""
        return tuple(self._calibrated(source) for source in self.calibrations)

    def _calibrated(self, source: CalibrationSource) -> Calibrated:
        if isinstance(source, Calibrated):
            return source
        return Calibrated(
            source if isinstance(source, Calibration) else read_calibration(source),
            coverage=self.coverage,
            sets=self.sets,
            mondrian=self.mondrian,
            risk=self.risk,
            guarantee=self.guarantee,
        )

    def with_calibrations(self, calibrations: Sequence[CalibrationSource]) -> Decision:
        """Return a copy with other calibrations; without any, or with their own coverage, that of the copy is unset."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        if not calibrations or any(isinstance(source, Calibrated) for source in calibrations):
            values = {name: value for name, value in values.items() if name not in CALIBRATED_FIELDS}
        return Decision(**{**values, "calibrations": tuple(calibrations)})

    def by_method(self, methods: Sequence[Method]) -> dict[str, Calibrated]:
        """Return the calibrations by method name; raise for unexpected methods and duplicates."""
        return calibrations_by_method(self.calibrated, methods)

    def check_task(self, task: Task) -> None:
        """Raise an :class:`OtptError` for what cannot be decided about a task: its labels, or its groups."""
        if self.within is not None and task.classes:
            self._check_group(self.within, task)
        if not task.independent_labels or not (task.classes or task.multi_label):
            return
        for name in ("coverage", "risk", "reject"):
            if getattr(self, name) is not None:
                raise OtptError(
                    f"{name} cannot be combined with {task.question}; it requires exactly one label per image."
                )

    @staticmethod
    def _check_group(within: str, task: Task) -> None:
        """Raise an :class:`OtptError` unless a group has several classes to choose from."""
        if task.groups is None:
            raise OtptError(
                f"within is {within!r}, but the classes have no groups; give them, as groups={{{within!r}: [names]}}."
            )
        members = task.groups.members
        if within not in members:
            raise unknown("group", within, members)
        if len(members[within]) < 2:
            raise OtptError(f"The group {within!r} has a single class, which would always be the answer; leave it out.")


def _read_source(value: object) -> object:
    """Return the content of a calibration in a settings file, or the value itself."""
    if isinstance(value, Mapping):
        if "calibration" in value:  # of a Calibrated object
            options = {name: value[name] for name in value if name != "calibration"}
            return Calibrated(Calibration.model_validate(value["calibration"]), **options)
        return Calibration.model_validate(value)
    if not isinstance(value, (str, PathLike, Calibration, Calibrated)):
        raise OtptError(
            f"The calibration is {value!r:.80}; expected a file of 'otpt calibrate', a Calibration or a Calibrated."
        )
    return str(value) if isinstance(value, PathLike) else value


def _source_to_json(source: CalibrationSource) -> Json:
    if isinstance(source, Calibrated):
        options: dict[str, Json] = {name: getattr(source, name) for name in CALIBRATED_FIELDS}
        return {"calibration": source.calibration.as_dict(), **options}
    return source.as_dict() if isinstance(source, Calibration) else str(source)


def calibrations_by_method(calibrations: Iterable[Calibrated], methods: Sequence[Method]) -> dict[str, Calibrated]:
    """Return calibrations by method name; raise for unexpected methods and duplicates."""
    by_method: dict[str, Calibrated] = {}
    for calibrated in calibrations:
        name = calibrated.calibration.method
        if name in by_method:
            raise OtptError(f"The method {name!r} has two calibrations; expected one per method.")
        if name not in {method.name for method in methods}:
            raise OtptError(
                f"The calibration was fitted for the method {name!r}, not for "
                f"{', '.join(repr(method.name) for method in methods)}; use that method, or omit the calibration."
            )
        by_method[name] = calibrated
    return by_method
