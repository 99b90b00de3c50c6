"""Streams of 2024 to 2026 the literal way: dense matrices, lists, loops. See :mod:`oracles.methods.streams`."""

from __future__ import annotations

import math

import numpy as np
from oracles.methods.streams import Array, _Stream, entropy, softmax, unit


def kubokawa_srivastava(rows: Array) -> Array:
    n, width = rows.shape
    covariance = np.cov(rows.T) if n > 1 else np.eye(width)
    return width * np.linalg.pinv((n - 1) * covariance + np.trace(covariance) * np.eye(width))


class Dota(_Stream):
    def __init__(self, texts: Array, scale: float, *, eta: float, rho: float, epsilon: float, mean: bool) -> None:
        super().__init__(texts, scale, mean=mean)
        self.eta, self.rho, self.epsilon = eta, rho, epsilon
        width = texts.shape[1]
        self.mu = [np.full(width, 0.001) for _ in texts]
        self.sigma = [0.002 * np.eye(width) for _ in texts]
        self.count = [1.0 for _ in texts]
        self.precision = np.eye(width) / 0.002

    def __call__(self, views: Array) -> Array:
        logits = self.logits(views)
        chosen = self.selected(logits) if self.mean else [0]
        f, row, _, _ = self.look(views, logits, self.mean)
        weight = min(self.rho * float(np.mean(self.count)) / len(chosen), self.eta)
        found = row + weight * np.array([(f - m / 2) @ self.precision @ m for m in self.mu])
        p = [softmax(logits[i]) for i in chosen]
        for k in range(self.classes):
            total = sum(q[k] for q in p)
            away = [views[i] - self.mu[k] for i in chosen]
            outer = sum(q[k] * np.outer(d, d) for q, d in zip(p, away, strict=True))
            mean = sum(q[k] * views[i] for q, i in zip(p, chosen, strict=True))
            self.sigma[k] = (self.count[k] * self.sigma[k] + outer) / (self.count[k] + total)
            self.mu[k] = (self.count[k] * self.mu[k] + mean) / (self.count[k] + total)
            self.count[k] += total
        width = len(f)
        shrunk = (1 - self.epsilon) * np.mean(self.sigma, axis=0) + self.epsilon * np.eye(width)
        self.precision = np.linalg.inv(shrunk)
        return found


class Oga(_Stream):
    def __init__(self, texts: Array, scale: float, *, capacity: int, released: bool) -> None:
        super().__init__(texts, scale)
        self.capacity, self.released = capacity, released
        self.slots: list[list[tuple[float, Array | None]]] = [[(math.log(len(texts)), None)] * capacity for _ in texts]
        self.mu, self.precision = texts.copy(), texts.shape[1] * np.eye(texts.shape[1])

    def __call__(self, views: Array) -> Array:
        f, p = views[0], softmax(self.logits(views)[0])
        h = -sum(q * math.log(q + 1e-6) for q in p)
        slots = self.slots[int(p.argmax())]
        if h < max(each[0] for each in slots):
            worst = [each[0] for each in slots].index(max(each[0] for each in slots))
            slots[worst] = (h, f)
            stored = [[g for _, g in own if g is not None] for own in self.slots]
            for c, own in enumerate(stored):
                if len(own) >= 2:
                    self.mu[c] = sum(own) / (self.capacity if self.released else len(own))
            if max(map(len, stored)) > 2:
                rows = np.array([g - self.mu[c] for c, own in enumerate(stored) for g in own])
                many = len(rows) > 4 * len(f)
                self.precision = np.linalg.pinv(np.cov(rows.T)) if many else kubokawa_srivastava(rows)
        a = np.array(
            [f @ self.precision @ m - m @ self.precision @ m / 2 - f @ self.precision @ f / 2 for m in self.mu]
        )
        q = p * softmax(0.05 * a)
        return np.log(q / q.sum())


class AdaptGda(_Stream):
    def __init__(self, texts: Array, scale: float, *, capacity: int, weight: float, released: bool, mean: bool) -> None:
        super().__init__(texts, scale, mean=mean)
        self.capacity, self.a, self.released = capacity, weight, released
        self.bank: list[list[tuple[float, Array, Array]]] = [[] for _ in texts]
        self.mu = texts.copy()

    def __call__(self, views: Array) -> Array:
        f, row, p, h = self.look(views, self.logits(views), self.mean)
        k = int(row.argmax())
        own = self.bank[k]
        stored = len(own) < self.capacity
        if not stored:
            worst = max(range(len(own)), key=lambda j: own[j][0])
            stored = h < own[worst][0]
            if stored:
                del own[worst]
        if stored:
            own.append((h, f, p))
            top, total = sum(q[k] * g for _, g, q in own), sum(q[k] for _, _, q in own)
            if self.released:
                top, total = top + p[k] * f, total + p[k]
            self.mu[k] = 0.9 * top / total + 0.1 * self.texts[k]
            rows = np.array([g - self.mu[c] for c, each in enumerate(self.bank) for _, g, _ in each])
            self.precision = kubokawa_srivastava(rows)
            self.last = f
        prior = -math.log(self.classes)
        scores = np.array([f @ self.precision @ m + prior - m @ self.precision @ m / 2 for m in self.mu])
        r = scores - scores.max()
        r = r - math.log(np.exp(r).sum())
        near, entries = self.last if self.released else f, sum(map(len, self.bank))
        for c, each in enumerate(self.bank):
            r[c] += self.a / (2 * entries) * sum(float(near @ g) * q[c] for _, g, q in each)
        r = r - r.max()
        return row * np.exp(r / self.a) if self.released else row + r / self.a


