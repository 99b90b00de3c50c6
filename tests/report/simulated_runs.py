"""Run folders of any size without a model: simulated predictions, written as a real run writes its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from figure_bench import backbone

from otpt.classifier import Prediction
from otpt.data import Dataset
from otpt.evaluation import Run, Settings, score_run, write_metrics
from otpt.evaluation.rows import PartRows
from otpt.evaluation.settings import run_config

START = 0.76
# How much a method sharpens the logits, and mean and spread of its texts' similarity.
MANNERS = {
    "zero-shot": (1.7, START, 0.0),
    "tpt": (2.6, 0.775, 0.012),
    "c-tpt": (1.95, 0.742, 0.007),
    "o-tpt": (1.65, 0.721, 0.005),
    "tpt+ts": (2.1, 0.775, 0.012),
}
_OTHER = (2.0, 0.75, 0.006)


def simulated_dataset(name: str, classes: int = 20, pictures: int = 200) -> Dataset:
    return Dataset(
        name,
        [f"class {i}" for i in range(classes)],
        ids=[f"{name}/{i:05d}.jpg" for i in range(pictures)],
        labels=[i % classes for i in range(pictures)],
        pictures=lambda index: b"",
    )


def simulate_run(folder: Path, datasets: Sequence[Dataset], settings: Settings, *, parts: int | None = None) -> Path:
    """The run of ``settings`` on ``datasets``, or only its first ``parts``."""
    run = Run.create(folder, run_config(backbone(), datasets, settings))
    for item in run.items[:parts]:
        data = datasets[item.dataset]
        columns = run.columns(item.dataset)
        rows = PartRows(columns, len(data.class_names), save_probabilities=False)
        for index in range(item.start, item.stop):
            rows.add(index, data.ids[index], data.labels[index], _predictions(data, index, columns, item.seed))
        run.write(item, rows.part())
    if parts is None:
        write_metrics(run, score_run(run))
    return folder


def _predictions(data: Dataset, index: int, columns: Sequence[tuple[str, str]], seed: int) -> list[Prediction]:
    classes = len(data.class_names)
    picture = np.random.default_rng([sum(data.name.encode()), index])
    base = picture.normal(size=classes)
    base[data.labels[index]] += picture.normal(2.1, 1.3)
    found = []
    for prompt, method in columns:
        sharp, cosine, spread = _manner(method)
        shift = (sum(prompt.encode()) % 97) / 97 - 0.5  # every prompt has its own texts
        draw = np.random.default_rng([index, seed, sum(f"{prompt} {method}".encode())])
        logits = sharp * (1 + 0.5 * shift) * base + draw.normal(0, 0.25, classes)
        shares = np.exp(logits - logits.max())
        shares /= shares.sum()
        best = int(shares.argmax())
        found.append(
            Prediction(
                label=data.class_names[best],
                confidence=float(shares[best]),
                index=best,
                probabilities=shares,
                class_names=data.class_names,
                method=method,
                mean_cosine=cosine + 0.1 * shift + spread * float(draw.normal()),
            )
        )
    return found


def _manner(method: str) -> tuple[float, float, float]:
    if "[lambda=" in method:
        weight = float(method.partition("[lambda=")[2].rstrip("]"))
        return 1.5 + 1.1 / (1 + weight / 6), START - 0.05 * weight / (6 + weight), 0.006
    return MANNERS.get(method, _OTHER)
