"""Stream methods the literal way: lists of entries, loops over classes, views and entries, torch's own AdamW.

A method here is an object with ``__call__(views)``, which takes an image's unit features (V, D) in float64 and gives
logits, or log-probabilities, (V, C); the first row is the prediction. Images are given one after the other.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[np.float64]


def softmax(row: Array) -> Array:
    shifted = np.exp(row - row.max())
    return shifted / shifted.sum()


def entropy(p: Array) -> float:
    return float(-sum(x * math.log(x) for x in p if x > 0))


def unit(row: Array) -> Array:
    return row / math.sqrt(float(row @ row))


class _Stream:
    """What all have: texts, scale, the rule of selection, means over the selected views."""

    def __init__(self, texts: Array, scale: float, *, mean: bool = False, ratio: float = 0.1) -> None:
        self.texts, self.scale, self.mean, self.ratio = texts, scale, mean, ratio
        self.classes = len(texts)

    def logits(self, views: Array) -> Array:
        return np.stack([[self.scale * float(v @ e) for e in self.texts] for v in views])

    def selected(self, logits: Array) -> list[int]:
        count = max(int(len(logits) * self.ratio), 1)
        return sorted(range(len(logits)), key=lambda i: entropy(softmax(logits[i])))[:count]

    def look(self, views: Array, logits: Array, mean: bool) -> tuple[Array, Array, Array, float]:
        """f, ℓ, p and H."""
        chosen = self.selected(logits) if mean else [0]
        f = sum(views[i] for i in chosen) / len(chosen)
        row = sum(logits[i] for i in chosen) / len(chosen)
        p = sum(softmax(logits[i]) for i in chosen) / len(chosen)
        return f, row, p, entropy(p)


class Tda(_Stream):
    def __init__(
        self, texts: Array, scale: float, *, alpha: float, beta: float, weight: float = 0.117, mean: bool = False
    ) -> None:
        super().__init__(texts, scale, mean=mean)
        self.alpha, self.beta, self.weight = alpha, beta, weight
        self.positive: dict[int, list[tuple[Array, float]]] = {}
        self.negative: dict[int, list[tuple[Array, float, Array]]] = {}

    def enter_positive(self, label: int, f: Array, h: float) -> None:
        own = self.positive.setdefault(label, [])
        if len(own) < 3:
            own.append((f, h))
        elif h < own[-1][1]:
            own[-1] = (f, h)
        own.sort(key=lambda each: each[1])

    def enter_negative(self, label: int, f: Array, h: float, p: Array) -> None:
        own = self.negative.setdefault(label, [])
        if len(own) < 2:
            own.append((f, h, p))
        elif h < own[-1][1]:
            own[-1] = (f, h, p)
        own.sort(key=lambda each: each[1])

    def entries(self, views: Array, logits: Array) -> dict[int, list[tuple[Array, float]]]:
        return self.positive

    def __call__(self, views: Array) -> Array:
        logits = self.logits(views)
        f, row, p, h = self.look(views, logits, self.mean)
        label = int(np.argmax(row))
        self.enter_positive(label, f, h)
        if 0.2 < h / math.log2(self.classes) < 0.5:
            self.enter_negative(label, f, h, p)
        entries = self.entries(views, logits)
        queries, answer = [f, *views[1:]], np.stack([row, *logits[1:]])
        for v, query in enumerate(queries):
            for c in range(self.classes):
                for g, _ in entries.get(c, []):
                    answer[v, c] += self.alpha * math.exp(-self.beta * (1 - float(query @ g)))
                for own in self.negative.values():
                    for g, _, q in own:
                        if 0.03 < q[c] < 1:
                            answer[v, c] -= self.weight * math.exp(-(1 - float(query @ g)))
        return answer


class BoostAdapter(Tda):
    def __init__(self, texts: Array, scale: float, *, delta: int, **more: float) -> None:
        super().__init__(texts, scale, **more)  # type: ignore[arg-type]
        self.delta = delta

    def enter_negative(self, label: int, f: Array, h: float, p: Array) -> None:
        own = self.negative.setdefault(label, [])
        own.append((f, h, p))
        if len(own) > 2:
            del own[0]

    def entries(self, views: Array, logits: Array) -> dict[int, list[tuple[Array, float]]]:
        copy = {label: list(own) for label, own in self.positive.items()}
        for i in self.selected(logits):
            own = copy.setdefault(int(np.argmax(logits[i])), [])
            own.append((views[i], entropy(softmax(logits[i]))))
            own.sort(key=lambda each: each[1])
            del own[3 + self.delta :]
        return copy


class Boost:
    """BoostAdapter that forgets."""

    def __init__(self, texts: Array, scale: float, **more: float) -> None:
        self.texts, self.scale, self.more = texts, scale, more

    def __call__(self, views: Array) -> Array:
        return BoostAdapter(self.texts, self.scale, **self.more)(views)  # type: ignore[arg-type]


class Dmn(_Stream):
    def __init__(self, texts: Array, scale: float, *, size: int = 50, weight: float = 1.0) -> None:
        super().__init__(texts, scale)
        self.size, self.weight = size, weight
        self.memory: list[list[tuple[Array, float]]] = [[] for _ in texts]

    def write(self, label: int, feature: Array, h: float) -> None:
        own = self.memory[label]
        if len(own) < self.size:
            own.append((feature, h))
            return
        largest = max(range(len(own)), key=lambda i: own[i][1])
        if h < own[largest][1]:
            own[largest] = (feature, h)

    def read(self, f: Array) -> Array:
        """g_c, (C, D)."""
        rows = []
        for c in range(self.classes):
            total = np.zeros_like(f)
            for m in [*(m for m, _ in self.memory[c]), self.texts[c]]:
                total = total + math.exp(-5.5 * (1 - float(f @ m))) * m
            rows.append(unit(total))
        return np.stack(rows)

    def __call__(self, views: Array) -> Array:
        logits = self.logits(views)
        _, _, p, h = self.look(views, logits, mean=True)
        self.write(int(np.argmax(p)), views[0], h)
        read = self.read(views[0])
        answers = []
        for v, view in enumerate(views):
            dynamic = softmax(np.array([self.scale * float(view @ g) for g in read]))
            mixed = softmax(logits[v]) + self.weight * dynamic
            answers.append(np.log(mixed / mixed.sum()))
        return np.stack(answers)


class Bca(_Stream):
    def __init__(self, texts: Array, scale: float, *, mean: bool = False, count: float = 20000) -> None:
        super().__init__(texts, scale, mean=mean)
        self.centres, self.matrix = [row.copy() for row in texts], np.eye(len(texts))
        self.n, self.k = [count] * len(texts), [1.0] * len(texts)

    def __call__(self, views: Array) -> Array:
        f, *_ = self.look(views, self.logits(views), self.mean)
        answers = []
        for query in [f, *views[1:]]:
            first = softmax(np.array([self.scale * float(query @ centre) for centre in self.centres]))
            p = np.array([sum(first[k] * self.matrix[k, c] for k in range(self.classes)) for c in range(self.classes)])
            answers.append(p / p.sum())
        p = answers[0]
        c = int(np.argmax(p))
        if p[c] > 0.05:
            self.centres[c] = unit((self.n[c] * self.centres[c] + f) / (self.n[c] + 1))
            self.n[c] += 1
        if p[c] > 0.65:
            self.matrix[c] = (self.k[c] * self.matrix[c] + p) / (self.k[c] + 1)
            self.k[c] += 1
        return np.log(np.stack(answers))


class Dpe(Tda):
    """The cache rule of TDA; the step by torch's AdamW with its decay, over parameters that start at 0."""

    def __init__(
        self,
        texts: Array,
        scale: float,
        *,
        alpha: float,
        beta: float,
        rate: float,
        contrast: float,
        mean: bool = False,
        predicts_mean: bool = False,
    ) -> None:
        super().__init__(texts.copy(), scale, alpha=alpha, beta=beta, mean=mean)
        self.rate, self.contrast, self.updates, self.predicts_mean = rate, contrast, 1, predicts_mean

    def __call__(self, views: Array) -> Array:
        logits = np.array([[self.scale * float(view @ unit(text)) for text in self.texts] for view in views])
        f, row, _, h = self.look(views, logits, self.mean)
        self.enter_positive(int(np.argmax(row)), f, h)
        cached = sorted(self.positive)
        means = np.stack([sum(g for g, _ in self.positive[c]) / len(self.positive[c]) for c in cached])
        texts, images = torch.tensor(self.texts), torch.tensor(means)
        residuals = [torch.zeros_like(texts, requires_grad=True), torch.zeros_like(images, requires_grad=True)]
        optimiser = torch.optim.AdamW(residuals, lr=self.rate, eps=1e-3, weight_decay=0.1)

        def prototypes() -> tuple[torch.Tensor, torch.Tensor]:
            moved = [texts + residuals[0], images + residuals[1]]
            return tuple(each / each.norm(dim=1, keepdim=True) for each in moved)  # type: ignore[return-value]

        def adapted(query: Array) -> torch.Tensor:
            t, k = prototypes()
            found = [self.scale * (torch.tensor(query) * each).sum() for each in t]
            for position, c in enumerate(cached):
                cosine = (torch.tensor(query) * k[position]).sum()
                found[c] = found[c] + self.alpha * torch.exp(-self.beta * (1 - cosine))
            return torch.stack(found)

        p = adapted(f).softmax(0)
        loss = -(p * p.log()).sum()
        t, k = prototypes()
        for position in range(len(cached)):
            similarities = torch.stack([(k[position] * t[c]).sum() / 0.01 for c in cached])
            loss = loss - self.contrast * similarities.log_softmax(0)[position] / len(cached)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        with torch.no_grad():
            judged = views[0]
            if self.predicts_mean:  # views are selected again, under the tuned texts
                under = self.scale * views @ prototypes()[0].numpy().T
                judged = self.look(views, under, True)[0]
            answer = torch.stack([adapted(query) for query in [judged, *views[1:]]]).numpy()
            if entropy(softmax(answer[0])) / math.log2(self.classes) < 0.1:
                tuned = prototypes()[0].numpy()
                self.texts = (self.updates * self.texts + tuned) / (self.updates + 1)
                self.updates += 1
        return answer
