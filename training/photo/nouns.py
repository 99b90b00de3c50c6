"""The texts to learn: ImageNet's class names and the nouns and glosses of WordNet."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

from open_clip import IMAGENET_CLASSNAMES

# WordNet's files of nouns for what can be photographed: animal, artifact, body, food, location, object, person,
# phenomenon, plant, shape, substance
_VISIBLE = {5, 6, 8, 13, 15, 17, 18, 19, 20, 25, 27}
_NOUN = re.compile(r"[a-z][a-z' \-]{1,28}")  # no proper names, no digits
_GLOSS_WORDS = 9
RARE, GLOSSES = 17_000, 4_000  # sampled


@dataclass(frozen=True)
class Texts:
    """Nouns by how often they are repeated in an epoch, and glosses, which are learned without a template."""

    imagenet: list[str]
    common: list[str]
    rare: list[str]
    glosses: list[str]

    @property
    def nouns(self) -> list[str]:
        """All nouns, each once, ImageNet's classes first in their order."""
        return list(dict.fromkeys([*self.imagenet, *self.common, *self.rare]))


def read_texts(folder: Path) -> Texts:
    """Read the nouns of things that can be photographed, all nouns that occur in WordNet's texts, and short glosses."""
    counts = _occurrences(folder / "index.noun")
    common: dict[str, None] = {}
    rare: dict[str, None] = {}
    glosses: dict[str, None] = {}
    for line in (folder / "data.noun").read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):  # the licence
            continue
        entry, _, gloss = line.partition(" | ")
        fields = entry.split()
        visible = int(fields[1]) in _VISIBLE
        count = int(fields[3], 16)
        nouns = [word.replace("_", " ") for word in fields[4 : 4 + 2 * count : 2]]
        nouns = [noun for noun in nouns if _NOUN.fullmatch(noun)]
        for noun in nouns:
            if counts.get(noun, 0) > 0:
                common[noun] = None
            elif visible:
                rare[noun] = None
        definition = re.split(r"[;\"(]", gloss)[0].strip(" :,")
        if visible and nouns and 3 <= len(definition.split()) <= _GLOSS_WORDS:
            glosses[definition] = None
    draw = random.Random(0)
    return Texts(
        imagenet=list(IMAGENET_CLASSNAMES),
        common=list(common),
        rare=draw.sample([noun for noun in rare if noun not in common], RARE),
        glosses=draw.sample(list(glosses), GLOSSES),
    )


def _occurrences(index: Path) -> dict[str, int]:
    """Return how many senses of each noun occur in WordNet's tagged texts."""
    counts = {}
    for line in index.read_text(encoding="utf-8").splitlines():
        if not line.startswith(" "):
            fields = line.split()
            pointers = int(fields[3])
            counts[fields[0].replace("_", " ")] = int(fields[5 + pointers])
    return counts
