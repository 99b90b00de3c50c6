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
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import special

from otpt.arguments import checked
from otpt.calibration.conformal import check_fraction
from otpt.errors import OtptError, cannot_read, unknown
from otpt.metrics.inputs import Values, check_probabilities

Floats = npt.NDArray[np.float64]
GroupTree: TypeAlias = "Mapping[str, GroupTree | Sequence[str] | Sequence[int]]"
"""{group: class names, or a tree of narrower groups}."""
THRESHOLDS = tuple(round(0.99 - 0.01 * i, 2) for i in range(50))
"""Thresholds that are tested for a risk, the strictest first: 0.99, 0.98, …, 0.50."""
_HEADERS = ("class", "classes", "label", "name")
"""First cells of a header row, in a file that is read without a class list."""
_SHOWN = 5  # groups in a repr


class Answer(NamedTuple):
    """A class, or a group of classes that contains the true one with probability ``confidence``.

    Attributes:
        name: name of the class or group.
        confidence: probability of the class or group.
        classes: number of classes in the group; 1 for a class.
    """

    name: str
    confidence: float
    classes: int


@dataclass(frozen=True, repr=False)
class Groups:
    """Groups of classes, any two of them nested or disjoint.

    Attributes:
        members: {group: positions in the class list}.

    Example:
        >>> groups = Groups.read({"dog": ["beagle", "pug"]}, ["beagle", "pug", "tabby"])
        >>> groups
        Groups('dog' (2 classes))
        >>> groups.probabilities(np.array([0.5, 0.25, 0.25]))
        {'dog': 0.75}
    """

    members: Mapping[str, tuple[int, ...]]

    @classmethod
    def read(cls, groups: Groups | GroupTree | str | Path | object, classes: Sequence[str]) -> Groups:
        """Read groups from {name: class names or nested groups}, or from a CSV file.

        A row of the file is a class, then its groups from the narrowest to the widest; a header row is skipped if its
        first cell is not a class name.
        """
        if isinstance(groups, Groups):
            _check_positions(groups.members, classes)
            return groups
        if not isinstance(classes, (list, tuple)) or not all(isinstance(name, str) for name in classes):
            raise OtptError(f"The classes are {classes!r:.80}; expected a list of class names.")
        tree: object = _read_csv(Path(groups), classes) if isinstance(groups, (str, Path)) else groups
        if not isinstance(tree, Mapping) or not tree:
            raise OtptError(f"Groups are {tree!r:.80}; expected {{group: class names}}, or a CSV file.")
        positions = {name: position for position, name in enumerate(classes)}
        members: dict[str, tuple[int, ...]] = {}
        for name, content in tree.items():
            _add_group(name, content, positions, members)
        _check_nesting(members, classes)
        return cls(members)

    def to_json(self) -> dict[str, list[int]]:
        """Return {group: positions in the class list}, which :meth:`read` takes too."""
        return {name: list(positions) for name, positions in self.members.items()}

    def __repr__(self) -> str:
        sizes = [f"{name!r} ({_count(len(positions))})" for name, positions in self.members.items()]
        if len(sizes) > _SHOWN:
            sizes[_SHOWN:] = [f"… {len(sizes) - _SHOWN} more"]
        return f"Groups({', '.join(sizes)})"

    def __hash__(self) -> int:
        return hash(frozenset(self.members.items()))

    def probabilities(self, of_classes: Floats) -> dict[str, float]:
        """Return the probability of each group from those of the classes (C,)."""
        sums = {name: float(of_classes[list(positions)].sum()) for name, positions in self.members.items()}
        return {name: min(total, 1.0) for name, total in sums.items()}  # float32 may round up

    def inside(self, name: str) -> Groups | None:
        """Return the groups inside a group, as groups of its classes; None if there are none."""
        members = self.members[name]
        positions = {position: i for i, position in enumerate(members)}
        narrower = {
            other: tuple(positions[position] for position in of_other)
            for other, of_other in self.members.items()
            if other != name and set(of_other) <= set(members)
        }
        return Groups(narrower) if narrower else None

    def back_off(self, of_classes: Floats, names: Sequence[str], threshold: float) -> Answer | None:
        """Return the most specific answer whose probability reaches the threshold, or None."""
        return _first(self.candidates(of_classes, names), threshold)

    def candidates(self, of_classes: Floats, names: Sequence[str]) -> list[Answer]:
        """Return the most probable class and all groups, the most specific answer first."""
        best = int(of_classes.argmax())
        answers = [Answer(names[best], float(of_classes[best]), 1)]
        for name, probability in self.probabilities(of_classes).items():
            answers.append(Answer(name, probability, len(self.members[name])))
        return sorted(answers, key=lambda answer: (answer.classes, -answer.confidence))

    def contains(self, answer: Answer, names: Sequence[str], label: int) -> bool:
        """Return whether an answer is correct for an image of class ``label``."""
        return label in self.members[answer.name] if answer.name in self.members else names[label] == answer.name


