"""Test-time prompt tuning the literal way, one image at a time, as the papers' scripts proceed.

All 77 positions of every class through the model's own modules, all views through the image tower, the loss from
tensors with graph, torch's AdamW, the C×C×C Householder loss. Slow, and obviously right: the engine's oracle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from oracles.methods.householder import literal_householder
from oracles.methods.posthoc import literal_use_loss
from torch import Tensor

USE = "ensemble-cross-entropy"
VIEW_OBJECTIVES = {
    "entropy",
    "rescaled-entropy",
    "range-penalty",
    "pointwise-entropy",
    "weighted-entropy",
    "clip-reward",
    USE,
}


class LiteralTuner:
    """TPT, C-TPT, O-TPT, the Robust-adapt variants and the field's regularisers on an open_clip ``CLIP``.

    With ``attributes`` the names are those of texts, so many of each class in a row.
    """

    def __init__(
        self, model: Any, tokenizer: Any, names: Sequence[str], words: str = "a photo of a", *, attributes: int = 1
    ) -> None:
        self.model, self.attributes = model, attributes
        dtype = model.token_embedding.weight.dtype
        count = len(words.split(" "))
        self.ids = tokenizer([f"{words} {name}." for name in names])
        with torch.no_grad():
            self.embeddings = model.token_embedding(self.ids).to(dtype)
        self.count = count
        self.start = self.embeddings[0, 1 : 1 + count].clone()

    def text_features(self, context: Tensor) -> Tensor:
        """(n, W) → unit (C, D), all 77 positions."""
        model = self.model
        shared = context.expand(len(self.ids), -1, -1)
        x = torch.cat([self.embeddings[:, :1], shared, self.embeddings[:, 1 + self.count :]], dim=1)
        x = x + model.positional_embedding
        x = model.transformer(x, attn_mask=model.attn_mask)
        x = model.ln_final(x)
        x = x[torch.arange(len(x)), self.ids.argmax(dim=-1)] @ model.text_projection
        return x / x.norm(dim=-1, keepdim=True)

    def logits(self, images: Tensor, context: Tensor) -> Tensor:
        return self._of_classes(self.model.logit_scale.exp() * images @ self.text_features(context).t())

    def _of_classes(self, logits: Tensor) -> Tensor:
        """Logits of texts → log-probabilities of classes, each the sum over its texts; as they are if it has one."""
        if self.attributes == 1:
            return logits
        probabilities = logits.softmax(1)
        return torch.stack([part.sum(1) for part in probabilities.split(self.attributes, dim=1)], dim=1).log()

    def predict(
        self,
        pixels: Tensor,
        *,
        weights: dict[str, float],
        steps: int = 1,
        reference: str = "confident",
        two_step: bool = False,
        calibration: str = "none",
        temperature: float = 1.0,
        lr: float = 5e-3,
        weight_decay: float = 0.01,
        selection: str = "confident",
        settings: Mapping[str, float] | None = None,
    ) -> dict[str, Tensor]:
        """Probabilities, logits and tuned context of one image: pixels (V, 3, S, S), the clean view first."""
        with torch.no_grad():
            images = self.model.encode_image(pixels)
            images = images / images.norm(dim=-1, keepdim=True)
            needed = reference == "clean" or calibration == "sals"
            zero_shot = self.logits(images[:1], self.start)[0] if needed else None
        context = self.start.clone().requires_grad_()
        if weights:
            rules = {"lr": lr, "weight_decay": weight_decay, "selection": selection, "settings": settings or {}}
            self._tune(context, images, zero_shot, weights, steps, reference, two_step, **rules)
        with torch.no_grad():
            clean = self.model.encode_image(pixels[:1])
            logits = self.logits(clean / clean.norm(dim=-1, keepdim=True), context)[0]
        final = logits / temperature
        if calibration == "sals":
            spread = (logits - logits.min()) / (logits.max() - logits.min())
            final = spread * (zero_shot.max() - zero_shot.min()) + zero_shot.min()
        return {"probabilities": final.softmax(-1), "logits": logits, "context": context.detach()}

    def _tune(
        self, context, images, zero_shot, weights, steps, reference, two_step, *, lr, weight_decay, selection, settings
    ) -> None:
        optimiser = torch.optim.AdamW([context], lr=lr, weight_decay=weight_decay)
        view = {k: w for k, w in weights.items() if k in VIEW_OBJECTIVES}
        text = {k: w for k, w in weights.items() if k not in view}
        chosen = bounds = at_start = None
        for _ in range(steps):
            for part in [view, text] if two_step else [weights]:
                features = self.text_features(context)
                logits = self._of_classes(self.model.logit_scale.exp() * images @ features.t())
                if chosen is None:
                    entropies = -(logits.softmax(1) * logits.log_softmax(1)).sum(1)
                    chosen = torch.argsort(entropies)[: int(len(images) * 0.1)]
                    if selection == "strong":
                        strong = 1 + torch.argsort(entropies[1:])[: int((len(images) - 1) * 0.1)]
                        chosen = torch.tensor([0, *strong.tolist()])
                    at_start = logits.detach()
                    cosines = (images @ features.t()).detach()[chosen]
                selected = logits[chosen]
                row = selected[0] if reference == "confident" else zero_shot
                if bounds is None or "range-penalty" in part:  # rescaling keeps the first range, the penalty does not
                    bounds = (row.min(), row.max())
                own = {name: w for name, w in part.items() if name != USE}
                loss = sum(
                    w * self._objective(name, selected, features, bounds, settings, cosines) for name, w in own.items()
                )
                if USE in part:
                    loss = loss + part[USE] * literal_use_loss(selected, at_start, chosen[1:].tolist())
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                bounds = (bounds[0].detach(), bounds[1].detach())

    def _objective(
        self,
        name: str,
        selected: Tensor,
        features: Tensor,
        bounds: tuple[Tensor, Tensor],
        settings: Mapping[str, float],
        cosines: Tensor | None = None,
    ) -> Tensor:
        lo, hi = bounds
        if name == "pointwise-entropy":
            return sum(-(row.softmax(0) * row.softmax(0).log()).sum() for row in selected) / len(selected)
        if name == "weighted-entropy":
            own = [-(row.softmax(0) * row.softmax(0).log()).sum() for row in selected]
            return sum(math.exp(0.4 - float(each.detach())) * each for each in own) / len(own)
        if name == "clip-reward":
            return literal_reward(selected, cosines)
        if name in {"entropy", "rescaled-entropy"}:
            if name == "rescaled-entropy":
                least, most = selected.min(1, keepdim=True)[0], selected.max(1, keepdim=True)[0]
                selected = (selected - least) / (most - least) * (hi - lo) + lo
            mean = selected.softmax(1).mean(0)
            return -(mean * mean.log()).sum()
        if name == "range-penalty":
            return torch.relu(selected - hi).mean() + torch.relu(lo - selected).mean()
        if name == "dispersion":
            return -(features - features.mean(0)).norm(dim=1).mean()
        if name == "orthogonality":
            return literal_householder(features)
        readings = ("orthogonality-rows", "orthogonality-frobenius", "orthogonality-squared", "orthogonality-spectral")
        if name not in readings:
            return self._of_the_field(name, features, settings)
        off = features @ features.t() - torch.eye(len(features), dtype=features.dtype)
        if name == "orthogonality-rows":
            return off.norm(dim=1).mean()
        if name == "orthogonality-spectral":
            return torch.linalg.svd(off)[1][0] ** 2
        return off.norm() if name == "orthogonality-frobenius" else off.square().sum()

    def _of_the_field(self, name: str, features: Tensor, settings: Mapping[str, float]) -> Tensor:
        """Regularisers of the calibration peers, pair by pair and class by class."""
        classes = range(len(features))
        if name in {"nearest-angle", "nearest-angle-narrowed"}:
            angles = [min(self._angle(features[i] @ features[j]) for j in classes if j != i) for i in classes]
            mean = torch.stack(angles).mean()
            return -mean if name == "nearest-angle" else mean
        if name == "huber":
            delta = settings["huber_delta"]
            pairs = [features[i] @ features[j] for i in classes for j in classes if i < j]
            losses = [s * s / 2 if s <= delta else delta * s - delta**2 / 2 for s in pairs]
            return 2 * sum(losses) / (len(classes) * (len(classes) - 1))
        if name == "coordinates":
            p = features.softmax(1)
            if settings["reverse_kl"]:
                return (torch.full_like(p, 1 / p.shape[1]) * (1 / (p.shape[1] * p)).log()).sum(1).mean()
            return (p * (p * p.shape[1]).log()).sum(1).mean()
        if name == "moments":
            with torch.no_grad():
                start = self.text_features(self.start)
            means = (features.mean(0) - start.mean(0)).square().sum()
            covariances = torch.cov(features.t(), correction=0) - torch.cov(start.t(), correction=0)
            return means + covariances.square().sum()
        groups = features.split(self.attributes)
        centres = torch.stack([group.sum(0) / self.attributes for group in groups])
        if name == "attribute-inter":
            return -torch.stack([(centre - centres.mean(0)).norm() for centre in centres]).mean()
        assert name == "attribute-intra", name
        distances = [(text - centre).norm() for group, centre in zip(groups, centres, strict=True) for text in group]
        return torch.stack(distances).mean()

    @staticmethod
    def _angle(cosine: Tensor) -> Tensor:
        limit = cosine.new_tensor(math.acos(0.99999))
        return cosine.arccos() if cosine.detach().abs() < 0.99999 else limit if cosine > 0 else math.pi - limit


def literal_reward(selected: Tensor, cosines: Tensor) -> Tensor:
    """RLCF's loss view by view: three likeliest classes, 2.5·max(cos, 0) less its mean, times the cross-entropy."""
    terms = []
    for row, cosine in zip(selected, cosines, strict=True):
        classes = sorted(range(len(row)), key=lambda c, row=row: -row[c].item())[:3]
        scores = [2.5 * max(cosine[c].item(), 0.0) for c in classes]
        for c, score in zip(classes, scores, strict=True):
            entropy = torch.nn.functional.cross_entropy(row[None], torch.tensor([c]))
            terms.append((score - sum(scores) / len(scores)) * entropy)
    return sum(terms) / len(terms)
