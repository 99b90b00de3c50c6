"""Train ``pocket`` on other artists' emoji; may be stopped and started again at any time.

Each image is compared with *all* emoji, not only with those of its batch: logits = scale · ⟨image, direction⟩,
cross-entropy, learned scale. First every emoji has a learned direction, which costs next to nothing. When the learning
rate begins to fall, the text tower learns what the emoji with these directions are called, and from then on the
directions are the texts of the text tower, so that the image tower ends aligned with what it will be compared with.
"""

from __future__ import annotations

import copy
import math
import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from otpt.backbones.pocket import SIZE

from .augment import Augmentation, augment
from .captions import Captions
from .model import ImageTower, build_model, encode_texts
from .names import Emoji, plain_code, read_emoji
from .parallel import processes, rank, run_in_processes, sum_in_place
from .rasterise import Drawings, load_drawings
from .start import class_directions, head_of, start_from_discriminant
from .texts import fit_texts

MOMENTUM = 0.05  # of the batch statistics: a short run needs a short memory


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the result, besides the data."""

    epochs: int = 36
    named_epochs: int = 14  # at the end: against the texts, the learning rate falls linearly to nothing
    epoch_images: int = 6400
    batch: int = 128
    start_images: int = 8000
    text_steps: int = 1500
    frozen: int = 2  # the stem and this many stages keep ImageNet's weights
    image_rate: float = 1e-3
    direction_rate: float = 2e-3
    scale_rate: float = 2e-3
    text_rate: float = 2e-3
    weight_decay: float = 0.05
    warm_up: int = 100  # steps
    smoothing: float = 0.05
    ema: float = 0.998
    people: float = 0.3  # how often people are drawn, by the others
    one_colour: float = 0.6  # the same for artists without colours
    seed: int = 0

    def rate(self, epochs_done: float) -> float:
        """Share of the full learning rate: constant, then linearly to nothing (so an end can be set late)."""
        return min(1.0, (self.epochs - epochs_done) / self.named_epochs)


class Trainer:
    """State of a run: model, directions (V, D) of the emoji, moving averages of both, optimiser, step."""

    def __init__(self, drawings: Drawings, emoji: list[Emoji], recipe: Recipe, *, pretrained: bool = True) -> None:
        self.recipe, self.emoji = recipe, emoji
        index = {plain_code(entry.code): number for number, entry in enumerate(emoji)}
        self.pixels = torch.from_numpy(drawings.pixels)
        self.labels = torch.tensor([index[code] for code in drawings.codes])
        self.weights = torch.tensor(
            [
                (recipe.people if emoji[label].group == "people" else 1.0)
                * (recipe.one_colour if artist.endswith(("monotone", "high-contrast")) else 1.0)
                for label, artist in zip(self.labels.tolist(), drawings.artists, strict=True)
            ]
        )
        # a mirrored arrow, letter or flag is another one
        self.may_flip = torch.tensor(
            [
                entry.group not in {"symbols", "flags"}
                and not {"left", "right", "o'clock", "tilted"} & set(entry.name.lower().split())
                for entry in emoji
            ]
        )
        self.captions = Captions(emoji)
        torch.manual_seed(recipe.seed)
        self.model = build_model(pretrained=pretrained, tokens=len(self.captions.rows)).to(
            memory_format=torch.channels_last
        )
        self.image = ImageTower(self.model)
        self.directions = nn.Parameter(torch.zeros(len(emoji), self.model.text_projection.shape[1]))
        self.average = copy.deepcopy(self.model).eval().requires_grad_(False)
        self.average_directions = torch.zeros_like(self.directions)
        self.optimiser = torch.optim.AdamW(self._groups())
        self.named = False  # whether the directions are the text tower's
        self.epoch, self.step, self.seconds, self.cpu_seconds = 0, 0, 0.0, 0.0

    def _groups(self) -> list[dict[str, object]]:
        recipe, visual = self.recipe, list(self.model.visual.parameters())
        return [
            {
                "params": [value for value in visual if value.ndim > 1],
                "full": recipe.image_rate,
                "weight_decay": recipe.weight_decay,
            },
            {"params": [value for value in visual if value.ndim < 2], "full": recipe.image_rate, "weight_decay": 0.0},
            {"params": [self.directions], "full": recipe.direction_rate, "weight_decay": 0.0},
            {"params": [self.model.logit_scale], "full": recipe.scale_rate, "weight_decay": 0.0},
        ]

    def start(self) -> None:
        """Batch statistics of emoji; tokens and directions from the discriminant of the features (see ``start``)."""
        started, cpu = time.monotonic(), time.process_time()
        rng = torch.Generator().manual_seed(self.recipe.seed)
        rows = torch.randperm(len(self.labels), generator=rng)[: self.recipe.start_images]
        self.image.freeze(0)
        with torch.no_grad():
            self._adapt_statistics(rows[: len(rows) // 4], rng)
            self.image.eval()
            pooled = torch.cat(
                [self.image.maps(self._images(part, rng)).mean((2, 3)) for part in rows.split(self.recipe.batch)]
            )
            labels = self.labels[rows]
            start_from_discriminant(self.model.visual, pooled, labels)
            features = head_of(self.model.visual, pooled)
            self._set_directions(class_directions(features, labels, len(self.emoji)))
        self.average.load_state_dict(self.model.state_dict())
        self.seconds += time.monotonic() - started
        self.cpu_seconds += time.process_time() - cpu

    def _adapt_statistics(self, rows: Tensor, rng: torch.Generator) -> None:
        norms = [part for part in self.image.modules() if isinstance(part, nn.BatchNorm2d)]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain mean over all batches
        self.image.train()
        for part in rows.split(self.recipe.batch):
            self.image.maps(self._images(part, rng))
        for norm in norms:
            norm.momentum = MOMENTUM

    def _images(self, rows: Tensor, rng: torch.Generator) -> Tensor:
        return augment(self.pixels[rows], SIZE, Augmentation(), rng, self.may_flip[self.labels[rows]])

    @torch.no_grad()
    def _set_directions(self, values: Tensor) -> None:
        self.directions.copy_(values)
        self.average_directions.copy_(values)

    def run_epoch(self, number: int) -> dict[str, float]:
        """One epoch; its randomness is keyed by (seed, epoch), so a resumed run repeats it."""
        recipe, key = self.recipe, self.recipe.seed * 100_003 + number
        started, cpu = time.monotonic(), time.process_time()
        if number >= recipe.epochs - recipe.named_epochs:
            self._name(random.Random(key))
        rng = torch.Generator().manual_seed(key)
        order = torch.multinomial(self.weights, recipe.epoch_images, replacement=True, generator=rng)
        rng.manual_seed(key * 64 + rank())
        self.image.freeze(recipe.frozen)
        self.image.train()
        total = torch.zeros(2)
        batches = order.split(recipe.batch)
        for count, batch in enumerate(batches):
            self._set_rates(number + count / len(batches))
            rows = batch[rank() :: processes()]
            total += self._step(self.image(self._images(rows, rng)), self.labels[rows]) * len(batch)
        self._share_statistics()
        self.epoch = number + 1
        self.seconds += time.monotonic() - started
        self.cpu_seconds += time.process_time() - cpu
        loss, right = (total / len(order)).tolist()
        return {"loss": loss, "train_accuracy": 100 * right}

    def _name(self, words: random.Random) -> None:
        """The text tower learns the directions (once); then these are its own texts, of other captions each time."""
        if not self.named:
            targets = nn.functional.normalize(self.average_directions, dim=-1)
            fit_texts(self.model, self.captions, targets, steps=self.recipe.text_steps, rate=self.recipe.text_rate)
            for name, value in self.average.named_parameters():
                if not name.startswith(("visual", "logit_scale")):
                    value.copy_(self.model.get_parameter(name).detach())
            self.named = True
            self.directions.requires_grad_(False)
            self.directions.grad = None
        with torch.no_grad():
            ids = self.captions.draw(range(len(self.emoji)), words)
            self._set_directions(torch.cat([encode_texts(self.model, part) for part in ids.split(256)]))

    def _set_rates(self, epochs_done: float) -> None:
        share = min(self.recipe.rate(epochs_done), (self.step + 1) / self.recipe.warm_up)
        for group in self.optimiser.param_groups:
            group["lr"] = group["full"] * share

    def _step(self, features: Tensor, labels: Tensor) -> Tensor:
        """One step on this process's images' features (B, D); returns loss and share of right answers, of all."""
        recipe = self.recipe
        scale = self.model.logit_scale.exp()
        logits = scale * features @ nn.functional.normalize(self.directions, dim=-1).T  # (B, V)
        loss = nn.functional.cross_entropy(logits, labels, label_smoothing=recipe.smoothing)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        learned = [*self.model.parameters(), self.directions]
        with torch.no_grad():
            told = torch.stack([loss.detach(), (logits.argmax(-1) == labels).float().mean()])
            gradients = [value.grad for value in learned if value.grad is not None]
            sum_in_place([*gradients, told])
            torch._foreach_div_([*gradients, told], float(processes()))
        nn.utils.clip_grad_norm_(learned, 1.0)
        self.optimiser.step()
        with torch.no_grad():
            self.model.logit_scale.clamp_(max=math.log(100))
            keep = min(recipe.ema, (1 + self.step) / (10 + self.step))
            torch._foreach_lerp_(
                [*self.average.parameters(), self.average_directions], [value.detach() for value in learned], 1 - keep
            )
            for mean, value in zip(self.average.buffers(), self.model.buffers(), strict=True):
                if mean.is_floating_point() and mean is not self.average.attn_mask:
                    mean.lerp_(value, 1 - keep)
        self.step += 1
        return told

    def _share_statistics(self) -> None:
        """Batch statistics become their means over the processes."""
        shared = [
            value
            for model in (self.model, self.average)
            for name, value in model.named_buffers()
            if name.endswith(("running_mean", "running_var"))
        ]
        sum_in_place(shared)
        torch._foreach_div_(shared, float(processes()))

    def state(self) -> dict[str, object]:
        return {
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "directions": (self.directions.detach(), self.average_directions),
            "optimiser": self.optimiser.state_dict(),
            "progress": (self.epoch, self.step, self.seconds, self.cpu_seconds, self.named),
        }

    @torch.no_grad()
    def resume(self, file: Path) -> None:
        state = torch.load(file, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.directions.copy_(state["directions"][0])
        self.average_directions.copy_(state["directions"][1])
        self.epoch, self.step, self.seconds, self.cpu_seconds, self.named = state["progress"]
        self.directions.requires_grad_(not self.named)
        for part in self.image.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.momentum = MOMENTUM


def train(work: Path, recipe: Recipe, *, count: int = 2) -> Path:
    """Train, or continue, in ``count`` processes; return the checkpoint's path."""
    run_in_processes(count, _train, work, recipe)
    return work / "run.pt"


def _train(work: Path, recipe: Recipe) -> None:
    trainer = Trainer(load_drawings(work / "drawings.npz"), read_emoji(work / "packages"), recipe)
    checkpoint = work / "run.pt"

    def finish(row: dict[str, float]) -> None:
        if rank() > 0:
            return
        row |= {"logit_scale": float(trainer.model.logit_scale.detach().exp()), "seconds": trainer.seconds}
        print("  ".join(f"{key} {value:.4g}" for key, value in row.items()), flush=True)
        partial = checkpoint.with_suffix(".partial")
        torch.save(trainer.state(), partial)
        partial.rename(checkpoint)

    if checkpoint.exists():
        trainer.resume(checkpoint)
    else:
        trainer.start()
        finish({"epoch": 0})
    for number in range(trainer.epoch, recipe.epochs):
        finish({"epoch": number + 1, **trainer.run_epoch(number)})
