"""Measurements on features of a real CLIP: ``python -m benchmarks.real_clip FEATURES WORK [--minutes M] [--write]``.

FEATURES has the files of OpenAI's ViT-B/32 that the page names. Streams take long: their results are appended to
``WORK/streams.jsonl``, orders outermost, and a repeated command continues; ``--minutes`` ends it in time. ``--write``
puts the tables into ``docs/real-clip.md``.
"""

from __future__ import annotations

import argparse
import inspect
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from benchmarks.pages import put_into
from otpt import metrics, rejection
from otpt.calibration import Calibrated, fit_calibration, fit_temperature
from otpt.calibration.conformal import conformal_quantile, conformal_scores, find_threshold
from otpt.data import FeatureDataset, feature_dataset
from otpt.errors import OtptError
from otpt.evaluation.evaluator import stream_order
from otpt.files import Json
from otpt.methods import column_facts, get_method

Floats = npt.NDArray[np.float64]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "real-clip.md"
SCALE = 100.0
STREAMS = ("label-prior", "lsa", "onlab", "onzeta", "pta", "pta-released", "bca", "tda", "dpe", "oga", "oga-released",
           "adapt-gda", "adapt-gda-released", "dota", "ecalp")  # fmt: skip
ORDERS = 5
METRICS = {"accuracy": 100, "ece": 100, "debiased_ece": 100, "nll": 1, "aurc": 100}
TITLES = ("accuracy %", "ECE %", "debiased ECE %", "NLL", "AURC %")
DRAWS = 20
"""Random choices of labelled images."""
COVERAGE = 0.9
EASY = "Food10"
"""The set whose streams are measured and left out of the page: zero-shot is right on 98 % of its 400 images."""


@dataclass(frozen=True)
class Bench:
    """A data set with text features, and labelled images for calibration (None: halves of the test images)."""

    name: str
    test: FeatureDataset
    labelled: FeatureDataset | None = None


def load(folder: Path) -> list[Bench]:
    """The three sets that have text features."""

    def data(name: str, file: Any, features: str, labels: str, texts: str) -> FeatureDataset:
        names = file["classnames"].astype(str).tolist()
        images = feature_dataset(file[features], file[labels], names, name=name, backbone="ViT-B-32/openai")
        return images.with_texts(file[texts], drop_missing=True)

    caltech, food = np.load(folder / "caltech101_vitb32.npz"), np.load(folder / "food10_vitb32.npz")
    imagenet = np.load(folder / "imagenet_vitb32_4shot.npz")
    return [
        Bench(
            "Caltech101-58",
            data("caltech101-58", caltech, "test_features", "test_labels", "text_detic"),
            data("caltech101-58", caltech, "val_features", "val_labels", "text_detic"),
        ),
        Bench(
            "Food10",
            data("food10", food, "test_features", "test_labels", "text_detic"),
            data("food10", food, "train_features", "train_labels", "text_detic"),
        ),
        Bench("ImageNet-4", data("imagenet-4", imagenet, "image_features", "labels", "text_features_b")),
    ]


def arrays(data: FeatureDataset) -> tuple[Tensor, npt.NDArray[np.int64], Tensor]:
    """Features (N, D), labels (N,), logits (N, C)."""
    features = torch.from_numpy(np.stack([data.source(i).views[0] for i in range(len(data))]))  # type: ignore[union-attr]
    return features, np.asarray(data.labels), SCALE * features @ torch.from_numpy(data.text_features).mT


def softmax(logits: Any) -> Floats:
    """(N, C) in float64."""
    return np.asarray(torch.as_tensor(logits).double().softmax(dim=-1).numpy())


def scores(probabilities: Floats, labels: npt.NDArray[np.int64]) -> dict[str, float]:
    """The metrics of a table's row."""
    functions = {name: getattr(metrics, name) for name in METRICS}
    return {name: float(function(probabilities, labels)) for name, function in functions.items()}


# ---- streams --------------------------------------------------------------------------------------------------------


