"""What is said of a class: a prompt with a tunable context, templates, descriptions, or given text features."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from otpt.errors import OtptError

PLACE = "[CLS]"
"""Place of the class name in a prompt; "{}" means the same."""
BRACES = "{}"
"""Place of the class name in a template."""
GENERAL = "a photo of a {}."
"""Template of data sets that have none of their own."""


@dataclass(frozen=True)
class Prompt:
    """Where the tunable context of a class text comes from.

    The text of class c is ``"{words} {name}."``, or has the name where ``words`` says ``[CLS]`` or ``{}``; underscores
    mean spaces, and a full stop is always added. The context starts as the token embeddings of the words, unless
    ``vectors`` are given.

    Args:
        words: "a photo of a", "an example of", "a photo of [CLS] in the wild".
        tokens: number of tunable tokens. By default one per word, which requires every word to be a single token;
            with a number N, the first N tokens of the context are tuned and the others are fixed.
        vectors: (n, W) initial values instead of the words' embeddings (random or learned contexts); (C, n, W) for
            a separate context per class.
        class_names: the class list that class-specific vectors belong to, where it is known.

    Attributes:
        context: the context's words alone, in order.

    Example:
        >>> Prompt("a photo of [CLS] in the wild").sentence("red panda")
        'a photo of red panda in the wild.'
    """

    words: str = "a photo of a"
    tokens: int | None = None
    vectors: Tensor | None = field(default=None, compare=False)
    class_names: tuple[str, ...] | None = field(default=None, compare=False)
    context: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        words = re.sub(r"\s+", " ", self.words.replace("_", " ").replace(BRACES, f" {PLACE} ")).strip()
        if words.count(PLACE) > 1:
            raise OtptError(
                f"The prompt {self.words!r} has the class name in {words.count(PLACE)} places; expected one at most."
            )
        # the full stop is added later; the end is the default place of the name
        words = words.removesuffix(".").strip().removesuffix(PLACE).strip()
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "context", " ".join(part.strip() for part in words.split(PLACE) if part.strip()))
        if not self.context:
            raise OtptError(
                f"The prompt {self.words!r} has no context words to tune; expected some, such as 'a photo of a'."
            )
        if self.tokens is not None and self.tokens < 1:
            raise OtptError(f"The number of tunable tokens is {self.tokens}; expected at least 1.")

    @classmethod
    def random(cls, tokens: int = 4, *, width: int, seed: int = 0, std: float = 0.02) -> Prompt:
        """A context drawn from N(0, std²), reproducible from the seed."""
        generator = torch.Generator().manual_seed(seed)
        return cls.learned(std * torch.randn(tokens, width, generator=generator))

    @classmethod
    def learned(cls, vectors: Tensor, *, class_names: tuple[str, ...] | None = None) -> Prompt:
        """A context of vectors (n, W), such as one trained by CoOp; or (C, n, W), one per class."""
        if vectors.ndim not in {2, 3} or not vectors.isfinite().all():
            raise OtptError(
                f"Context vectors have shape {tuple(vectors.shape)}; "
                "expected (tokens, width) or (classes, tokens, width), all finite."
            )
        return cls(words=" ".join(["x"] * vectors.shape[-2]), vectors=vectors, class_names=class_names)

    @property
    def name(self) -> str:
        """Name of the prompt in results and tables."""
        name = self.words if self.vectors is None else f"vectors {str(self.digest)[:8]}"
        return name if self.tokens is None else f"{name} ({self.tokens} tokens tuned)"

    @property
    def digest(self) -> str | None:
        """32 hexadecimal digits of the vectors; None for a context of words."""
        if self.vectors is None:
            return None
        return hashlib.sha256(self.vectors.detach().cpu().double().numpy().tobytes()).hexdigest()[:32]

    def sentence(self, name: str) -> str:
        """The whole text of a class, full stop included.

        >>> Prompt("a_photo_of_a").sentence("red_panda")
        'a photo of a red panda.'
        """
        name = name.replace("_", " ")
        text = self.words.replace(PLACE, name) if PLACE in self.words else f"{self.words} {name}"
        return f"{text}."


DEFAULT_PROMPTS = (Prompt(),)
"""Prompts of settings that name none."""


@dataclass(frozen=True)
class Templates:
    """Sentences such as "a photo of a {}.", with ``{}`` for the class name; their text features are averaged.

    Args:
        name: shown in the results.
        sentences: one or more.

    Example:
        >>> Templates("mine", ["{} texture.", "a photo of a {}, from above."]).texts(["polka_dotted"])
        [['polka dotted texture.'], ['a photo of a polka dotted, from above.']]
    """

    name: str
    sentences: Sequence[str]

    def __post_init__(self) -> None:
        if isinstance(self.sentences, str):
            raise OtptError(f"The templates {self.name!r} are the single text {self.sentences!r}; expected a list.")
        object.__setattr__(self, "sentences", tuple(self.sentences))
        if not self.name.strip():
            raise OtptError("The templates have a blank name; expected one for the results, such as 'mine'.")
        if not self.sentences:
            raise OtptError(
                f"The templates {self.name!r} hold no sentence; expected one at least, such as {GENERAL!r}."
            )
        wrong = [each for each in self.sentences if not isinstance(each, str) or each.count(BRACES) != 1]
        if wrong:
            raise OtptError(
                f"The template {wrong[0]!r} of {self.name!r} does not have the class name in one place; expected a "
                f"sentence with one {BRACES}, such as {GENERAL!r}."
            )

    @property
    def digest(self) -> str:
        """32 hexadecimal digits of the sentences."""
        return hashlib.sha256(json.dumps(self.sentences).encode()).hexdigest()[:32]

    def texts(self, names: Sequence[str]) -> list[list[str]]:
        """For each template the text of each class; underscores of names become spaces."""
        spoken = [name.replace("_", " ") for name in names]
        return [[sentence.replace(BRACES, name) for name in spoken] for sentence in self.sentences]


@cache
def _published() -> Mapping[str, Any]:
    text = resources.files(__package__).joinpath("templates.json").read_text(encoding="utf-8")
    found: Mapping[str, Any] = json.loads(text)
    return found


def published_templates(name: str) -> Templates:
    """``templates-80``, CLIP's for ImageNet; or ``templates-7``, the subset of them that Tip-Adapter takes."""
    return Templates(name, _published()[name])


