"""Groups of classes: probabilities add up over members, and an uncertain answer backs off to a group.

clf.set_classes(["beagle", "pug", "tabby"], groups={"animal": {"dog": ["beagle", "pug"], "cat": ["tabby"]}})
prediction = clf.predict("photo.jpg")
prediction.groups                      # {'animal': 1.0, 'dog': 0.93, 'cat': 0.07}
prediction.back_off(0.9)               # Answer(name='dog', confidence=0.93, classes=2)
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from otpt.calibration.conformal import check_fraction
from otpt.errors import OtptError, cannot_read, unknown

Floats = npt.NDArray[np.float64]
THRESHOLDS = tuple(round(0.99 - 0.01 * i, 2) for i in range(50))
"""Thresholds that are tested for a risk, the strictest first: 0.99, 0.98, …, 0.50."""


class Answer(NamedTuple):
    """A class, or a group of classes that contains the true one with probability ``confidence``.

    Attributes:
        name: of the class or group.
        confidence: its probability.
        classes: number of its classes; 1 for a class.
    """

    name: str
    confidence: float
    classes: int


@dataclass(frozen=True)
class Groups:
    """Groups of classes, any two of them nested or disjoint.

    Attributes:
        members: {group: positions in the class list}.
    """

    members: Mapping[str, tuple[int, ...]]

    @classmethod
    def read(cls, given: Any, classes: Sequence[str]) -> Groups:
        """Read groups from {name: class names or nested groups}, or from a CSV file.

        A row of the file is a class, then its groups from the narrowest to the widest; a header row is skipped if its
        first cell is no class.
        """
        if isinstance(given, Groups):
            return given
        nested = _read_csv(Path(given), classes) if isinstance(given, (str, Path)) else given
        if not isinstance(nested, Mapping) or not nested:
            raise OtptError(f"Groups are {nested!r:.80}; expected {{group: class names}}, or a CSV file.")
        places = {name: i for i, name in enumerate(classes)}
        found: dict[str, tuple[int, ...]] = {}

        def collect(name: str, members: Any) -> set[int]:
            if name in places or name in found:
                raise OtptError(f"The group {name!r} has the name of another class or group; expected a new one.")
            found[name] = ()  # before the groups inside it
            if isinstance(members, Mapping):
                inside = set().union(*(collect(each, own) for each, own in members.items()))
            elif isinstance(members, str) or not isinstance(members, Sequence):
                raise OtptError(f"The group {name!r} is {members!r:.80}; expected a list of class names.")
            else:
                for each in members:
                    if not isinstance(each, str) or each not in places:
                        raise unknown(f"class of the group {name!r}:", str(each)[:200], classes)
                inside = {places[each] for each in members}
            if not inside:
                raise OtptError(f"The group {name!r} has no members; expected at least one class.")
            found[name] = tuple(sorted(inside))
            return inside

        for name, members in nested.items():
            collect(name, members)
        for (one, first), (other, second) in combinations(found.items(), 2):
            shared = set(first) & set(second)
            if shared and shared not in (set(first), set(second)):
                both = classes[min(shared)]
                raise OtptError(
                    f"The class {both!r} is in the groups {one!r} and {other!r}, and neither contains the other; "
                    "expected nested or disjoint groups."
                )
        return cls(found)

    def probabilities(self, of_classes: Floats) -> dict[str, float]:
        """Return the probability of each group from those of the classes (C,)."""
        sums = {name: float(of_classes[list(members)].sum()) for name, members in self.members.items()}
        return {name: min(each, 1.0) for name, each in sums.items()}  # float32 may round up

    def back_off(self, of_classes: Floats, names: Sequence[str], threshold: float) -> Answer | None:
        """Return the most specific answer whose probability reaches the threshold, or None."""
        return _first(self.candidates(of_classes, names), threshold)

    def candidates(self, of_classes: Floats, names: Sequence[str]) -> list[Answer]:
        """Return the most probable class and all groups, the most specific answer first."""
        best = int(of_classes.argmax())
        found = [Answer(names[best], float(of_classes[best]), 1)]
        found += [Answer(name, p, len(self.members[name])) for name, p in self.probabilities(of_classes).items()]
        return sorted(found, key=lambda each: (each.classes, -each.confidence))

    def contains(self, answer: Answer, names: Sequence[str], label: int) -> bool:
        """Return whether an answer is correct for an image of class ``label``."""
        return label in self.members[answer.name] if answer.name in self.members else names[label] == answer.name


def back_off_threshold(
    probabilities: Floats,
    labels: Sequence[int],
    groups: Groups,
    names: Sequence[str],
    *,
    risk: float,
    guarantee: float = 0.95,
) -> float:
    """Return the lowest threshold at which at most ``risk`` of the answers are wrong, with probability ``guarantee``.

    Thresholds 0.99, 0.98, …, 0.50 are tested in this order on labelled images, (N, C) and (N,): given the number of
    answers at a threshold, the wrong ones are binomial. Testing stops at the first threshold that fails, so that all
    tests together err with probability 1 − guarantee.
    """
    check_fraction("risk", risk, such_as="0.05")
    check_fraction("guarantee", guarantee, such_as="0.95")
    found = None
    candidates = [groups.candidates(p, names) for p in probabilities]
    for threshold in THRESHOLDS:
        answers = [(_first(own, threshold), label) for own, label in zip(candidates, labels, strict=True)]
        right = [groups.contains(answer, names, label) for answer, label in answers if answer is not None]
        wrong = len(right) - sum(right)
        if not right or special.bdtr(wrong, len(right), risk) > 1 - guarantee:
            break
        found = threshold
    if found is None:
        raise OtptError(
            f"No threshold holds a risk of {risk:g} with probability {guarantee:g} on {len(labels)} labels; label more "
            "images, or allow a larger risk."
        )
    return found


def _first(candidates: list[Answer], threshold: float) -> Answer | None:
    return next((each for each in candidates if each.confidence >= threshold), None)


def _read_csv(path: Path, classes: Sequence[str]) -> dict[str, list[str]]:
    try:
        with path.expanduser().open(newline="", encoding="utf-8-sig") as file:
            rows = [[cell.strip() for cell in row if cell.strip()] for row in csv.reader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise cannot_read("file of groups", path, error) from None
    if rows and rows[0] and rows[0][0] not in classes:
        rows = rows[1:]
    found: dict[str, list[str]] = {}
    for row in rows:
        for group in row[1:]:
            found.setdefault(group, []).append(row[0])
    return found
