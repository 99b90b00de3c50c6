"""The text tower, distilled from the sentence encoder.

Its target for a noun is the sentence embedding of "a photo of a {noun}.", less the mean over ImageNet's classes and
rotated to the principal axes of these classes, whatever template the noun is shown in. The prefix of a template is
encoded once per batch.

The last norm has no weights and the projection is fixed and orthogonal, so that all text features have one length
before they are normalised. Therefore the direction that all texts share, which is added after training, keeps its
share whatever the context does.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from open_clip import SimpleTokenizer
from torch import Tensor, nn

from .nouns import Texts

WIDTH, LAYERS, HEADS, CONTEXT = 256, 3, 4, 77
EMBED_DIM = 256
AXES = 254  # of the class texts; one direction is left to all images, one to all texts
SOT, EOT = 49406, 49407
PLAIN = ("a photo of a ", ".")
TEMPLATES = (
    ("a ", "."), ("", ""), ("a photo of the ", "."), ("an image of a ", "."), ("a picture of a ", "."),
    ("a photo of ", "."), ("a close-up photo of a ", "."), ("a good photo of a ", "."), ("a blurry photo of a ", "."),
    ("a photo of a small ", "."), ("a photo of a large ", "."), ("a drawing of a ", "."), ("the ", ""), ("", "."),
    ("itap of a ", "."), ("a black and white photo of a ", "."), ("a photo of one ", "."), ("a photo of my ", "."),
)  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """Numbers of the training run."""

    steps: int = 600
    cool_from: int = 475  # step after which the learning rate falls linearly to zero
    horizon: int = 976  # steps of the cosine that the learning rate follows until then
    batch: int = 384
    rate: float = 1.5e-3
    warm_up: int = 60
    decay: float = 0.02
    gram: float = 5.0  # weight of the cosines between texts
    plain: float = 0.5  # probability of PLAIN
    imagenet_repeats: int = 4
    common_repeats: int = 2
    save_every: int = 25


class TextTower(nn.Module):
    """Causal text tower with open_clip's blocks; tokens are numbered as in ``rows``."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        from open_clip.transformer import Transformer

        self.tokens = nn.Embedding(len(rows), WIDTH)
        self.positions = nn.Parameter(0.01 * torch.randn(CONTEXT, WIDTH))
        self.transformer = Transformer(WIDTH, LAYERS, HEADS)
        for block in self.transformer.resblocks:
            nn.init.normal_(block.attn.in_proj_weight, std=WIDTH**-0.5)
            nn.init.normal_(block.attn.out_proj.weight, std=WIDTH**-0.5 * (2 * LAYERS) ** -0.5)
            nn.init.normal_(block.mlp.c_fc.weight, std=(2 * WIDTH) ** -0.5)
            nn.init.normal_(block.mlp.c_proj.weight, std=WIDTH**-0.5 * (2 * LAYERS) ** -0.5)
        self.register_buffer("projection", mean_free_basis(WIDTH))

    def forward(self, prefix: Tensor, ids: Tensor, ends: Tensor) -> Tensor:
        """Return unit features (N, D - 1) of texts that start with ``prefix`` (P,) and go on with ``ids`` (N, R).

        ``ends`` (N,) are positions of end tokens in ``ids``.
        """
        start, (count, length) = len(prefix), ids.shape
        head = self.tokens(prefix)[None] + self.positions[:start]  # (1, P, W)
        tail = self.tokens(ids) + self.positions[start : start + length]  # (N, R, W)
        mask = torch.ones(length, start + length, dtype=torch.bool).tril(start)
        for block in self.transformer.resblocks:
            q, k, v = _heads(block, head)
            tail_q, tail_k, tail_v = _heads(block, tail)
            keys = torch.cat([k.expand(count, -1, -1, -1), tail_k], 2)
            values = torch.cat([v.expand(count, -1, -1, -1), tail_v], 2)
            head = _after_attention(block, head, F.scaled_dot_product_attention(q, k, v, is_causal=True))
            tail = _after_attention(block, tail, F.scaled_dot_product_attention(tail_q, keys, values, attn_mask=mask))
        last = F.layer_norm(tail[torch.arange(count), ends], (WIDTH,))
        return F.normalize(last @ self.projection, dim=-1)


