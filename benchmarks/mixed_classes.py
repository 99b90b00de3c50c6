"""Named classes next to classes with example images only: ``python -m benchmarks.mixed_classes``.

Four emoji sets with ``pocket``, 40 classes each. The names of some classes are hidden and replaced by drawings of the
training split; the test images show all classes. Next to :mod:`otpt.methods.mixed_classes`, two anchors: all classes
named, and scale · cosine with the mean of the examples next to the logits of the texts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from otpt import Classifier, load
from otpt.data.emoji import emoji_dataset
from otpt.methods.example_scorers import prototypes
from otpt.methods.mixed_classes import fit_mixed
from otpt.metrics import debiased_ece
from otpt.prompts import MEMORY_BUDGET, Prompt
from otpt.rejection import negative_words, text_features_of

SETS = ("food", "objects", "symbols", "flags")
"""Sets on which no constant was chosen."""
CLASSES = 40
HIDDEN = (1, 3, 20)
SHOTS = (1, 2, 4, 8, 16)
DRAWS = 10
"""Choices of the hidden classes and their examples, per set."""


@dataclass(frozen=True)
class Bench:
    """Unit features in float64 of one set: images of both splits with labels, texts, nouns that are no classes."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    texts: Tensor
    words: Tensor
    scale: float


@dataclass(frozen=True)
class Outcome:
    """Per test image: confidence, correctness, log-probability of its class, whether the class is hidden."""

    confidence: Tensor
    correct: Tensor
    log_likelihood: Tensor
    hidden: Tensor


def load_bench(clf: Classifier, name: str) -> Bench:
    """Encode a random choice of classes of a set."""
    names = emoji_dataset(f"emoji/{name}").class_names
    chosen = np.random.default_rng(0).permutation(len(names))[:CLASSES].tolist()
    parts = []
    for split in ("train", "test"):
        dataset = emoji_dataset(f"emoji/{name}", split)
        rows = [i for i, label in enumerate(dataset.labels) if label in chosen]
        features = clf.embed([dataset.source(i) for i in rows], workers=0)
        labels = [chosen.index(dataset.labels[i]) for i in rows]
        parts += [torch.as_tensor(features).double(), torch.tensor(labels)]
    class_names = [names[c] for c in chosen]
    taken = {each.lower() for each in class_names}
    words = [word for word in negative_words() if word not in taken]
    texts = text_features_of(clf.backbone, class_names, Prompt(), MEMORY_BUDGET).double()
    nouns = text_features_of(clf.backbone, words, Prompt(), MEMORY_BUDGET).double()
    return Bench(parts[0], parts[1], parts[2], parts[3], texts, nouns, clf.backbone.logit_scale)


def predictions(bench: Bench, hidden: int, shots: int, kind: str) -> Iterator[tuple[str, Outcome]]:
    """Yield the outcomes of each rule and draw."""
    text_logits = bench.scale * bench.test @ bench.texts.mT
    for draw in range(DRAWS):
        rng = np.random.default_rng(draw)
        columns = np.sort(rng.permutation(CLASSES)[:hidden])
        rows: list[int] = []
        for column in columns:
            members = np.flatnonzero(bench.train_labels.numpy() == column)
            rows.extend(rng.permutation(members)[:shots].tolist())
        examples, labels = bench.train[rows], bench.train_labels[rows]
        mixed = fit_mixed(kind, examples, labels, word_features=bench.words, logit_scale=bench.scale)
        index = torch.from_numpy(columns)
        means = prototypes(examples, labels, CLASSES)(bench.test)
        yield "all named", outcome(text_logits, bench.test_labels, index)
        naive = text_logits.index_copy(1, index, bench.scale * means[:, index])
        yield "scale · cosine", outcome(naive, bench.test_labels, index)
        yield kind, outcome(mixed(bench.test, text_logits), bench.test_labels, index)


def outcome(logits: Tensor, labels: Tensor, hidden: Tensor) -> Outcome:
    """Evaluate logits (N, C)."""
    log_probabilities = logits.log_softmax(dim=-1)
    confidence, predicted = log_probabilities.exp().max(dim=-1)
    likelihood = log_probabilities.gather(1, labels[:, None])[:, 0]
    return Outcome(confidence, predicted == labels, likelihood, torch.isin(labels, hidden))


def cell(outcomes: list[Outcome], hidden: bool) -> str:
    """Return accuracy in %, debiased ECE in % and NLL of images of hidden or of named classes."""
    chosen = [each.hidden == hidden for each in outcomes]
    values: list[npt.NDArray[np.float64]] = []
    for name in ("confidence", "correct", "log_likelihood"):
        parts = [getattr(each, name)[rows].double() for each, rows in zip(outcomes, chosen, strict=True)]
        values.append(torch.cat(parts).numpy())
    confidence, correct, likelihood = values
    error = debiased_ece(confidence, correct.astype(bool))
    return f"{100 * correct.mean():.1f}, {100 * error:.1f}, {-likelihood.mean():.3f}"


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="gda", help="prototypes, tip-adapter or gda (default: %(default)s)")
    kind = parser.parse_args().kind
    torch.set_num_threads(1)
    clf = load("pocket", device="cpu")
    benches = [load_bench(clf, name) for name in SETS]
    rules = ("all named", "scale · cosine", kind)
    print("Accuracy %, debiased ECE %, NLL on images of named classes | of hidden classes\n")
    titles = ["hidden", "examples"]
    for rule in rules:
        titles += [f"{rule}: named", f"{rule}: hidden"]
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for hidden in HIDDEN:
        for shots in SHOTS:
            outcomes: dict[str, list[Outcome]] = {rule: [] for rule in rules}
            for bench in benches:
                for rule, result in predictions(bench, hidden, shots, kind):
                    outcomes[rule].append(result)
            cells = []
            for rule in rules:
                cells += [cell(outcomes[rule], hidden=False), cell(outcomes[rule], hidden=True)]
            print(f"| {hidden} of {CLASSES} | {shots} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