def state_bytes(value: Any) -> int:
    """Bytes of the tensors of a stream's state."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, dict | list | tuple):
        return sum(map(state_bytes, value.values() if isinstance(value, dict) else value))
    return sum(map(state_bytes, vars(value).values())) if hasattr(value, "__dict__") else 0


def run_stream(name: str, data: FeatureDataset, seed: int, stop: float) -> dict[str, Any] | None:
    """One order of a stream; None if the time is over before its end."""
    features, labels, logits = arrays(data)
    method = get_method(name)
    component = next(each for each in method.functions if each.function)
    settings = {**method.settings_for("fine-grained"), "stream_length": len(data)}
    order = stream_order(seed, data.ids)
    state: dict[str, Any] = {}
    found = np.empty(logits.shape)
    texts, begun = torch.from_numpy(data.text_features), time.process_time()
    for i in order:
        if time.time() > stop:
            return None
        given = {"features": features[i : i + 1], "logits": logits[i : i + 1], "zero_shot": logits[i : i + 1],
                 "text_features": texts, "logit_scale": SCALE, "state": state}  # fmt: skip
        answer = component.call(given, settings)
        assert isinstance(answer, Tensor)
        found[i] = softmax(answer[0])
    seconds = time.process_time() - begun
    return {**scores(found, labels), "seconds": 1000 * seconds / len(order), "bytes": state_bytes(state)}


def run_streams(benches: Sequence[Bench], file: Path, stop: float) -> pd.DataFrame:
    """All streams in all orders that are not in the file yet."""
    done = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    known = {(row["set"], row["method"], row["order"]) for row in done}
    with file.open("a") as lines:
        for bench in benches:
            if (bench.name, "zero-shot", 0) not in known:
                _, labels, logits = arrays(bench.test)
                done.append({"set": bench.name, "method": "zero-shot", "order": 0, **scores(softmax(logits), labels)})
                lines.write(json.dumps(done[-1]) + "\n")
        for order in range(ORDERS):
            for bench in benches:
                for name in STREAMS:
                    if (bench.name, name, order) in known or time.time() > stop:
                        continue
                    found = run_stream(name, bench.test, order, stop)
                    if found is not None:
                        done.append({"set": bench.name, "method": name, "order": order, **found})
                        lines.write(json.dumps(done[-1]) + "\n")
                        lines.flush()
    return pd.DataFrame(done)


def stream_table(benches: Sequence[Bench], rows: pd.DataFrame) -> str:
    """One table per data set: zero-shot, then streams as mean and half range over the orders."""
    parts = []
    for bench in benches:
        if bench.name == EASY:
            continue
        _, labels, logits = arrays(bench.test)
        zero = scores(softmax(logits), labels)
        lines = [["zero-shot", "", *(f"{zero[name] * METRICS[name]:.2f}" for name in METRICS), "", ""]]
        for method in STREAMS:
            own = rows[(rows.set == bench.name) & (rows.method == method)] if len(rows) else rows
            if not len(own):
                continue
            cells = []
            for name, factor in METRICS.items():
                mean, half = own[name].mean() * factor, (own[name].max() - own[name].min()) * factor / 2
                cells.append(f"{mean:.2f} ± {half:.2f}" if len(own) > 1 else f"{mean:.2f}")
            size = f"{own.bytes.max() / 2**20:.1f}"
            lines.append([f"`{method}`", str(len(own)), *cells, f"{own.seconds.min():.1f}", size])
        titles = ["method", "orders", *TITLES, "s per 1000", "state MB"]
        images, classes = len(bench.test), len(bench.test.class_names)
        parts.append(f"**{bench.name}**, {images} images, {classes} classes\n\n{markdown(titles, lines)}")
    return "\n\n".join(parts)


# ---- labels ---------------------------------------------------------------------------------------------------------


def splits(bench: Bench, count: int) -> Iterator[tuple[Tensor, Any, Tensor, Any]]:
    """Logits and labels of ``count`` labelled images and of test images, for several draws."""
    _, labels, logits = arrays(bench.test)
    other = None if bench.labelled is None else arrays(bench.labelled)
    for draw in range(DRAWS):
        generator = np.random.default_rng(draw)
        if other is None:
            order = generator.permutation(len(labels))
            fit, rest = order[:count], order[len(order) // 2 :]
            yield logits[fit], labels[fit], logits[rest], labels[rest]
        else:
            fit = generator.permutation(len(other[1]))[:count]
            yield other[2][fit], other[1][fit], logits, labels


def calibration_table(benches: Sequence[Bench]) -> str:
    """ECE and NLL before and after a calibration with 50, 200 and 1000 labels."""
    lines = []
    for bench in benches:
        for count in (50, 200, 1000):
            values = []
            for fit, known, test, labels in splits(bench, count):
                if len(known) < count:
                    break
                model: dict[str, Json] = {"name": "", "fingerprint": ""}
                method: dict[str, Json] = {"name": "zero-shot", "numbers": {}}
                facts = column_facts(model, method, bench.test.class_names, {"name": "texts"}, None, {})
                calibrated = Calibrated(fit_calibration(softmax(fit), known, facts))
                raw = softmax(test)
                mapped = np.stack([calibrated.calibration.map(row) for row in raw])
                values.append((metrics.ece(raw, labels), metrics.ece(mapped, labels), metrics.nll(raw, labels),
                               metrics.nll(mapped, labels), fit_temperature(fit, torch.from_numpy(known))))  # fmt: skip
                if len(values) == 5:
                    break
            if values:
                mean, spread = np.mean(values, axis=0), np.std(values, axis=0)
                after = f"{100 * mean[1]:.2f} ± {100 * spread[1]:.2f}"
                lines.append([bench.name, str(count), f"{100 * mean[0]:.2f}", after, f"{mean[2]:.3f}",
                              f"{mean[3]:.3f}", f"{mean[4]:.2f} ± {spread[4]:.2f}"])  # fmt: skip
    titles = ["set", "labels", "ECE % before", "after", "NLL before", "after", "temperature"]
    return markdown(titles, lines)


def temperature_table(benches: Sequence[Bench]) -> str:
    """The temperature of each set at scale 100, and the mean cosine between its texts."""
    lines = []
    for bench in benches:
        _, labels, logits = arrays(bench.test)
        texts = torch.from_numpy(bench.test.text_features).double()
        cosines = texts @ texts.mT
        mean = float((cosines.sum() - cosines.trace()) / (len(texts) * (len(texts) - 1)))
        fitted, p = fit_temperature(logits, torch.from_numpy(labels)), softmax(logits)
        gap = float(p.max(axis=1).mean()) - float(metrics.accuracy(p, labels))
        lines.append([bench.name, f"{fitted:.3f}", f"{SCALE / fitted:.0f}", f"{100 * gap:+.1f}", f"{mean:.2f}"])
    return markdown(["set", "temperature", "logit scale", "confidence − accuracy %", "mean cosine of texts"], lines)


def sets_table(benches: Sequence[Bench]) -> str:
    """Coverage and size of prediction sets over random draws."""
    lines = []
    for bench in benches:
        found: dict[str, list[tuple[float, float]]] = {}
        for fit, known, test, labels in splits(bench, 1000 if bench.name != "Food10" else 500):
            together = softmax(torch.cat([fit, test]).double().numpy())
            for kind in ("lac", "aps", "raps"):
                scores = conformal_scores(kind, together)
                of_labels, of_test = scores[np.arange(len(known)), known], scores[len(known) :]
                sets = of_test <= conformal_quantile(of_labels, COVERAGE)
                covered = sets[np.arange(len(labels)), labels].mean()
                found.setdefault(kind, []).append((covered, sets.sum(axis=1).mean()))
        for name, values in found.items():
            mean, error = np.mean(values, axis=0), 1.96 * np.std(values, axis=0, ddof=1) / np.sqrt(len(values))
            cells = f"{100 * mean[0]:.1f} ± {100 * error[0]:.1f}", f"{mean[1]:.2f} ± {error[1]:.2f}"
            lines.append([bench.name, name, *cells])
    return markdown(["set", "sets", "measured %", "size"], lines)


def risk_table(benches: Sequence[Bench]) -> str:
    """Risk control: share answered, error among those, and how often the risk was exceeded."""
    lines = []
    for bench in benches:
        count = 1000 if bench.name != "Food10" else 500
        for risk in (0.02, 0.05, 0.1, 0.2):
            answered, errors, failed = [], [], 0
            for fit, known, test, labels in splits(bench, count):
                p, q = softmax(fit), softmax(test)
                threshold = find_threshold(p.max(axis=1), p.argmax(axis=1) == known, risk=risk)
                if threshold is None:
                    failed += 1
                    continue
                kept = np.array([threshold.answers(float(each)) for each in q.max(axis=1)])
                answered.append(kept.mean())
                errors.append((q.argmax(axis=1) != labels)[kept].mean() if kept.any() else 0.0)
            if answered:
                exceeded = sum(each > risk for each in errors)
                lines.append([bench.name, f"{100 * risk:g}", f"{100 * np.mean(answered):.1f}",
                              f"{100 * np.mean(errors):.2f}", f"{exceeded} of {len(errors)}", str(failed)])  # fmt: skip
    return markdown(["set", "risk %", "answered %", "error %", "exceeded", "no threshold"], lines)


def rejection_table(folder: Path, benches: Sequence[Bench]) -> str:
    """Caltech101's texts against images of other sets; scores that need no text tower."""
    known, _, _ = arrays(benches[0].test)
    texts = torch.from_numpy(benches[0].test.text_features)
    lines = []
    for other in ("dtd", "ucf101", "fgvc"):
        unknown = torch.from_numpy(np.load(folder / f"{other}_vitb32.npz")["test_features"].astype(np.float32))
        unknown = torch.nn.functional.normalize(unknown, dim=1)
        for name, (function, threshold) in rejection.SCORES.items():
            if "word_cosines" in inspect.signature(function).parameters:
                continue
            inside, outside = (_scored(function, rows @ texts.mT) for rows in (known, unknown))
            auroc = _auroc(inside, outside)
            fpr = float((outside <= np.quantile(inside, 0.95)).mean())
            if threshold is None:
                rejected = ["–", "–"]
            else:
                rejected = [f"{100 * (each > threshold).mean():.1f}" for each in (inside, outside)]
            lines.append([other, f"`{name}`", f"{100 * auroc:.1f}", f"{100 * fpr:.1f}", *rejected])
    titles = ["unknown images", "score", "AUROC %", "FPR95 %", "Caltech101 rejected %", "unknown rejected %"]
    return markdown(titles, lines)


