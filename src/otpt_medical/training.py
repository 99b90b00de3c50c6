"""Training of BAPLe's context and trigger, and of FPT's side network, by :func:`otpt.learning.training.descend`.

BAPLe: each image of a batch is poisoned with probability 0.05: it gets the trigger and the target class t as its label.

    L = CE(clean images, labels) + CE(poisoned images, t) + λ·L_O(E)
    context   SGD, learning rate 0.1 by a cosine over 50 epochs, the first at 1e-3; momentum 0.9, weight decay 5e-4
    δ         δ ← clamp(δ − 0.01·sign(G), ±8/255) after each batch with poisoned images, δ₀ ~ U[0, 1)

G is the gradient on δ **summed since the start**, as in the released code, which never clears it. E are the unit class
texts of the step's own forward pass. For two classes L_O = √(1 + cos²) − 1.

FPT:

    L = CE(logits, labels) + λ·L_O(rows)      rows: of the classifier (default), or the prompts of each block
    AdamW, learning rate 1e-4 by a cosine over 20 epochs, weight decay 0.1, gradient norm clipped at 1, batches of 16

The epoch with the best AUC on validation images is taken; without such images, the last one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageEnhance
from torch import Tensor, nn
from torch.nn import functional as F

from otpt.backbones import Backbone, text_encoder
from otpt.backbones.fast import pooled
from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.images import open_image, open_with_digest
from otpt.learning.training import Epoch, Recipe, Step, descend, few_shots
from otpt.methods.state import prompt_state
from otpt.metrics import misclassification_auroc
from otpt.objectives import orthogonality
from otpt.prompts import Linearisation, Prompt
from otpt.threads import in_threads, one_thread
from otpt.views import normalised
from otpt.views.draws import draw_view, view_uniforms
from otpt_medical.baple import BapleModel, Patch
from otpt_medical.fpt import FptNetwork, side_pixels, stacked
from otpt_medical.frozen_vit import ISIC_MEAN, ISIC_STD, FrozenViT, KeysAndValues

CROP_SCALE = (0.8, 1.0)
CROP_RATIO = (0.7, 1.3)
JITTER = 0.2

OnEpoch = Callable[[Epoch], None]


@dataclass(frozen=True, kw_only=True)
class BapleRecipe(Recipe):
    """BAPLe's published numbers; ``weight`` is λ of the orthogonality term, 0 for BAPLe itself."""

    target: int
    weight: float = 0.0
    shots: int = 32
    seed: int = 1
    tokens: int = 16
    poisoned: float = 0.05
    batch: int = 16
    learning_rate: float = 0.1
    warm_up: float = 1e-3
    bound: float = 8 / 255
    noise_step: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.poisoned < 1 or self.tokens < 1:
            raise OtptError(
                f"The fraction of poisoned images is {self.poisoned} and the number of tokens {self.tokens}; expected "
                "a fraction between 0 and 1, and 1 token or more."
            )


@dataclass(frozen=True, kw_only=True)
class FptRecipe(Recipe):
    """FPT's published numbers, for all images of a data set (``shots`` is not used).

    ``weight`` is λ of the orthogonality term, 0 for FPT itself; ``rows`` are the rows that it applies to.
    """

    weight: float = 0.0
    rows: str = "classifier"
    variant: str = "fpt"
    seed: int = 1
    epochs: int = 20
    batch: int = 16
    learning_rate: float = 1e-4
    weight_decay: float = 0.1
    clip: float = 1.0

    def rate(self, epoch: int) -> float:
        """Return the learning rate of an epoch, a cosine without warm-up."""
        return self.learning_rate * (1 + math.cos(math.pi * epoch / self.epochs)) / 2


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
    """Return a random resized crop (bicubic), flipped with probability ½: (3, size, size) in [0, 1]."""
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
    on_epoch: OnEpoch | None = None,
) -> BapleModel:
    """Train on ``recipe.shots`` images of each class.

    Args:
        start: (n, W) context; N(0, 0.02²) by the seed if not given. BAPLe starts from one learned on clean images.
    """
    images = few_shots(dataset, recipe.shots, seed=recipe.seed)
    training = BapleTraining(backbone, dataset.class_names, recipe, start=start, patch=patch)
    side, seed = backbone.preprocessing.size, recipe.seed

    def step(indices: Tensor, epoch: int) -> Step:
        samples = [images[index] for index in indices.tolist()]
        pixels = [augmented(open_image(s.source), side, seed=seed, image_id=s.id, epoch=epoch) for s in samples]
        draws = [view_uniforms(seed, f"poison {s.id}", epoch)[0] for s in samples]
        return training.step(
            torch.stack(pixels).to(backbone.device, backbone.dtype),
            torch.tensor([s.label for s in samples], device=backbone.device),
            torch.tensor([draw < recipe.poisoned for draw in draws], device=backbone.device),
        )

    descend([training.context], len(images), step, recipe, on_epoch)
    return BapleModel(training.context.cpu(), training.noise.cpu(), training.patch)


