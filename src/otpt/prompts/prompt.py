"""Texts of classes: prompts with a tunable context, templates, descriptions, or precomputed text features."""

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
"""Placeholder of the class name in a prompt, equivalent to "{}"."""
BRACES = "{}"
"""Placeholder of the class name in a template."""
GENERAL = "a photo of a {}."
"""Default template of data sets."""


@dataclass(frozen=True)
class Prompt:
    """Prompt with a tunable context.

    The text of a class is ``"{words} {name}."``, or ``words`` with the name instead of ``[CLS]`` or ``{}``; underscores
    become spaces, and a full stop is added. The context is initialised with the token embeddings of the words
    unless ``vectors`` is set.

    Args:
        words: context words, such as "a photo of a" or "a photo of [CLS] in the wild".
        tokens: number N of tunable tokens, the first N tokens of the context; by default one per word, which requires
            every word to be a single token.
        vectors: initial context (n, W), or (C, n, W) for one context per class, instead of the words' embeddings.
        class_names: class names of class-specific vectors, if known.

    Attributes:
        context: context words without the placeholder.

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
                f"The prompt {self.words!r} has the class name in {words.count(PLACE)} places; expected at most one."
            )
        # sentence() adds the full stop, and appends the name by default
        words = words.removesuffix(".").strip().removesuffix(PLACE).strip()
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "context", " ".join(part.strip() for part in words.split(PLACE) if part.strip()))
        if not self.context:
            raise OtptError(f"The prompt {self.words!r} has no context words; expected words such as 'a photo of a'.")
        if self.tokens is not None and self.tokens < 1:
            raise OtptError(f"The number of tunable tokens is {self.tokens}; expected at least 1.")

    @classmethod
    def random(cls, tokens: int = 4, *, width: int, seed: int = 0, std: float = 0.02) -> Prompt:
        """Create a prompt with a random context drawn from N(0, std²)."""
        generator = torch.Generator().manual_seed(seed)
        return cls.learned(std * torch.randn(tokens, width, generator=generator))

    @classmethod
    def learned(cls, vectors: Tensor, *, class_names: tuple[str, ...] | None = None) -> Prompt:
        """Create a prompt from context vectors (n, W), or (C, n, W) for one context per class."""
        if vectors.ndim not in {2, 3} or not vectors.isfinite().all():
            raise OtptError(
                f"The context vectors have shape {tuple(vectors.shape)}; expected finite values of shape "
                "(tokens, width) or (classes, tokens, width)."
            )
        return cls(words=" ".join(["x"] * vectors.shape[-2]), vectors=vectors, class_names=class_names)

    @property
    def name(self) -> str:
        """Name of the prompt in results and tables."""
        name = self.words if self.vectors is None else f"vectors {str(self.digest)[:8]}"
        return name if self.tokens is None else f"{name} ({self.tokens} tokens tuned)"

    @property
    def digest(self) -> str | None:
        """Digest of the vectors as 32 hexadecimal digits, or None without vectors."""
        if self.vectors is None:
            return None
        return hashlib.sha256(self.vectors.detach().cpu().double().numpy().tobytes()).hexdigest()[:32]

    def sentence(self, name: str) -> str:
        """Return the text of a class.

        >>> Prompt("a_photo_of_a").sentence("red_panda")
        'a photo of a red panda.'
        """
        name = name.replace("_", " ")
        text = self.words.replace(PLACE, name) if PLACE in self.words else f"{self.words} {name}"
        return f"{text}."


DEFAULT_PROMPTS = (Prompt(),)
"""Prompts used if the settings contain none."""


@dataclass(frozen=True)
class Templates:
    """Sentences with ``{}`` for the class name, such as "a photo of a {}."; their text features are averaged.

    Args:
        name: name in results.
        sentences: one or more sentences.

    Example:
        >>> Templates("mine", ["{} texture.", "a photo of a {}, from above."]).texts(["polka_dotted"])
        [['polka dotted texture.'], ['a photo of a polka dotted, from above.']]
    """

    name: str
    sentences: Sequence[str]

    def __post_init__(self) -> None:
        if isinstance(self.sentences, str):
            raise OtptError(f"The templates {self.name!r} are the single string {self.sentences!r}; expected a list.")
        object.__setattr__(self, "sentences", tuple(self.sentences))
        if not self.name.strip():
            raise OtptError(f"The name of the templates is blank ({self.name!r}); expected a name such as 'mine'.")
        if not self.sentences:
            raise OtptError(
                f"The templates {self.name!r} are empty; expected at least one sentence, such as {GENERAL!r}."
            )
        wrong = [each for each in self.sentences if not isinstance(each, str) or each.count(BRACES) != 1]
        if wrong:
            raise OtptError(
                f"The template {wrong[0]!r} of {self.name!r} does not contain {BRACES} exactly once; expected a "
                f"sentence such as {GENERAL!r}."
            )

    @property
    def digest(self) -> str:
        """Digest of the sentences as 32 hexadecimal digits."""
        return hashlib.sha256(json.dumps(self.sentences).encode()).hexdigest()[:32]

    def texts(self, names: Sequence[str]) -> list[list[str]]:
        """Return the text of each class for each template, with underscores in names replaced by spaces."""
        spoken = [name.replace("_", " ") for name in names]
        return [[sentence.replace(BRACES, name) for name in spoken] for sentence in self.sentences]


@cache
def _published() -> Mapping[str, Any]:
    text = resources.files(__package__).joinpath("templates.json").read_text(encoding="utf-8")
    found: Mapping[str, Any] = json.loads(text)
    return found


def published_templates(name: str) -> Templates:
    """Return CLIP's templates for ImageNet (``templates-80``) or the subset used by Tip-Adapter (``templates-7``)."""
    return Templates(name, _published()[name])


def dataset_templates(dataset: str) -> Templates:
    """Return CoOp's hand-written template of a data set, by default "a photo of a {}."."""
    return Templates("dataset-templates", _published()["datasets"].get(dataset, [GENERAL]))


@dataclass(frozen=True)
class Descriptions:
    """Sentences that describe each class; the text features of a class are averaged.

    Args:
        texts: one or more sentences per class, in the order of the classes.
        name: name in results.
    """

    texts: Sequence[Sequence[str]]
    name: str = "descriptions"

    def __post_init__(self) -> None:
        found = tuple((own,) if isinstance(own, str) else tuple(own) for own in self.texts)
        for position, own in enumerate(found, start=1):
            wrong = next((text for text in own if not isinstance(text, str) or not text.strip()), None)
            if not own or wrong is not None:
                given = "no description" if not own else f"the description {wrong!r}"
                raise OtptError(f"Class {position} of {len(found)} has {given}; expected one or more sentences.")
        object.__setattr__(self, "texts", found)


@dataclass(frozen=True)
class TextFeatures:
    """Precomputed text features (C, D), normalised on creation."""

    features: Tensor = field(compare=False)
    name: str = "text features"

    def __post_init__(self) -> None:
        given = torch.as_tensor(self.features).detach()
        if given.ndim != 2 or not given.is_floating_point() or not bool(given.isfinite().all()):
            raise OtptError(
                f"The text features have shape {tuple(given.shape)} and type {given.dtype}; expected finite floats of "
                "shape (classes, dimensions)."
            )
        if bool((given == 0).all(dim=1).any()):
            raise OtptError("The text features of a class are all zero; expected nonzero features for each class.")
        object.__setattr__(self, "features", F.normalize(given, dim=-1))


FixedTexts: TypeAlias = Templates | Descriptions | TextFeatures
"""Texts without a tunable context, in place of a prompt."""