def _scored(function: Callable[..., Tensor], cosines: Tensor) -> Floats:
    logits = SCALE * cosines
    available = {"cosines": cosines, "logits": logits, "probabilities": logits.softmax(dim=-1)}
    names = inspect.signature(function).parameters
    return np.asarray(function(**{name: available[name] for name in names}).double().numpy())


def _auroc(inside: Floats, outside: Floats) -> float:
    """P(outside > inside), ties one half."""
    ranks = pd.Series(np.concatenate([inside, outside])).rank().to_numpy()[len(inside) :]
    return float((ranks.sum() - len(outside) * (len(outside) + 1) / 2) / (len(inside) * len(outside)))


def markdown(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table."""
    rows = [titles, ["---"] * len(titles), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and with ``--write`` update the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("features", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--minutes", type=float, default=1e6, help="end the streams after this time")
    parser.add_argument("--only", nargs="*", help="names of tables")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(arguments)
    if not (given.features / "caltech101_vitb32.npz").exists():
        raise OtptError(f"There are no features in {str(given.features)!r}; expected caltech101_vitb32.npz and others.")
    given.work.mkdir(parents=True, exist_ok=True)
    stop, benches = time.time() + 60 * given.minutes, load(given.features)
    tables: dict[str, Callable[[], str]] = {
        "temperature": lambda: temperature_table(benches),
        "calibration": lambda: calibration_table(benches),
        "sets": lambda: sets_table(benches),
        "risk": lambda: risk_table(benches),
        "rejection": lambda: rejection_table(given.features, benches),
        "streams": lambda: stream_table(benches, run_streams(benches, given.work / "streams.jsonl", stop)),
    }
    for name, table in tables.items():
        if given.only and name not in given.only:
            continue
        text = table()
        print(f"\n## {name}\n\n{text}", flush=True)
        (given.work / f"{name}.md").write_text(text, encoding="utf-8")
        if given.write:
            put_into(PAGE, name, text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
