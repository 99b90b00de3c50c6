"""Training the side network: cross-entropy, optionally with the orthogonality term.

    L = CE(logits, labels) + λ·L_O(rows)      rows: of the classifier (default), or the prompts of each block
    AdamW, learning rate 1e-4 by a cosine over 20 epochs, weight decay 0.1, gradient norm cut at 1, batches of 16

The epoch of the best AUC on validation images is kept, where there are such; else the last one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageEnhance
from torch import Tensor
from torch.nn import functional as F

from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.images import open_with_digest
from otpt.learning.epochs import Say, run_epochs
from otpt.learning.fpt_recipe import FptRecipe
from otpt.learning.pixels import augmented, shuffled
from otpt.learning.recipe import check_diverged
from otpt.methods.fpt.frozen import ISIC_MEAN, ISIC_STD, FrozenViT
from otpt.methods.fpt.network import FptNetwork, sizes_for
from otpt.methods.fpt.pixels import KeysAndValues, side_pixels, stacked
from otpt.threads import in_threads, one_thread
from otpt.views import normalised
from otpt.views.draws import view_uniforms

CROP_SCALE = (0.8, 1.0)
CROP_RATIO = (0.7, 1.3)
JITTER = 0.2


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
        checkpoint: see :func:`run_epochs`.
    """
    trainer = FptTrainer(frozen, dataset, recipe, validation=validation, keep=keep)
    run_epochs(trainer, key=trainer.key, checkpoint=checkpoint, say=say)
    return trainer.best()


class FptTrainer:
    """See the module; a :class:`otpt.learning.epochs.Trainer`."""

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
        self.epochs = recipe.epochs
        self._frozen, self._dataset, self._recipe, self._validation = frozen, dataset, recipe, validation
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
        self._optimiser = torch.optim.AdamW(
            self.network.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
        )
        self._keys_values = KeysAndValues(frozen, self.sizes.blocks, keep)
        self._best: tuple[float, dict[str, Tensor]] | None = None
        sets = [dataset.fingerprint, "" if validation is None else validation.fingerprint]
        numbers = f"{asdict(recipe)} {self.sizes} {frozen.fingerprint} {frozen.preprocessing} {sets}"
        self.key = hashlib.sha256(numbers.encode()).hexdigest()[:32]

    def best(self) -> FptNetwork:
        """The network of the best epoch."""
        if self._best is not None:
            self.network.load_state_dict(self._best[1])
        return self.network.eval().requires_grad_(False)

    def state(self) -> dict[str, Tensor]:
        """See :class:`Trainer`."""
        found = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        for i, parameter in enumerate(self.network.parameters()):
            found |= {f"adam.{i}.{name}": value for name, value in self._optimiser.state[parameter].items()}
        if self._best is not None:
            found["best.auc"] = torch.tensor(self._best[0], dtype=torch.float64)
            found |= {f"best.network.{name}": tensor for name, tensor in self._best[1].items()}
        return found

    def restore(self, state: dict[str, Tensor]) -> None:
        """See :class:`Trainer`."""
        self.network.load_state_dict(_below(state, "network."))
        for i, parameter in enumerate(self.network.parameters()):
            own = _below(state, f"adam.{i}.")
            self._optimiser.state[parameter] = {n: t if n == "step" else t.to(parameter) for n, t in own.items()}
        if "best.auc" in state:
            self._best = float(state["best.auc"]), _below(state, "best.network.")

    def epoch(self, number: int) -> str:
        """See :class:`Trainer`."""
        recipe = self._recipe
        self._optimiser.param_groups[0]["lr"] = recipe.rate(number)
        order = shuffled(range(len(self._dataset)), recipe.seed, number)
        with torch.random.fork_rng(devices=[]):  # dropout
            torch.manual_seed(1000 * recipe.seed + number)
            losses = [self._batch(order[i : i + recipe.batch], number) for i in range(0, len(order), recipe.batch)]
        check_diverged(self.network.parameters(), number, recipe.learning_rate)
        words = f"loss {sum(losses) / len(losses):.4f}"
        if self._validation is None:
            return words
        auc = self._validate(self._validation)
        if self._best is None or auc > self._best[0]:
            self._best = auc, {name: tensor.clone() for name, tensor in self.network.state_dict().items()}
        return f"{words}, validation AUC {auc:.4f}"

    def _batch(self, indices: Sequence[int], epoch: int) -> float:
        size, seed = self.sizes.size, self._recipe.seed

        def one(index: int) -> tuple[Tensor, Tensor]:
            sample = self._dataset[index]
            image, digest = open_with_digest(sample.source)
            side = augmented_side_pixels(image, size, seed=seed, image_id=sample.id, epoch=epoch)
            return side, self._keys_values(image, digest)

        side, frozen = zip(*in_threads(one, indices), strict=True)
        labels = torch.tensor([self._dataset.labels[index] for index in indices])
        return self.step(stacked(side, self._frozen), torch.stack(frozen), labels)

    def step(self, pixels: Tensor, keys_values: Tensor, labels: Tensor) -> float:
        """One batch; returns its loss."""
        self.network.train()
        self._optimiser.zero_grad()
        with torch.enable_grad():
            loss = F.cross_entropy(self.network(pixels, keys_values), labels.to(pixels.device))
            loss = loss + self._recipe.weight * self.network.orthogonality(self._recipe.rows)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self._recipe.clip)
        self._optimiser.step()
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
    areas = []
    for label, scores in enumerate(probabilities.T):
        inside = labels == label
        count = int(inside.sum())
        if 0 < count < len(labels):
            _, position, counts = np.unique(scores, return_inverse=True, return_counts=True)
            ranks = (np.cumsum(counts) - (counts - 1) / 2)[position]
            areas.append((ranks[inside].sum() - count * (count + 1) / 2) / (count * (len(labels) - count)))
    return float(np.mean(areas)) if areas else 0.5


def _check_classes(dataset: Dataset, validation: Dataset) -> None:
    """``OtptError`` for the first class that is another one in the validation set."""
    pairs = zip_longest(dataset.class_names, validation.class_names)
    for number, (name, other) in enumerate(pairs):
        if name != other:
            there, here = ("missing" if each is None else repr(each) for each in (other, name))
            raise OtptError(
                f"The validation set {validation.name!r} has other classes than {dataset.name!r}: class {number} is "
                f"{there} there and {here} here; expected the same names in the same order."
            )


def _below(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