def dataset_templates(dataset: str) -> Templates:
    """CoOp's hand-written template of a data set; "a photo of a {}." for one that has none, or has no name."""
    return Templates("dataset-templates", _published()["datasets"].get(dataset, [GENERAL]))


@dataclass(frozen=True)
class Descriptions:
    """One or more whole sentences about each class; the text features of a class are averaged.

    Args:
        texts: (C, any number), in the order of the classes.
    """

    texts: Sequence[Sequence[str]]
    name: str = "descriptions"

    def __post_init__(self) -> None:
        found = tuple((own,) if isinstance(own, str) else tuple(own) for own in self.texts)
        for position, own in enumerate(found, start=1):
            wrong = next((text for text in own if not isinstance(text, str) or not text.strip()), None)
            if not own or wrong is not None:
                given = "no description" if not own else f"the description {wrong!r}"
                raise OtptError(f"Class {position} of {len(found)} has {given}; expected at least one sentence each.")
        object.__setattr__(self, "texts", found)


@dataclass(frozen=True)
class TextFeatures:
    """Text features (C, D) that were computed elsewhere; they are scaled to unit norm."""

    features: Tensor = field(compare=False)
    name: str = "text features"

    def __post_init__(self) -> None:
        given = torch.as_tensor(self.features).detach()
        if given.ndim != 2 or not given.is_floating_point() or not bool(given.isfinite().all()):
            raise OtptError(
                f"Text features have shape {tuple(given.shape)} and type {given.dtype}; expected finite floats, "
                "(classes, dimensions)."
            )
        if bool((given == 0).all(dim=1).any()):
            raise OtptError("The text features of a class are all zero; expected a direction for each class.")
        object.__setattr__(self, "features", F.normalize(given, dim=-1))


FixedTexts: TypeAlias = Templates | Descriptions | TextFeatures
"""What can replace a prompt; there is no context to tune."""
