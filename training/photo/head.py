"""Directions of ImageNet's classes: near the text of the class, and nearer to its hypernyms than to other texts.

"ostrich" alone is hardly nearer to "bird" than to "egg". Each direction therefore starts as the text feature of its
class and is moved so that, among the names of all classes and of all their hypernyms in WordNet, its own name and its
hypernyms' have the largest cosines. A penalty keeps it near its start, for the nouns that are neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from timm.data import ImageNetInfo
from torch import Tensor

from .student import PLAIN, TextTower, Vocabulary


@dataclass(frozen=True)
class HeadRecipe:
    """Numbers of the fit, chosen on cut-out photographs (``scale.py``) by their names and by their topics."""

    most_classes: int = 250  # hypernyms of more of ImageNet's classes are too abstract
    scale: float = 20.0
    hypernym: float = 0.5  # weight of a hypernym, next to 1 for the class
    stay: float = 3.0  # weight of the squared distance to the start
    same: float = 0.97  # texts that are nearer to a correct one than this are not wrong
    steps: int = 60
    rate: float = 5e-3


def read_hypernyms(file: Path) -> tuple[dict[str, str], list[list[str]]]:
    """Read ``data.noun``; return the first word of each synset, and all hypernyms of each of ImageNet's classes."""
    words: dict[str, str] = {}
    parents: dict[str, list[str]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):  # the licence
            continue
        fields = line.split(" | ")[0].split()
        offset, count = fields[0], int(fields[3], 16)
        words[offset] = fields[4].replace("_", " ")
        pointers = fields[5 + 2 * count :]  # symbol, offset, part of speech, words
        parents[offset] = [
            pointers[i + 1] for i in range(0, 4 * int(fields[4 + 2 * count]), 4) if pointers[i][0] == "@"
        ]
    chains = []
    for synset in ImageNetInfo("imagenet-1k").label_names():
        chain: dict[str, None] = {}
        level = [synset.removeprefix("n")]
        while level:
            level = [parent for offset in level for parent in parents[offset] if parent not in chain]
            chain.update(dict.fromkeys(level))
        chains.append(list(chain))
    return words, chains


@torch.no_grad()
def encode(tower: TextTower, vocabulary: Vocabulary, names: Sequence[str]) -> Tensor:
    """Return unit text features (N, D - 1) of names in the plain template."""
    prefix, suffix = PLAIN
    return tower(*vocabulary.tokenize(prefix, [name + suffix for name in names]))


def fit_directions(
    tower: TextTower, vocabulary: Vocabulary, classes: Sequence[str], file: Path, recipe: HeadRecipe
) -> Tensor:
    """Return directions (1000, D - 1) with mean zero and mean length 1; ``file`` is WordNet's ``data.noun``."""
    words, chains = read_hypernyms(file)
    members: dict[str, list[int]] = {}
    for number, chain in enumerate(chains):
        for offset in chain:
            members.setdefault(offset, []).append(number)
    hypernyms = [
        offset
        for offset in sorted(members)
        if len(members[offset]) <= recipe.most_classes and vocabulary.contains(words[offset] + PLAIN[1])
    ]
    names = encode(tower, vocabulary, classes)
    texts = torch.cat([names, encode(tower, vocabulary, [words[offset] for offset in hypernyms])])
    centre = names.mean(0)
    correct = torch.zeros(len(classes), len(texts), dtype=torch.bool)
    correct.fill_diagonal_(True)
    for column, offset in enumerate(hypernyms, start=len(classes)):
        correct[members[offset], column] = True
    weights = correct.float()
    weights[:, len(classes) :] *= recipe.hypernym
    weights /= weights.sum(1, keepdim=True)
    centred = F.normalize(texts - centre, dim=-1)
    alike = (centred @ centred.T > recipe.same).float()
    wrong = correct.float() @ alike == 0
    start = names - centre
    directions = start.clone().requires_grad_(True)
    optimiser = torch.optim.Adam([directions], lr=recipe.rate)
    for _ in range(recipe.steps):
        logits = recipe.scale * F.normalize(directions, dim=-1) @ texts.T
        others = logits.masked_fill(~wrong, -torch.inf).logsumexp(1, keepdim=True)
        losses = torch.logaddexp(logits, others) - logits  # of each correct text among the wrong ones
        loss = (weights * losses).sum(1).mean() + recipe.stay * (directions - start).square().sum(1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    found = directions.detach() - directions.detach().mean(0)
    return found / found.norm(dim=-1).mean()