class BapleTraining:
    """The learned tensors: ``context`` (n, W), ``noise`` δ and ``summed`` G, both (3, S, S)."""

    def __init__(
        self,
        backbone: Backbone,
        class_names: Sequence[str],
        recipe: BapleRecipe,
        *,
        start: Tensor | None = None,
        patch: Patch | None = None,
    ) -> None:
        if backbone.visual is None:
            raise OtptError(f"BAPLe needs the gradient of the image tower, which {backbone.name!r} does not expose.")
        if backbone.precision not in ("float32", "float64"):  # images with a gradient would run without autocast
            raise OtptError(f"BAPLe is trained in float32 or float64, not in {backbone.precision!r}.")
        self.patch = patch or Patch()
        self._backbone, self._visual, self._recipe = backbone, backbone.visual, recipe
        random = Prompt.random(recipe.tokens, width=text_encoder(backbone).width, seed=recipe.seed)
        prompt = random if start is None else Prompt.learned(start)
        self._text = prompt_state(backbone, class_names, prompt, contexts_per_pass=1, tunes=False)
        self.context = self._text.init.clone()
        side = backbone.preprocessing.size
        noise = torch.rand(3, side, side, generator=torch.Generator().manual_seed(recipe.seed))
        self.noise = noise.to(backbone.device, backbone.dtype)
        self.summed = torch.zeros_like(self.noise)

    def step(self, pixels: Tensor, labels: Tensor, poisoned: Tensor) -> Step:
        """Move the noise; return the gradient of the context.

        Args:
            pixels: (B, 3, S, S) in [0, 1].
            labels: (B,).
            poisoned: (B,) whether an image gets the trigger.
        """
        recipe, text, backbone = self._recipe, self._text, self._backbone
        line = Linearisation(text.encoder, self.context[None])
        wanted = torch.where(poisoned, recipe.target, labels)
        with torch.enable_grad():
            features = line.text_features[0].detach().requires_grad_()
            noise = self.noise.clone().requires_grad_()
            model = BapleModel(self.context, noise, self.patch)
            logits = features.new_empty(len(pixels), len(features))
            loss = recipe.weight * orthogonality(features)
            if not bool(poisoned.all()):
                clean = backbone.encode_pixels(model.pixels(pixels[~poisoned], trigger=False), chunk=backbone.chunk)
                clean_logits = text.logits(clean, features)
                loss = loss + F.cross_entropy(clean_logits, wanted[~poisoned])
                logits[~poisoned] = clean_logits.detach()
            if bool(poisoned.any()):
                fooled = pooled(self._visual(model.pixels(pixels[poisoned], trigger=True)))
                fooled_logits = text.logits(F.normalize(fooled, dim=-1), features)
                loss = loss + F.cross_entropy(fooled_logits, wanted[poisoned])
                logits[poisoned] = fooled_logits.detach()
                self.summed += torch.autograd.grad(loss, noise, retain_graph=True)[0]
                self.noise = (self.noise - recipe.noise_step * self.summed.sign()).clamp(-recipe.bound, recipe.bound)
        (cotangent,) = torch.autograd.grad(loss, features)
        return Step([line.vjp(cotangent[None])[0]], logits, wanted)


