"""Certificates of a whole data set, one JSON line a picture and method; what is there already is not done again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from otpt.backbones import Backbone
from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.evaluation.settings import method_numbers
from otpt.medical.pictures import open_or_error
from otpt.medical.promptsmooth.certificate import Certificate
from otpt.medical.promptsmooth.judge import plans_for, text_side
from otpt.medical.promptsmooth.smoother import Smoother
from otpt.medical.settings import MedicalSettings
from otpt.threads import one_thread

RADII = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class CertifiedPicture:
    """A line of the file; ``prediction`` is None for an abstention, and where ``error`` says why it was not read."""

    id: str
    method: str
    label: int
    prediction: int | None
    radius: float
    lower_bound: float
    error: str | None = None

    @property
    def correct(self) -> bool:
        """Not an abstention, and right."""
        return self.prediction == self.label


def certify_dataset(
    dataset: Dataset, backbone: Backbone, settings: MedicalSettings, *, out: Path
) -> Iterator[list[CertifiedPicture]]:
    """The certificates of each picture by each method, as they are made, after those that ``out`` holds already.

    Prompts are tuned and pictures judged with the first seed of the settings.
    """
    seed = settings.seeds[0]
    prompts, plans = settings.prompts_for(dataset), plans_for(settings, dataset)
    if len(prompts) > 1:
        raise OtptError(f"Certificates are made with one prompt; given were {len(prompts)}. Give a command for each.")
    with one_thread():
        text = text_side(backbone, dataset, prompts[0], settings)
    smoother = Smoother(backbone, settings.smoothing)
    key = _key(dataset, backbone, settings)
    done = _read(out, key, len(settings.chosen))
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a", encoding="utf-8") as file:
        if not file.tell():
            _write(file, {"run": key})
        for index in range(min(settings.limit or len(dataset), len(dataset))):
            name, label = dataset.ids[index], dataset.labels[index]
            if name in done:
                yield done[name]
                continue
            opened = open_or_error(dataset, index)
            error = None
            if isinstance(opened, OtptError):
                error = str(opened)
                certificates = [Certificate(None, 0.0, 0.0)] * len(plans)
            else:
                picture, digest = opened
                with one_thread():
                    tuned = smoother.tune(picture, text, plans, seed=seed, picture_id=digest)
                    certificates = smoother.certify(tuned, text, seed=seed, picture_id=digest)
            found = [
                CertifiedPicture(name, method.name, label, each.label, each.radius, each.lower_bound, error)
                for method, each in zip(settings.chosen, certificates, strict=True)
            ]
            _write(file, *(asdict(each) for each in found))
            yield found


def certified_accuracy(pictures: Sequence[CertifiedPicture], radius: float) -> float | None:
    """Share of pictures that are right and certified for perturbations of at least this norm."""
    return _share(pictures, lambda each: each.correct and each.radius >= radius)


def abstained(pictures: Sequence[CertifiedPicture]) -> float | None:
    """Share of pictures without an answer."""
    return _share(pictures, lambda each: each.prediction is None)


def _share(pictures: Sequence[CertifiedPicture], holds: Callable[[CertifiedPicture], bool]) -> float | None:
    """Of the pictures that could be read; None if there are none."""
    read = [each for each in pictures if each.error is None]
    return sum(map(holds, read)) / len(read) if read else None


def _write(file: Any, *rows: dict[str, Any]) -> None:
    """The rows of a picture at once, so that a stop leaves whole pictures, or one torn last line."""
    file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    file.flush()
    os.fsync(file.fileno())


def _read(out: Path, key: str, methods: int) -> dict[str, list[CertifiedPicture]]:
    """Whole pictures of an earlier run; what a stop has torn is cut off."""
    if not out.exists():
        return {}
    lines = out.read_bytes().splitlines(keepends=True)
    rows: list[dict[str, Any]] = []
    with suppress(ValueError):
        rows.extend(json.loads(line) for line in lines if line.endswith(b"\n"))
    if lines and (not rows or rows[0] != {"run": key}):
        raise OtptError(
            f"The file {str(out)!r} holds something else, or certificates of other settings; choose another."
        )
    kept = 1 + (len(rows) - 1) // methods * methods
    os.truncate(out, sum(map(len, lines[:kept])))
    found: dict[str, list[CertifiedPicture]] = {}
    for row in rows[1:kept]:
        found.setdefault(row["id"], []).append(CertifiedPicture(**row))
    return found


def _key(dataset: Dataset, backbone: Backbone, settings: MedicalSettings) -> str:
    parts = [backbone.fingerprint, backbone.precision, dataset.fingerprint, settings.seeds[0]]
    parts += [settings.columns_for(dataset), settings.system_numbers(dataset), settings.family_for(dataset)]
    methods = [method_numbers(method) for method in settings.chosen]
    return hashlib.sha256(json.dumps([parts, methods], sort_keys=True).encode()).hexdigest()[:32]