class OnZeta(_Stream):
    def __init__(self, texts: Array, scale: float, *, length: int, temperature: float, beta: float = 0.8) -> None:
        super().__init__(texts, scale)
        self.length, self.temperature, self.beta = length, temperature, beta
        self.rho, self.w, self.i = np.zeros(len(texts)), texts.copy(), 1

    def __call__(self, views: Array) -> Array:
        f = views[0]
        t = softmax(self.logits(views)[0]) * np.exp(self.rho)
        t /= t.sum()
        v = softmax(self.w @ f / self.temperature)
        b = self.beta * math.sqrt(self.i / self.length)
        self.rho = np.maximum(self.rho - 20 / math.sqrt(self.i) * (t - 1 / self.classes), 0)
        for c in range(self.classes):
            self.w[c] = unit(self.w[c] - 0.5 / (math.sqrt(self.i) * self.temperature) * (v[c] - t[c]) * f)
        self.i += 1
        return np.log(b * v + (1 - b) * t)


class Pta(_Stream):
    def __init__(self, texts: Array, scale: float, *, released: bool, mean: bool) -> None:
        super().__init__(texts, scale, mean=mean)
        self.released, self.u, self.r = released, np.zeros_like(texts), texts.copy()

    def __call__(self, views: Array) -> Array:
        f, row, _, _ = self.look(views, self.logits(views), self.mean)
        p = softmax(row)
        for c in range(self.classes):
            if p[c] >= 0.1:
                g = 1 - math.exp(-p[c] / 20)
                self.u[c] = (1 - g) * self.u[c] + g * f
        start = self.r if self.released else self.texts
        self.r = np.array([unit(0.01 * e + 0.99 * u) for e, u in zip(start, self.u, strict=True)])
        return row + self.scale * self.r @ f


class Lsa(_Stream):
    def __init__(self, texts: Array, scale: float, *, length: int, passes: int, printed: bool) -> None:
        super().__init__(texts, scale)
        self.length, self.passes, self.printed = length, passes, printed
        self.seen: list[Array] = []

    def __call__(self, views: Array) -> Array:
        p = softmax(self.logits(views)[0])
        self.seen.append(p)
        weight = 0.9 * len(self.seen) / self.length
        self.pi = np.full(self.classes, 1 / self.classes)
        for _ in range(self.passes + 1):
            g = [self.pi * q / (self.pi @ q) for q in self.seen]
            self.pi = weight * sum(g) / (self.length if self.printed else len(g)) + (1 - weight) / self.classes
        return np.log(p / self.pi / (p / self.pi).sum())


class LabelPrior(_Stream):
    def __init__(self, texts: Array, scale: float, *, weight: float) -> None:
        super().__init__(texts, scale)
        self.pi, self.m = np.full(len(texts), 1 / len(texts)), weight

    def __call__(self, views: Array) -> Array:
        q = softmax(self.logits(views)[0]) * self.pi
        q /= q.sum()
        self.pi, self.m = (self.m * self.pi + q) / (self.m + 1), self.m + 1
        return np.log(q)


class Ecalp(_Stream):
    """Everything from the start for each image, with dense matrices."""

    def __init__(self, texts: Array, scale: float, *, k_text: int, k_image: int) -> None:
        super().__init__(texts, scale)
        self.k_text, self.k_image = k_text, k_image
        self.images: list[Array] = []
        self.memory: list[tuple[int, float]] = []
        variance = texts.var(axis=0, ddof=1)
        self.w = variance / np.linalg.norm(variance)

    def __call__(self, views: Array) -> Array:
        self.images.append(views[0])
        nodes = [*self.images, views[0]]
        n, classes = len(nodes), self.classes
        cosines = np.zeros((n, n))
        for a in range(n):
            for b in range(n):
                cosines[a, b] = unit(self.w * nodes[min(a, b)]) @ unit(nodes[max(a, b)])
        edges = np.zeros((classes + n, classes + n))
        for a in range(n):
            # rounding must not decide between an image and its copy
            for b in sorted(range(n), key=lambda b: (-round(cosines[a, b], 13), b))[: self.k_image]:
                edges[classes + a, classes + b] = max(cosines[a, b], 0) ** 10
            of_texts = self.texts @ nodes[a]
            for c in sorted(range(classes), key=lambda c: -of_texts[c])[: self.k_text]:
                edges[classes + a, c] = max(of_texts[c], 0) ** 10
        edges = edges + edges.T
        roots = np.sqrt(edges.sum(axis=1)) + 1e-6
        edges = edges / roots[:, None] / roots[None]
        y = np.zeros((classes + n, classes))
        y[:classes] = np.eye(classes)
        for i, (label, score) in enumerate(self.memory):
            y[classes + i, label] = 0.2 * score
        for _ in range(3):
            y[classes:] = (edges @ y)[classes:]
        self.scores = y[-1]
        self.memory = [(int(row.argmax()), float(row.max())) for row in y[classes:-1]]
        return np.log(np.maximum(self.scores / self.scores.sum(), np.finfo(float).tiny))


__all__ = ["AdaptGda", "Array", "Dota", "Ecalp", "LabelPrior", "Lsa", "Oga", "OnZeta", "Pta", "entropy", "softmax"]