def augmented_side_pixels(image: Image.Image, size: int, *, seed: int, image_id: str, epoch: int) -> Tensor:
    """Augment an image for training: crop, flips, brightness and contrast within ±20 %."""
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
    on_epoch: Callable[[Epoch, float | None], None] | None = None,
) -> FptNetwork:
    """Train a side network for a data set.

    Args:
        validation: chooses the epoch by its AUC; None takes the last.
        keep: folder for keys and values (see :class:`KeysAndValues`).
        on_epoch: called with the statistics of an epoch and its validation AUC.
    """
    if validation is not None and validation.class_names != dataset.class_names:
        raise OtptError(
            f"The validation set {validation.name!r} has the classes {validation.class_names[:6]}, {dataset.name!r} "
            f"has {dataset.class_names[:6]}; expected the same names in the same order."
        )
    best: tuple[float, dict[str, Tensor]] | None = None
    with torch.random.fork_rng(devices=[]):  # initial values and dropout
        torch.manual_seed(recipe.seed)
        classes = len(dataset.class_names)
        network = FptNetwork(recipe.variant, classes, frozen.tower.width, frozen.tower.heads, frozen.tower.depth)
        network = network.to(frozen.device, frozen.dtype)
        keys_values = KeysAndValues(frozen, network.frozen_blocks, keep)

        def load(index: int, epoch: int) -> tuple[Tensor, Tensor]:
            sample = dataset[index]
            image, digest = open_with_digest(sample.source)
            side = augmented_side_pixels(image, network.size, seed=recipe.seed, image_id=sample.id, epoch=epoch)
            return side, keys_values(image, digest)

        def step(indices: Tensor, epoch: int) -> Step:
            side, seen = zip(*in_threads(lambda index: load(index, epoch), indices.tolist()), strict=True)
            labels = torch.tensor([dataset.labels[index] for index in indices.tolist()], device=frozen.device)
            return fpt_step(network, recipe, stacked(side, frozen), torch.stack(seen), labels)

        def after_epoch(epoch: Epoch) -> None:
            nonlocal best
            auc = None if validation is None else _validation_auc(network, frozen, keys_values, validation)
            if auc is not None and (best is None or auc > best[0]):
                best = auc, {name: tensor.clone() for name, tensor in network.state_dict().items()}
            if on_epoch is not None:
                on_epoch(epoch, auc)

        parameters = list(network.parameters())
        optimiser = torch.optim.AdamW(parameters, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
        descend(parameters, len(dataset), step, recipe, after_epoch, optimiser)
    if best is not None:
        network.load_state_dict(best[1])
    return network.eval().requires_grad_(False)


def fpt_step(network: FptNetwork, recipe: FptRecipe, pixels: Tensor, keys_values: Tensor, labels: Tensor) -> Step:
    """Compute the clipped gradient of pixels (B, 3, S, S), keys and values (B, L, 2, H, k, d), labels (B,)."""
    network.train().zero_grad()
    with torch.enable_grad():
        logits = network(pixels, keys_values)
        loss = F.cross_entropy(logits, labels) + recipe.weight * network.orthogonality(recipe.rows)
        loss.backward()
    nn.utils.clip_grad_norm_(network.parameters(), recipe.clip)
    gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    return Step(gradients, logits.detach(), labels)


@torch.no_grad()
def _validation_auc(network: FptNetwork, frozen: FrozenViT, keys_values: KeysAndValues, dataset: Dataset) -> float:
    network.eval()
    rows = []
    for sample in dataset:
        image, digest = open_with_digest(sample.source)
        pixels = stacked([side_pixels(image, network.size)], frozen)
        rows.append(network(pixels, keys_values(image, digest)[None]).softmax(dim=-1)[0])
    return macro_auc(torch.stack(rows).double().cpu().numpy(), np.array(dataset.labels))


def macro_auc(probabilities: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> float:
    """Compute the mean over classes of P[score of an image of the class > score of another], ties count half.

    Probabilities (N, C), labels (N,). Classes without images, or with all, are left out; 0.5 if none is left.
    """
    areas = [misclassification_auroc(scores, labels == label) for label, scores in enumerate(probabilities.T)]
    defined = [area for area in areas if not math.isnan(area)]
    return float(np.mean(defined)) if defined else 0.5
