"""Training of BAPLe's context and trigger, and of FPT's side network.

BAPLe: each image of a batch is poisoned with probability 0.05: it gets the trigger, and the target class t as its
label.

    L = CE(clean images, labels) + CE(poisoned images, t) + λ·L_O(E)
    context   SGD, learning rate 0.1 by a cosine over 50 epochs, the first at 1e-3; momentum 0.9, weight decay 5e-4
    δ         δ ← clamp(δ − 0.01·sign(G), ±8/255) after each batch with poisoned images, δ₀ ~ U[0, 1)

G is the gradient on δ **summed since the start**, as in the released code, which never clears it. E are the unit class
texts of the step's own forward pass. For two classes L_O = √(1 + cos²) − 1.

FPT:

    L = CE(logits, labels) + λ·L_O(rows)      rows: of the classifier (default), or the prompts of each block
    AdamW, learning rate 1e-4 by a cosine over 20 epochs, weight decay 0.1, gradient norm cut at 1, batches of 16

The epoch with the best AUC on validation images is taken; without such images, the last one.
"""

from __future__ import annotations

import hashlib
import io
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageEnhance
from torch import Tensor, nn
from torch.nn import functional as F

from otpt.backbones import Backbone
from otpt.backbones.fast import pooled
from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.files import write_atomically
from otpt.images import open_image, open_with_digest
from otpt.learning.training import check_diverged, check_numbers, few_shots
from otpt.medical.baple import BapleModel, Patch
from otpt.medical.fpt import FptNetwork, side_pixels, sizes_for, stacked
from otpt.medical.frozen_vit import ISIC_MEAN, ISIC_STD, FrozenViT, KeysAndValues
from otpt.methods.prompt_tuning import prompt_state
from otpt.metrics import misclassification_auroc
from otpt.objectives import orthogonality
from otpt.prompts import Linearisation, Prompt
from otpt.threads import in_threads, one_thread
from otpt.views import normalised
from otpt.views.draws import draw_view, view_uniforms

CROP_SCALE = (0.8, 1.0)
CROP_RATIO = (0.7, 1.3)
JITTER = 0.2

Say = Callable[[str], None]


@dataclass(frozen=True)
class BapleRecipe:
    """``weight`` is λ of the orthogonality term: 0 for BAPLe itself."""

    target: int
    weight: float = 0.0
    shots: int = 32
    seed: int = 1
    tokens: int = 16
    poisoned: float = 0.05
    epochs: int = 50
    batch: int = 16
    learning_rate: float = 0.1
    first_learning_rate: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 5e-4
    bound: float = 8 / 255
    noise_step: float = 0.01

    def __post_init__(self) -> None:
        counts = {"shots": self.shots, "tokens": self.tokens, "epochs": self.epochs, "images in a batch": self.batch}
        check_numbers(counts, seed=self.seed, learning_rate=self.learning_rate)
        if not 0 < self.poisoned < 1:
            raise OtptError(f"The fraction of poisoned images is {self.poisoned}; expected a number between 0 and 1.")

    def rate(self, epoch: int) -> float:
        """The context's learning rate in an epoch: constant in the first, then a cosine."""
        if epoch == 0:
            return self.first_learning_rate
        return self.learning_rate * (1 + math.cos(math.pi * (epoch - 1) / self.epochs)) / 2


