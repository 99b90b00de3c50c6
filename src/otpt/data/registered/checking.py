"""Check a data set: compare counts with the published ones, look for every file, and open a sample of images."""

from __future__ import annotations

from dataclasses import dataclass

from otpt.data.dataset import Dataset
from otpt.data.records import spread
from otpt.data.registered.entry import DatasetEntry
from otpt.errors import OtptError


@dataclass(frozen=True)
class CheckReport:
    """What was found; ``ok`` if nothing is wrong."""

    name: str
    classes: int
    images: int
    published_classes: int | None
    published_images: int | None
    empty_classes: tuple[str, ...]
    missing: tuple[str, ...]
    opened: int
    unreadable: tuple[tuple[str, str], ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, one sentence per problem."""
        found = []
        if self.published_classes not in (None, self.classes):
            found.append(f"{self.classes} classes, {self.published_classes} published")
        if self.published_images not in (None, self.images):
            found.append(f"{self.images} test images, {self.published_images} published")
        if self.published_images is not None and self.empty_classes:
            found.append(f"{len(self.empty_classes)} classes without an image")
        if self.missing:
            found.append(f"{len(self.missing)} images are missing")
        if self.unreadable:
            found.append(f"{len(self.unreadable)} of {self.opened} opened images cannot be read")
        return tuple(found)

    @property
    def ok(self) -> bool:
        return not self.problems


def check_dataset(data: Dataset, entry: DatasetEntry | None = None, *, sample: int = 100) -> CheckReport:
    """Look for all files of ``data`` and open ``sample`` images spread evenly over it (0: none, −1: all)."""
    from otpt.images import open_image

    missing, there = [], []
    for index, name in enumerate(data.ids):
        if data.is_file_missing(index):
            missing.append(name)
        else:
            there.append(index)
    chosen = there if sample < 0 else spread(there, sample)
    unreadable = []
    for index in chosen:
        try:
            open_image(data[index].source)
        except OtptError as error:
            unreadable.append((data.ids[index], str(error)))
    used = set(data.labels)
    return CheckReport(
        data.name,
        len(data.class_names),
        len(data),
        entry.classes if entry is not None else None,
        entry.test_images if entry is not None else None,
        tuple(name for label, name in enumerate(data.class_names) if label not in used),
        tuple(missing),
        len(chosen),
        tuple(unreadable),
    )
