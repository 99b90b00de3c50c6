"""The episodic accuracy peers the literal way: view by view, in loops, with torch's AdamW and autograd.

Features (V, D) and texts (C, D) of norm one, logits = scale · features · textsᵀ. All give probabilities (C,) or text
features (C, D) in float64.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import torch
from torch import Tensor


def entropy(row: Tensor) -> float:
    return -sum(p * math.log(p) for p in row.softmax(0).tolist() if p > 0)


def by_entropy(logits: Tensor) -> list[int]:
    """Views, the most confident first."""
    return sorted(range(len(logits)), key=lambda i: entropy(logits[i]))


def literal_zero(logits: Tensor, scale: float, ratio: float = 0.3, temperature: float = 0.0) -> list[float]:
    order, count = by_entropy(logits), int(len(logits) * ratio)
    votes: Counter[int] = Counter()
    for i in order[:count]:
        row = logits[i].tolist()
        if temperature == 0:
            votes[row.index(max(row))] += 1
        else:
            powers = [math.exp((value - max(row)) / scale / temperature) for value in row]
            for c, power in enumerate(powers):
                votes[c] += power / sum(powers)  # type: ignore[assignment]
    most = max(votes.values())
    tied = [c for c in range(logits.shape[1]) if votes[c] == most]
    if len(tied) > 1:
        for i in order[count:]:
            label = int(logits[i].argmax())
            if label in tied:
                votes[label] += 1
                break
        else:
            following = logits[order[count]]
            votes[max(tied, key=lambda c: following[c].item())] += 1
    return [votes[c] / sum(votes.values()) for c in range(logits.shape[1])]


def literal_mta(features: Tensor, logits: Tensor, texts: Tensor, scale: float) -> Tensor:
    views, count = len(features), int(0.3 * (len(features) - 1))
    points, shares = features.numpy(), logits.softmax(1).numpy()
    squares = []
    for i in range(views):
        distances = sorted(float(((points[i] - points[j]) ** 2).sum()) for j in range(views) if j != i)
        squares.append(0.5 * sum(distances[:count]) / count)

    def kernel(i: int, centre: np.ndarray) -> float:
        return math.exp(-float(((points[i] - centre) ** 2).sum()) / (2 * squares[i]))

    centre, weights = points[0], np.full(views, 1 / views)
    for _ in range(5):
        near = [kernel(i, centre) for i in range(views)]
        for _ in range(5):
            exponents = np.array(
                [
                    (near[i] + 4 * sum(float(shares[i] @ shares[j]) * weights[j] for j in range(views))) / 0.2
                    for i in range(views)
                ]
            )
            powers = np.exp(exponents - exponents.max())
            before, weights = weights, powers / powers.sum()
            if np.linalg.norm(weights - before) < 1e-6:
                break
        for _ in range(5):
            own = [kernel(i, centre) * weights[i] for i in range(views)]
            mean = sum(own[i] * points[i] for i in range(views)) / sum(own)
            before, centre = centre, mean / np.linalg.norm(mean)
            if np.linalg.norm(centre - before) < 1e-6:
                break
    return (scale * texts @ torch.from_numpy(centre)).softmax(0)


def literal_shift(features: Tensor, texts: Tensor, scale: float, rate: float, kind: str) -> Tensor:
    """TPS ("own", "shared") and STS ("directions"), whose penalty on the shift is in the loss: E' (C, D)."""
    if kind == "own":
        parameter, shift = torch.zeros_like(texts), lambda z: z
    elif kind == "shared":
        parameter, shift = torch.zeros_like(texts[0]), lambda z: z.expand_as(texts)
    else:
        basis = literal_directions(texts)
        parameter, shift = torch.zeros_like(basis[0]), lambda z: (basis @ z).expand_as(texts)
    chosen = by_entropy(scale * features @ texts.T)[: int(len(features) * 0.1)]
    parameter = parameter.requires_grad_()
    optimiser = torch.optim.AdamW([parameter], lr=rate)
    moved = texts + shift(parameter)
    moved = moved / moved.norm(dim=1, keepdim=True)
    mean = sum((scale * moved @ features[i]).softmax(0) for i in chosen) / len(chosen)
    loss = -(mean * mean.log()).sum()
    if kind == "directions":
        loss = loss + 3.0 * (basis @ parameter).norm()
    loss.backward()
    optimiser.step()
    with torch.no_grad():
        moved = texts + shift(parameter)
        return moved / moved.norm(dim=1, keepdim=True)


def literal_directions(texts: Tensor) -> Tensor:
    """Leading right singular vectors as eigenvectors of EᵀE (or of EEᵀ where there are fewer classes): (D, k)."""
    gram = texts.numpy().T @ texts.numpy()
    squares, vectors = np.linalg.eigh(gram)
    classes, width = texts.shape
    rank = min(classes, width)
    sizes = np.sqrt(np.clip(squares[::-1][:rank], 0, None))
    beta = rank / max(classes, width)
    threshold = (0.56 * beta**3 - 0.95 * beta**2 + 1.82 * beta + 1.43) * float(np.median(sizes))
    count = max(sum(size > threshold for size in sizes), 1)
    return torch.from_numpy(vectors[:, ::-1][:, :count].copy())


def literal_reliability(features: Tensor, logits: Tensor) -> Tensor:
    scores = []
    for i in range(len(features)):
        cosines = sorted((float(features[i] @ features[j]) for j in range(len(features)) if j != i), reverse=True)[:20]
        scores.append(sum(cosines) / len(cosines))
    powers = [math.exp((score - max(scores)) / 0.01) for score in scores]
    return sum(power / sum(powers) * row for power, row in zip(powers, logits, strict=True)).softmax(0)


def literal_mean(
    what: str,
    features: Tensor,
    logits: Tensor,
    zero_shot: Tensor,
    texts: Tensor,
    scale: float,
    fraction: float = 1.0,
    clean: float = 0.0,
) -> Tensor:
    chosen = by_entropy(zero_shot)[: int(len(logits) * fraction)]

    def mixed(rows: Tensor) -> Tensor:
        return sum(rows[i] for i in chosen) / len(chosen) * (1 - clean) + clean * rows[0]

    if what == "mean-probability":
        return mixed(logits.softmax(1))
    if what == "mean-logit":
        return mixed(logits).softmax(0)
    mean = sum(features[i] for i in chosen)
    mean = (1 - clean) * mean / mean.norm() + clean * features[0]
    return (scale * texts @ (mean / mean.norm())).softmax(0)