@dataclass(frozen=True)
class FptRecipe:
    """``weight`` is λ of the orthogonality term (0 for FPT itself), ``rows`` what it applies to."""

    weight: float = 0.0
    rows: str = "classifier"
    variant: str = "fpt"
    seed: int = 1
    epochs: int = 20
    batch: int = 16
    learning_rate: float = 1e-4
    weight_decay: float = 0.1
    clip: float = 1.0

    def __post_init__(self) -> None:
        counts = {"epochs": self.epochs, "images in a batch": self.batch}
        check_numbers(counts, seed=self.seed, learning_rate=self.learning_rate)

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch: a cosine, no warm-up."""
        return self.learning_rate * (1 + math.cos(math.pi * epoch / self.epochs)) / 2


class Trainer:
    """Epochs over the images of a data set; what an epoch does depends on its number and :meth:`state` alone.

    Args:
        module: all that is learned.
        facts: what else decides the training; a checkpoint of another one is not used.
    """

    def __init__(
        self,
        recipe: BapleRecipe | FptRecipe,
        images: Dataset,
        module: nn.Module,
        optimiser: torch.optim.Optimizer,
        facts: Sequence[object],
    ) -> None:
        self.images, self.module, self.optimiser = images, module, optimiser
        self._epochs = recipe
        self._key = hashlib.sha256(f"{recipe} {images.fingerprint} {facts}".encode()).hexdigest()[:32]

    def batch(self, indices: Sequence[int], epoch: int) -> float:
        """One step on these images; returns its loss."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """All that the next epoch starts from."""
        return {"module": self.module.state_dict(), "optimiser": self.optimiser.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a state."""
        self.module.load_state_dict(state["module"])
        self.optimiser.load_state_dict(state["optimiser"])

    def epoch(self, number: int) -> str:
        """Run epoch ``number`` = 0, 1, …; returns what to report."""
        recipe = self._epochs
        self.optimiser.param_groups[0]["lr"] = recipe.rate(number)
        order = random.Random(f"{recipe.seed} {number}").sample(range(len(self.images)), len(self.images))
        with torch.random.fork_rng(devices=[]):  # dropout
            torch.manual_seed(1000 * recipe.seed + number)
            losses = [self.batch(order[i : i + recipe.batch], number) for i in range(0, len(order), recipe.batch)]
        check_diverged(self.module.state_dict().values(), number, recipe.learning_rate)
        return f"loss {sum(losses) / len(losses):.4f}"

    def run(self, checkpoint: Path | None, say: Say | None) -> None:
        """Run all epochs.

        Args:
            checkpoint: where the state is stored after each epoch; deleted at the end.
            say: called with one line per epoch.
        """
        report: Say = say or (lambda line: None)
        first = 0
        if checkpoint is not None and checkpoint.is_file():
            try:
                stored = torch.load(checkpoint, weights_only=True)
            except Exception:  # damaged: torch raises nearly anything
                stored = {}
            if stored.get("key") == self._key:
                self.restore(stored["state"])
                first = stored["epoch"] + 1
                report(f"resuming after epoch {first} of {self._epochs.epochs}")
        for number in range(first, self._epochs.epochs):
            words = self.epoch(number)
            if checkpoint is not None:
                buffer = io.BytesIO()
                torch.save({"key": self._key, "epoch": number, "state": self.state()}, buffer)
                write_atomically(checkpoint, buffer.getvalue())
            report(f"epoch {number + 1} of {self._epochs.epochs}: {words}")
        if checkpoint is not None:
            checkpoint.unlink(missing_ok=True)