def _heads(block: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    qkv = F.linear(block.ln_1(x), block.attn.in_proj_weight, block.attn.in_proj_bias)
    q, k, v = qkv.view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)  # each (N, heads, n, W/heads)
    return q, k, v


def _after_attention(block: nn.Module, x: Tensor, mixed: Tensor) -> Tensor:
    x = x + block.attn.out_proj(mixed.transpose(1, 2).reshape(x.shape))
    return x + block.mlp(block.ln_2(x))


def mean_free_basis(width: int) -> Tensor:
    """Return an orthonormal basis (W, W - 1) of the vectors whose mean is zero, which are the outputs of a norm."""
    centred = torch.eye(width, dtype=torch.float64) - 1 / width
    return torch.linalg.eigh(centred).eigenvectors[:, 1:].float().contiguous()


class Vocabulary:
    """Tokens that occur in the texts; ``rows`` (R,) are their ids in CLIP's vocabulary."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._tokenizer = SimpleTokenizer()
        ids = {SOT, EOT}
        for text in texts:
            ids.update(self._tokenizer.encode(text))
        self.rows = torch.tensor(sorted(ids))
        self._row_of = {int(token): row for row, token in enumerate(self.rows)}

    def encode(self, text: str) -> list[int]:
        """Return the rows of a text's tokens."""
        return [self._row_of[token] for token in self._tokenizer.encode(text)]

    def contains(self, text: str) -> bool:
        """Return whether all tokens of a text were learned."""
        return all(token in self._row_of for token in self._tokenizer.encode(text))

    def tokenize(self, prefix: str, texts: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the arguments of the text tower for texts without the prefix that they share."""
        head = [self._row_of[SOT], *self.encode(prefix)]
        rows = [[*self.encode(text), self._row_of[EOT]] for text in texts]
        ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
        return torch.tensor(head), ids, torch.tensor([len(row) - 1 for row in rows])


@dataclass(frozen=True)
class Targets:
    """Directions to learn, (N, D - 1) with zeros behind the axes, and the rotation that made them."""

    nouns: Tensor
    glosses: Tensor
    centre: Tensor  # (384,)
    axes: Tensor  # (384, AXES)


def make_targets(nouns: Tensor, glosses: Tensor, classes: int) -> Targets:
    """Centre and rotate sentence embeddings; the first ``classes`` nouns are ImageNet's."""
    centre = nouns[:classes].mean(0)
    axes = torch.linalg.svd(nouns[:classes] - centre, full_matrices=False)[2][:AXES].T
    return Targets(_rotated(nouns - centre, axes), _rotated(glosses - glosses.mean(0), axes), centre, axes)


def _rotated(embeddings: Tensor, axes: Tensor) -> Tensor:
    return F.pad(F.normalize(embeddings @ axes, dim=-1), (0, EMBED_DIM - 1 - AXES))


def initial_rows(vocabulary: Vocabulary, nouns: Sequence[str], targets: Tensor, projection: Tensor) -> Tensor:
    """Return token embeddings (R, W): each token starts as the mean target of the nouns in which it occurs."""
    total = torch.zeros(len(vocabulary.rows), targets.shape[1])
    weight = torch.full((len(vocabulary.rows), 1), 0.5)
    for noun, target in zip(nouns, targets, strict=True):
        rows = vocabulary.encode(noun)
        total[rows] += target / len(rows)
        weight[rows] += 1 / len(rows)
    return (total / weight) @ projection.T + 0.02 * torch.randn(len(vocabulary.rows), WIDTH)


def distil(texts: Texts, targets: Targets, vocabulary: Vocabulary, recipe: Recipe, checkpoint: Path) -> TextTower:
    """Train the text tower, or go on from ``checkpoint``."""
    torch.manual_seed(0)
    tower = TextTower(vocabulary.rows)
    nouns = texts.nouns
    with torch.no_grad():
        tower.tokens.weight.copy_(initial_rows(vocabulary, nouns, targets.nouns, tower.projection))
    weights = [parameter for parameter in tower.parameters() if parameter.ndim == 2]
    others = [parameter for parameter in tower.parameters() if parameter.ndim != 2]
    groups = [{"params": weights, "weight_decay": recipe.decay}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.98))
    lengths = {text: len(vocabulary.encode(text)) for text in (*nouns, *texts.glosses)}
    per_epoch = len(_epoch(texts, lengths, recipe, 0))
    done, total = 0, 0.0
    if checkpoint.is_file():
        state = torch.load(checkpoint, weights_only=True)
        tower.load_state_dict(state["tower"])
        optimiser.load_state_dict(state["optimiser"])
        done = state["done"]
    place = {noun: i for i, noun in enumerate(nouns)}
    gloss_place = {gloss: i for i, gloss in enumerate(texts.glosses)}
    for step in range(done, recipe.steps):
        if step == done or step % per_epoch == 0:
            batches = _epoch(texts, lengths, recipe, step // per_epoch)
        prefix, suffix, members = batches[step % per_epoch]
        if members[0] in gloss_place:
            teacher = targets.glosses[[gloss_place[text] for text in members]]
        else:
            teacher = targets.nouns[[place[text] for text in members]]
        student = tower(*vocabulary.tokenize(prefix, [text + suffix for text in members]))
        cosine = (student * teacher).sum(-1).mean()
        loss = 1 - cosine + recipe.gram * F.mse_loss(student @ student.T, teacher @ teacher.T)
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate * _schedule(step, recipe)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(tower.parameters(), 1.0)
        optimiser.step()
        total += cosine.item()
        if (step + 1) % recipe.save_every == 0 or step + 1 == recipe.steps:
            print(
                f"step {step + 1} of {recipe.steps}: cosine to the target {total / recipe.save_every:.3f}", flush=True
            )
            total = 0.0
            state = {"tower": tower.state_dict(), "optimiser": optimiser.state_dict(), "done": step + 1}
            torch.save(state, checkpoint.with_suffix(".partial"))
            os.replace(checkpoint.with_suffix(".partial"), checkpoint)
    return tower.eval().requires_grad_(False)


def _schedule(step: int, recipe: Recipe) -> float:
    """Return the factor of the learning rate: warm-up, the beginning of a slow cosine, then straight to zero."""
    warm = min(1, (step + 1) / recipe.warm_up)
    cosine = 0.5 * (1 + math.cos(math.pi * min(step, recipe.cool_from) / recipe.horizon))
    return warm * cosine * min(1, (recipe.steps - step) / (recipe.steps - recipe.cool_from))


def _epoch(texts: Texts, lengths: dict[str, int], recipe: Recipe, epoch: int) -> list[tuple[str, str, list[str]]]:
    """Return the batches (prefix, suffix, texts) of an epoch in random order."""
    draw = random.Random(epoch)
    nouns = texts.imagenet * recipe.imagenet_repeats + texts.common * recipe.common_repeats + texts.rare
    batches = []
    for members in _of_similar_length(nouns, lengths, recipe.batch, draw):
        prefix, suffix = PLAIN if draw.random() < recipe.plain else draw.choice(TEMPLATES)
        batches.append((prefix, suffix, members))
    for members in _of_similar_length(texts.glosses, lengths, recipe.batch, draw):
        batches.append((PLAIN[0].removesuffix("a "), ".", members))
    draw.shuffle(batches)
    return batches


def _of_similar_length(
    texts: Sequence[str], lengths: dict[str, int], size: int, draw: random.Random
) -> list[list[str]]:
    """Return random batches; each has texts of similar length, because padding costs as much as tokens."""
    texts = draw.sample(texts, len(texts))
    batches = []
    for start in range(0, len(texts), 8 * size):
        pool = sorted(texts[start : start + 8 * size], key=lengths.__getitem__)
        batches += [pool[first : first + size] for first in range(0, len(pool) - size + 1, size)]
    return batches
