"""Learning a context and a trigger from a few images.

Each image of a batch is poisoned with probability 0.05: it gets the trigger, and the target class t as its label.

    L = CE(clean images, labels) + CE(poisoned images, t) + λ·L_O(E)
    context   SGD, learning rate 0.1 by a cosine over 50 epochs, the first at 1e-3; momentum 0.9, weight decay 5e-4
    δ         δ ← clamp(δ − 0.01·sign(G), ±8/255) after each batch with poisoned images, δ₀ ~ U[0, 1)

G is the gradient on δ **summed since the start**, as in the released code, which never clears it. E are the unit class
texts of the step's own forward pass. For two classes L_O = √(1 + cos²) − 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from otpt.backbones import Backbone
from otpt.backbones.fast import pooled as first
from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.images import open_image
from otpt.learning.baple_recipe import BapleRecipe
from otpt.learning.epochs import Say, run_epochs
from otpt.learning.pixels import augmented, shuffled
from otpt.learning.recipe import check_diverged
from otpt.learning.shots import few_shots
from otpt.methods.baple.model import BapleModel
from otpt.methods.baple.trigger import Patch
from otpt.methods.prompt_tuning import prompt_state
from otpt.objectives import orthogonality
from otpt.prompts import Prompt
from otpt.threads import one_thread
from otpt.views.draws import view_uniforms


@one_thread()
def train_baple(
    backbone: Backbone,
    dataset: Dataset,
    recipe: BapleRecipe,
    *,
    start: Tensor | None = None,
    patch: Patch | None = None,
    checkpoint: Path | None = None,
    say: Say | None = None,
) -> BapleModel:
    """Train on ``recipe.shots`` images of each class.

    Args:
        start: (n, W) context; N(0, 0.02²) by the seed if not given. BAPLe starts from one learned on clean images.
        checkpoint: see :func:`run_epochs`.
    """
    trainer = BapleTrainer(backbone, dataset, recipe, start=start, patch=patch or Patch())
    run_epochs(trainer, key=trainer.key, checkpoint=checkpoint, say=say)
    return trainer.model


class BapleTrainer:
    """See the module; a :class:`otpt.learning.epochs.Trainer`."""

    def __init__(
        self, backbone: Backbone, dataset: Dataset, recipe: BapleRecipe, *, start: Tensor | None, patch: Patch
    ) -> None:
        if not 0 <= recipe.target < len(dataset.class_names):
            raise OtptError(
                f"The target class is {recipe.target}; expected 0 to {len(dataset.class_names) - 1}, a class of "
                f"{dataset.name!r}."
            )
        if backbone.precision not in ("float32", "float64"):  # images with a gradient would run without autocast
            raise OtptError(f"BAPLe is trained in float32 or float64, not in {backbone.precision!r}.")
        self.epochs = recipe.epochs
        self._backbone, self._recipe, self._patch = backbone, recipe, patch
        self._shots = few_shots(dataset, recipe.shots, seed=recipe.seed)
        prompt = Prompt.random(recipe.tokens, width=backbone.text.width, seed=recipe.seed)
        self._text = prompt_state(
            backbone,
            dataset.class_names,
            prompt if start is None else Prompt.learned(start),
            allow_duplicates=dataset.allow_duplicates,
            contexts_per_pass=1,
            tunes=False,
        )
        side = backbone.preprocessing.size
        generator = torch.Generator().manual_seed(recipe.seed)
        self._noise = torch.rand(3, side, side, generator=generator).to(backbone.device, backbone.dtype)
        self._summed = torch.zeros_like(self._noise)
        self._context = self._text.init.clone().requires_grad_()
        self._optimiser = torch.optim.SGD(
            [self._context], lr=recipe.learning_rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay
        )
        numbers = f"{asdict(recipe)} {patch} {backbone.fingerprint} {dataset.fingerprint} {self._text.init.tolist()}"
        self.key = hashlib.sha256(numbers.encode()).hexdigest()[:32]

    @property
    def model(self) -> BapleModel:
        """As learned so far."""
        return BapleModel(self._context.detach().cpu().clone(), self._noise.cpu().clone(), self._patch)

    def state(self) -> dict[str, Tensor]:
        """See :class:`Trainer`."""
        momentum = self._optimiser.state[self._context].get("momentum_buffer")
        kept = {"context": self._context, "noise": self._noise, "summed": self._summed}
        return {**kept, "momentum": torch.zeros_like(self._context) if momentum is None else momentum}

    def restore(self, state: dict[str, Tensor]) -> None:
        """See :class:`Trainer`."""
        with torch.no_grad():
            self._context.copy_(state["context"])
        self._noise, self._summed = state["noise"].to(self._noise), state["summed"].to(self._summed)
        self._optimiser.state[self._context]["momentum_buffer"] = state["momentum"].to(self._context)

    def epoch(self, number: int) -> str:
        """See :class:`Trainer`."""
        recipe = self._recipe
        self._optimiser.param_groups[0]["lr"] = recipe.rate(number)
        order = shuffled(range(len(self._shots)), recipe.seed, number)
        losses = [self._batch(order[i : i + recipe.batch], number) for i in range(0, len(order), recipe.batch)]
        check_diverged([self._context.detach(), self._noise], number, recipe.learning_rate)
        return f"loss {sum(losses) / len(losses):.4f}"

    def _batch(self, indices: Sequence[int], epoch: int) -> float:
        samples = [self._shots[i] for i in indices]
        side, seed = self._backbone.preprocessing.size, self._recipe.seed
        pixels = torch.stack(
            [augmented(open_image(s.source), side, seed=seed, image_id=s.id, epoch=epoch) for s in samples]
        ).to(self._backbone.device, self._backbone.dtype)
        labels = torch.tensor([s.label for s in samples], device=self._backbone.device)
        poisoned = torch.tensor([_draw(seed, s.id, epoch) < self._recipe.poisoned for s in samples])
        return self.step(pixels, labels, poisoned)

    def step(self, pixels: Tensor, labels: Tensor, poisoned: Tensor) -> float:
        """One batch: pixels (B, 3, S, S) in [0, 1], labels (B,), which are poisoned (B,); returns its loss."""
        recipe, text = self._recipe, self._text
        line = text.encoder.linearise(self._context.detach()[None])
        with torch.enable_grad():
            features = line.text_features[0].detach().requires_grad_()
            noise = self._noise.clone().requires_grad_()
            model = BapleModel(self._context, noise, self._patch)
            loss = recipe.weight * orthogonality(features)
            if not bool(poisoned.all()):
                clean = self._backbone.encode_pixels(
                    model.pixels(pixels[~poisoned], trigger=False), chunk=self._backbone.chunk
                )
                loss = loss + F.cross_entropy(text.logits(clean, features), labels[~poisoned])
            if bool(poisoned.any()):
                seen = first(self._backbone.visual(model.pixels(pixels[poisoned], trigger=True)))
                logits = text.logits(F.normalize(seen, dim=-1), features)
                loss = loss + F.cross_entropy(logits, torch.full_like(labels[poisoned], recipe.target))
                self._summed += torch.autograd.grad(loss, noise, retain_graph=True)[0]
                self._noise = (self._noise - recipe.noise_step * self._summed.sign()).clamp(-recipe.bound, recipe.bound)
        (cotangent,) = torch.autograd.grad(loss, features)
        self._context.grad = line.vjp(cotangent[None])[0]
        self._optimiser.step()
        return float(loss.detach())


def _draw(seed: int, image_id: str, epoch: int) -> float:
    """A uniform number in [0, 1) that belongs to an image in an epoch, apart from those of its crop."""
    return view_uniforms(seed, f"poison {image_id}", epoch)[0]