def augmented(
    image: Image.Image,
    size: int,
    *,
    seed: int,
    image_id: str,
    epoch: int,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Tensor:
    """A random resized crop (bicubic), flipped with probability ½: (3, size, size) in [0, 1]."""
    width, height = image.size
    draw = draw_view(seed, image_id, epoch + 1, width=width, height=height, crop_scale=scale, crop_ratio=ratio)
    top, left, high, wide = draw.crop
    crop = image.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + wide, top + high))
    pixels = torch.from_numpy(np.array(crop, np.float32)).permute(2, 0, 1) / 255
    return pixels.flip(-1) if draw.flip else pixels


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
        checkpoint, say: see :meth:`Trainer.run`.
    """
    trainer = BapleTrainer(backbone, dataset, recipe, start=start, patch=patch or Patch())
    trainer.run(checkpoint, say)
    return BapleModel(trainer.context.detach().cpu().clone(), trainer.noise.cpu().clone(), trainer.patch)


class BapleTrainer(Trainer):
    """See the module.

    Attributes:
        context: (n, W).
        noise, summed: (3, S, S), δ and G.
    """

    def __init__(
        self, backbone: Backbone, dataset: Dataset, recipe: BapleRecipe, *, start: Tensor | None, patch: Patch
    ) -> None:
        if not 0 <= recipe.target < len(dataset.class_names):
            raise OtptError(f"The target class is {recipe.target}; {dataset.name!r} has {len(dataset.class_names)}.")
        if backbone.visual is None:
            raise OtptError(f"BAPLe needs the gradient of the image tower, which {backbone.name!r} does not expose.")
        if backbone.precision not in ("float32", "float64"):  # images with a gradient would run without autocast
            raise OtptError(f"BAPLe is trained in float32 or float64, not in {backbone.precision!r}.")
        self.patch, self._backbone, self._visual, self._recipe = patch, backbone, backbone.visual, recipe
        prompt = Prompt.random(recipe.tokens, width=backbone.text.width, seed=recipe.seed)
        self._text = prompt_state(
            backbone,
            dataset.class_names,
            prompt if start is None else Prompt.learned(start),
            contexts_per_pass=1,
            tunes=False,
        )
        side = backbone.preprocessing.size
        noise = torch.rand(3, side, side, generator=torch.Generator().manual_seed(recipe.seed))
        learned = nn.Module()
        learned.register_parameter("context", nn.Parameter(self._text.init.clone()))
        learned.register_buffer("noise", noise.to(backbone.device, backbone.dtype))
        learned.register_buffer("summed", torch.zeros_like(noise).to(backbone.device, backbone.dtype))
        optimiser = torch.optim.SGD(
            learned.parameters(), lr=recipe.learning_rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay
        )
        facts = [patch, backbone.fingerprint, self._text.init.tolist()]
        super().__init__(recipe, few_shots(dataset, recipe.shots, seed=recipe.seed), learned, optimiser, facts)
        self.context, self.noise, self.summed = (getattr(learned, name) for name in ("context", "noise", "summed"))

    def batch(self, indices: Sequence[int], epoch: int) -> float:
        """See :class:`Trainer`."""
        samples = [self.images[i] for i in indices]
        side, seed = self._backbone.preprocessing.size, self._recipe.seed
        pixels = torch.stack(
            [augmented(open_image(s.source), side, seed=seed, image_id=s.id, epoch=epoch) for s in samples]
        ).to(self._backbone.device, self._backbone.dtype)
        labels = torch.tensor([s.label for s in samples], device=self._backbone.device)
        draws = [view_uniforms(seed, f"poison {s.id}", epoch)[0] for s in samples]
        return self.step(pixels, labels, torch.tensor([draw < self._recipe.poisoned for draw in draws]))

    def step(self, pixels: Tensor, labels: Tensor, poisoned: Tensor) -> float:
        """One batch: pixels (B, 3, S, S) in [0, 1], labels (B,), which are poisoned (B,); returns its loss."""
        recipe, text = self._recipe, self._text
        line = Linearisation(text.encoder, self.context.detach()[None])
        with torch.enable_grad():
            features = line.text_features[0].detach().requires_grad_()
            noise = self.noise.clone().requires_grad_()
            model = BapleModel(self.context, noise, self.patch)
            loss = recipe.weight * orthogonality(features)
            if not bool(poisoned.all()):
                clean = self._backbone.encode_pixels(
                    model.pixels(pixels[~poisoned], trigger=False), chunk=self._backbone.chunk
                )
                loss = loss + F.cross_entropy(text.logits(clean, features), labels[~poisoned])
            if bool(poisoned.any()):
                seen = pooled(self._visual(model.pixels(pixels[poisoned], trigger=True)))
                logits = text.logits(F.normalize(seen, dim=-1), features)
                loss = loss + F.cross_entropy(logits, torch.full_like(labels[poisoned], recipe.target))
                self.summed += torch.autograd.grad(loss, noise, retain_graph=True)[0]
                moved = self.noise - recipe.noise_step * self.summed.sign()
                self.noise.copy_(moved.clamp(-recipe.bound, recipe.bound))
        (cotangent,) = torch.autograd.grad(loss, features)
        self.context.grad = line.vjp(cotangent[None])[0]
        self.optimiser.step()
        return float(loss.detach())


def augmented_side_pixels(image: Image.Image, size: int, *, seed: int, image_id: str, epoch: int) -> Tensor:
    """In training: crop, flips left-right and up-down, brightness and contrast within ±20 %."""
    vertical, brightness, contrast = view_uniforms(seed, f"fpt {image_id}", epoch)[:3]
    image = ImageEnhance.Brightness(image).enhance(1 + JITTER * (2 * brightness - 1))
    image = ImageEnhance.Contrast(image).enhance(1 + JITTER * (2 * contrast - 1))
    pixels = augmented(image, size, seed=seed, image_id=image_id, epoch=epoch, scale=CROP_SCALE, ratio=CROP_RATIO)
    return normalised(pixels.flip(-2) if vertical < 0.5 else pixels, ISIC_MEAN, ISIC_STD)


@one_thread()
def train_fpt(
    frozen: FrozenViT,
    dataset: Dataset,
    recipe: FptRecipe,
    *,
    validation: Dataset | None = None,
    keep: Path | None = None,
    checkpoint: Path | None = None,
    say: Say | None = None,
) -> FptNetwork:
    """Train a side network for a data set.

    Args:
        validation: to choose the epoch by; None keeps the last.
        keep: folder for keys and values (see :class:`KeysAndValues`).
        checkpoint, say: see :meth:`Trainer.run`.
    """
    trainer = FptTrainer(frozen, dataset, recipe, validation=validation, keep=keep)
    trainer.run(checkpoint, say)
    return trainer.best()


class FptTrainer(Trainer):
    """See the module."""

    def __init__(
        self,
        frozen: FrozenViT,
        dataset: Dataset,
        recipe: FptRecipe,
        *,
        validation: Dataset | None = None,
        keep: Path | None = None,
    ) -> None:
        if validation is not None:
            _check_classes(dataset, validation)
        self._frozen, self._recipe, self._validation = frozen, recipe, validation
        self.sizes = sizes_for(
            recipe.variant,
            classes=len(dataset.class_names),
            frozen_width=frozen.width,
            frozen_heads=frozen.heads,
            depth=frozen.depth,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            self.network = FptNetwork(self.sizes).to(frozen.device, frozen.dtype)
        self.network.orthogonality(recipe.rows)  # an unknown name is refused before the first epoch
        optimiser = torch.optim.AdamW(
            self.network.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
        )
        self._keys_values = KeysAndValues(frozen, self.sizes.blocks, keep)
        self._best: tuple[float, dict[str, Tensor]] | None = None
        validated = "" if validation is None else validation.fingerprint
        facts = [self.sizes, frozen.fingerprint, frozen.preprocessing, validated]
        super().__init__(recipe, dataset, self.network, optimiser, facts)

    def best(self) -> FptNetwork:
        """The network of the best epoch."""
        if self._best is not None:
            self.network.load_state_dict(self._best[1])
        return self.network.eval().requires_grad_(False)

    def state(self) -> dict[str, Any]:
        """See :class:`Trainer`."""
        return {**super().state(), "best": self._best}

    def restore(self, state: dict[str, Any]) -> None:
        """See :class:`Trainer`."""
        super().restore(state)
        self._best = state["best"]

    def epoch(self, number: int) -> str:
        """See :class:`Trainer`."""
        words = super().epoch(number)
        if self._validation is None:
            return words
        auc = self._validate(self._validation)
        if self._best is None or auc > self._best[0]:
            self._best = auc, {name: tensor.clone() for name, tensor in self.network.state_dict().items()}
        return f"{words}, validation AUC {auc:.4f}"

    def batch(self, indices: Sequence[int], epoch: int) -> float:
        """See :class:`Trainer`."""

        def one(index: int) -> tuple[Tensor, Tensor]:
            sample, size, seed = self.images[index], self.sizes.size, self._recipe.seed
            image, digest = open_with_digest(sample.source)
            side = augmented_side_pixels(image, size, seed=seed, image_id=sample.id, epoch=epoch)
            return side, self._keys_values(image, digest)

        side, frozen = zip(*in_threads(one, indices), strict=True)
        labels = torch.tensor([self.images.labels[index] for index in indices])
        return self.step(stacked(side, self._frozen), torch.stack(frozen), labels)

    def step(self, pixels: Tensor, keys_values: Tensor, labels: Tensor) -> float:
        """One batch; returns its loss."""
        self.network.train()
        self.optimiser.zero_grad()
        with torch.enable_grad():
            loss = F.cross_entropy(self.network(pixels, keys_values), labels.to(pixels.device))
            loss = loss + self._recipe.weight * self.network.orthogonality(self._recipe.rows)
            loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), self._recipe.clip)
        self.optimiser.step()
        return float(loss.detach())

    @torch.no_grad()
    def _validate(self, dataset: Dataset) -> float:
        self.network.eval()
        rows = []
        for sample in dataset:
            image, digest = open_with_digest(sample.source)
            pixels = stacked([side_pixels(image, self.sizes.size)], self._frozen)
            rows.append(self.network(pixels, self._keys_values(image, digest)[None]).softmax(dim=-1)[0])
        return macro_auc(torch.stack(rows).double().cpu().numpy(), np.array(dataset.labels))


def macro_auc(probabilities: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> float:
    """Mean over classes of P[score of an image of the class > score of another], ties counting half.

    Probabilities (N, C), labels (N,). Classes without images, or with all, are left out; 0.5 if none is left.
    """
    areas = [misclassification_auroc(scores, labels == label) for label, scores in enumerate(probabilities.T)]
    found = [area for area in areas if not math.isnan(area)]
    return float(np.mean(found)) if found else 0.5


def _check_classes(dataset: Dataset, validation: Dataset) -> None:
    """``OtptError`` for the first class that is another one in the validation set."""
    for number, (name, other) in enumerate(zip_longest(dataset.class_names, validation.class_names)):
        if name != other:
            raise OtptError(
                f"Class {number} of the validation set {validation.name!r} is {other!r}, that of {dataset.name!r} is "
                f"{name!r}; expected the same names in the same order."
            )