@checked
def back_off_threshold(
    probabilities: Values,
    labels: Values,
    groups: Groups,
    names: Sequence[str],
    *,
    risk: float,
    guarantee: float = 0.95,
) -> float:
    """Return the lowest threshold at which at most ``risk`` of the answers are wrong, with probability ``guarantee``.

    Thresholds 0.99, 0.98, …, 0.50 are tested in this order on labelled images: given the number of answers at a
    threshold, the wrong ones are binomial. Testing stops at the first threshold that fails, so that all tests together
    err with probability 1 − guarantee.

    Args:
        probabilities: probabilities (N, C) of the labelled images.
        labels: class indices (N,) of the labelled images.
        groups: groups of the classes.
        names: names of the C classes.
        risk: largest accepted fraction of wrong answers.
        guarantee: probability, over the draw of the labelled images, that the risk is met.
    """
    of_images, true_labels = check_probabilities(probabilities, labels)
    if len(names) != of_images.shape[1] or set(map(max, groups.members.values())) - set(range(len(names))):
        raise OtptError(
            f"There are {len(names)} names and probabilities of {of_images.shape[1]} classes; expected one name each, "
            "and groups of these classes."
        )
    check_fraction("risk", risk, such_as="0.05")
    check_fraction("guarantee", guarantee, such_as="0.95")
    lowest = None
    candidates = [groups.candidates(row, names) for row in of_images.astype(np.float64)]
    for threshold in THRESHOLDS:
        answers = [_first(answers_of_image, threshold) for answers_of_image in candidates]
        correct = [
            groups.contains(answer, names, label)
            for answer, label in zip(answers, true_labels.tolist(), strict=True)
            if answer is not None
        ]
        wrong = len(correct) - sum(correct)
        if not correct or special.bdtr(wrong, len(correct), risk) > 1 - guarantee:
            break
        lowest = threshold
    if lowest is None:
        raise OtptError(
            f"No threshold holds a risk of {risk:g} with probability {guarantee:g} on {len(true_labels)} labels; label "
            "more images, or allow a larger risk."
        )
    return lowest


def _first(candidates: list[Answer], threshold: float) -> Answer | None:
    return next((answer for answer in candidates if answer.confidence >= threshold), None)


def _count(classes: int) -> str:
    return "1 class" if classes == 1 else f"{classes} classes"


def _add_group(
    name: str, content: object, positions: Mapping[str, int], members: dict[str, tuple[int, ...]]
) -> set[int]:
    """Add a group and the groups inside it to ``members``, wider groups first, and return the group's positions."""
    if name in positions or name in members:
        raise OtptError(f"The group {name!r} has the name of another class or group; expected a new one.")
    members[name] = ()  # before the groups inside it
    inside: set[int] = set()
    if isinstance(content, Mapping):
        for narrower, narrower_content in content.items():
            inside |= _add_group(narrower, narrower_content, positions, members)
    elif isinstance(content, str) or not isinstance(content, Sequence):
        raise OtptError(f"The group {name!r} is {content!r:.80}; expected a list of class names.")
    else:
        for class_name in content:
            if isinstance(class_name, int) and 0 <= class_name < len(positions):
                inside.add(class_name)
                continue
            if not isinstance(class_name, str) or class_name not in positions:
                raise unknown(f"class of the group {name!r}:", str(class_name)[:200], positions)
            inside.add(positions[class_name])
    if not inside:
        raise OtptError(f"The group {name!r} has no members; expected at least one class.")
    members[name] = tuple(sorted(inside))
    return inside


def class_names_of(groups: object) -> tuple[str, ...]:
    """Return the classes that groups name, in their order: in {name: class names or nested groups}, or a CSV file."""
    if isinstance(groups, (str, Path)):
        rows = _read_rows(Path(groups))
        if rows and rows[0][0].lower() in _HEADERS:
            rows = rows[1:]
        return tuple(dict.fromkeys(row[0] for row in rows))
    names: dict[str, None] = {}
    contents = list(groups.values()) if isinstance(groups, Mapping) else []
    for content in contents:
        if isinstance(content, Mapping):
            names |= dict.fromkeys(class_names_of(content))
        elif isinstance(content, Sequence) and not isinstance(content, str):
            names |= dict.fromkeys(name for name in content if isinstance(name, str))
    return tuple(names)


def _check_positions(members: Mapping[str, tuple[int, ...]], classes: Sequence[str]) -> None:
    """Raise for groups of another class list."""
    for name, positions in members.items():
        outside = [position for position in positions if not 0 <= position < len(classes)]
        if outside or name in classes:
            what = f"has the class {outside[0]}" if outside else "has the name of a class"
            raise OtptError(f"The group {name!r} {what}, and there are {len(classes)} classes; give their own groups.")


def _check_nesting(members: Mapping[str, tuple[int, ...]], classes: Sequence[str]) -> None:
    """Raise for two groups that overlap without one containing the other."""
    for (name, positions), (other_name, other_positions) in combinations(members.items(), 2):
        shared = set(positions) & set(other_positions)
        if shared and shared not in (set(positions), set(other_positions)):
            raise OtptError(
                f"The class {classes[min(shared)]!r} is in the groups {name!r} and {other_name!r}, and neither "
                "contains the other; expected nested or disjoint groups."
            )


def _read_rows(path: Path) -> list[list[str]]:
    """Return the cells of a CSV file that are not blank, without blank rows."""
    try:
        with path.expanduser().open(newline="", encoding="utf-8-sig") as file:
            rows = [[cell.strip() for cell in row if cell.strip()] for row in csv.reader(file)]
    except (OSError, ValueError, csv.Error) as error:
        raise cannot_read("file of groups", path, error) from None
    return [row for row in rows if row]


def _read_csv(path: Path, classes: Sequence[str]) -> dict[str, list[str]]:
    rows = _read_rows(path)
    if rows and rows[0][0] not in classes:
        rows = rows[1:]
    members: dict[str, list[str]] = {}
    for row in rows:
        for group in row[1:]:
            members.setdefault(group, []).append(row[0])
    return members
