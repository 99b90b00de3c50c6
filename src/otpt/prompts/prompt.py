"""Texts of classes: prompts with a tunable context, templates, descriptions, or precomputed text features.

Each class reads plain data (``read``) and returns them (``to_json``). Vectors and features in memory are written as a
digest only; objects with different digests are not equal.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import resources
from typing import NamedTuple, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from otpt.arrays import to_tensor
from otpt.errors import OtptError
from otpt.files import Json

PLACE = "[CLS]"
"""Placeholder of the class name in a prompt, equivalent to "{}"."""
BRACES = "{}"
"""Placeholder of the class name in a template."""
GENERAL = "a photo of a {}."
"""Default template of data sets."""
UNNAMED = "templates"
"""Name of templates without a name."""


def _refuse_braces(what: str, text: str) -> None:
    """Raise an :class:`OtptError` for braces that are not the place of the class name, as in ``{name}``."""
    rest = text.replace(BRACES, "")
    if "{" in rest or "}" in rest:
        raise OtptError(
            f"The {what} {text!r} has braces with something else than {BRACES}; write {BRACES} for the name."
        )


@dataclass(frozen=True, eq=False, repr=False)
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
    vectors: Tensor | None = None
    class_names: tuple[str, ...] | None = None
    context: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.words, str):
            raise OtptError(
                f"The words of the prompt are {_short(self.words)}; expected a text such as 'a photo of a'."
            )
        if self.tokens is not None and (isinstance(self.tokens, bool) or not isinstance(self.tokens, int)):
            raise OtptError(f"The number of tunable tokens is {_short(self.tokens)}; expected an integer.")
        if self.vectors is not None and not isinstance(self.vectors, Tensor):
            raise OtptError(f"The vectors of the prompt are {_short(self.vectors)}; expected a tensor (tokens, width).")
        _refuse_braces("prompt", self.words)
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

    @classmethod
    def read(cls, value: object) -> Self:
        """Return the prompt of context words, ``{"words": …, "tokens": …}``, or a prompt."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls(value)
        if not isinstance(value, Mapping):
            raise OtptError(f"The prompt is {_short(value)}; expected context words such as 'a photo of a'.")
        _check_keys("The prompt has", value, ("words", "tokens"))
        words, tokens = value.get("words", cls.words), value.get("tokens")
        if not isinstance(words, str):
            raise OtptError(f"The words of the prompt are {_short(words)}; expected a string such as 'a photo of a'.")
        if tokens is not None and (not isinstance(tokens, int) or isinstance(tokens, bool)):
            raise OtptError(f"The number of tunable tokens is {_short(tokens)}; expected an integer of at least 1.")
        return cls(words, tokens)

    def to_json(self) -> Json:
        """Return plain data for :meth:`read`, or the digest of the vectors."""
        if self.vectors is not None:
            return {"vectors": self.digest}
        words = (
            f"{self.words}." if self.words.endswith(".") else self.words
        )  # the full stop that is removed on creation
        return words if self.tokens is None else {"words": words, "tokens": self.tokens}

    def __repr__(self) -> str:
        if self.vectors is None:
            return f"Prompt({self.words!r})" if self.tokens is None else f"Prompt({self.words!r}, tokens={self.tokens})"
        return f"Prompt(vectors: {tuple(self.vectors.shape)}, digest={self.digest!r})"

    def __eq__(self, other: object) -> bool:
        return self._content == other._content if isinstance(other, Prompt) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._content)

    @property
    def _content(self) -> tuple[object, ...]:
        shape = None if self.vectors is None else tuple(self.vectors.shape)
        return self.words, self.tokens, shape, self.digest, self.class_names

    @property
    def name(self) -> str:
        """Name of the prompt in results and tables."""
        name = self.words if self.vectors is None else f"vectors {str(self.digest)[:8]}"
        return name if self.tokens is None else f"{name} ({self.tokens} tokens tuned)"

    @cached_property
    def digest(self) -> str | None:
        """Digest of the vectors as 32 hexadecimal digits, or None without vectors."""
        if self.vectors is None:
            return None
        return _tensor_digest(self.vectors)

    def sentence(self, name: str) -> str:
        """Return the text of a class.

        >>> Prompt("a_photo_of_a").sentence("red_panda")
        'a photo of a red panda.'
        """
        name = name.replace("_", " ")
        text = self.words.replace(PLACE, name) if PLACE in self.words else f"{self.words} {name}"
        return f"{text}."


DEFAULT_PROMPT = Prompt()
"""Prompt used if the settings contain none."""


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
        wrong = [text for text in self.sentences if not isinstance(text, str) or text.count(BRACES) != 1]
        if wrong:
            raise OtptError(
                f"The template {wrong[0]!r} of {self.name!r} does not contain {BRACES} exactly once; expected a "
                f"sentence such as {GENERAL!r}."
            )
        for sentence in self.sentences:
            _refuse_braces("template", sentence)

    @classmethod
    def read(cls, value: object) -> Self:
        """Return the templates of a list of sentences, ``{"name": …, "sentences": […]}``, or templates.

        Instead of a sentence there may be a function of the class name, as in open_clip. A list gets the name
        "templates".
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, Mapping):
            _check_keys("The templates have", value, ("name", "sentences"))
            name, sentences = value.get("name", UNNAMED), value.get("sentences", ())
        else:
            name, sentences = UNNAMED, value
        if not isinstance(name, str):
            raise OtptError(f"The name of the templates is {_short(name)}; expected a string such as 'mine'.")
        if isinstance(sentences, str):
            return cls(name, sentences)  # raises the error for a single string
        if not isinstance(sentences, list | tuple):
            raise OtptError(f"The templates are {_short(sentences)}; expected a list of sentences such as {GENERAL!r}.")
        return cls(name, [text(BRACES) if callable(text) else text for text in sentences])

    def to_json(self) -> Json:
        """Return plain data for :meth:`read`."""
        return {"name": self.name, "sentences": list(self.sentences)}

    @cached_property
    def digest(self) -> str:
        """Digest of the sentences as 32 hexadecimal digits."""
        return hashlib.sha256(json.dumps(self.sentences).encode()).hexdigest()[:32]

    def texts(self, names: Sequence[str]) -> list[list[str]]:
        """Return the text of each class for each template, with underscores in names replaced by spaces."""
        spoken = [name.replace("_", " ") for name in names]
        return [[sentence.replace(BRACES, name) for name in spoken] for sentence in self.sentences]


class _Published(NamedTuple):
    """Published sentences, by the name of the list and by data set."""

    templates: Mapping[str, Sequence[str]]
    datasets: Mapping[str, Sequence[str]]


@cache
def _published() -> _Published:
    text = resources.files(__package__).joinpath("templates.json").read_text(encoding="utf-8")
    content = json.loads(text)
    datasets = content.pop("datasets")
    return _Published(content, datasets)


def published_templates(name: str) -> Templates:
    """Return CLIP's templates for ImageNet (``templates-80``) or the subset used by Tip-Adapter (``templates-7``)."""
    return Templates(name, _published().templates[name])


def dataset_templates(dataset: str) -> Templates:
    """Return CoOp's hand-written template of a data set, by default "a photo of a {}."."""
    return Templates("dataset-templates", _published().datasets.get(dataset, [GENERAL]))


def template_datasets() -> Sequence[str]:
    """Return the names of the data sets that have a published template."""
    return list(_published().datasets)


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
        texts = tuple((sentences,) if isinstance(sentences, str) else tuple(sentences) for sentences in self.texts)
        for position, sentences in enumerate(texts, start=1):
            wrong = [text for text in sentences if not isinstance(text, str) or not text.strip()]
            if not sentences or wrong:
                problem = f"the description {wrong[0]!r}" if wrong else "no description"
                raise OtptError(f"Class {position} of {len(texts)} has {problem}; expected one or more sentences.")
        object.__setattr__(self, "texts", texts)

    @classmethod
    def read(cls, value: object) -> Self:
        """Return the descriptions of ``{"descriptions": [one or more sentences per class]}``, or descriptions."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping) or "descriptions" not in value:
            raise OtptError(
                f"The descriptions are {_short(value)}; expected {{'descriptions': [sentences per class]}}."
            )
        _check_keys("The descriptions have", value, ("descriptions", "name"))
        texts, name = value["descriptions"], value.get("name", cls.name)
        if not isinstance(texts, list | tuple):
            raise OtptError(f"The descriptions are {_short(texts)}; expected a list with sentences per class.")
        wrong = [sentences for sentences in texts if not isinstance(sentences, str | list | tuple)]
        if wrong:
            raise OtptError(f"The descriptions of a class are {_short(wrong[0])}; expected one or more sentences.")
        if not isinstance(name, str):
            raise OtptError(f"The name of the descriptions is {_short(name)}; expected a string such as 'mine'.")
        return cls(texts, name)

    def to_json(self) -> Json:
        """Return plain data for :meth:`read`."""
        texts: Json = [list(sentences) for sentences in self.texts]
        is_default = self.name == type(self).name
        return {"descriptions": texts} if is_default else {"descriptions": texts, "name": self.name}


@dataclass(frozen=True, eq=False)
class TextFeatures:
    """Precomputed text features (C, D), normalised on creation."""

    features: Tensor
    name: str = "text features"

    def __post_init__(self) -> None:
        features = to_tensor(self.features, "text features", "floats").detach()
        if features.ndim != 2 or not features.is_floating_point() or not bool(features.isfinite().all()):
            raise OtptError(
                f"The text features have shape {tuple(features.shape)} and type {features.dtype}; expected finite "
                "floats of shape (classes, dimensions)."
            )
        if bool((features == 0).all(dim=1).any()):
            raise OtptError("The text features of a class are all zero; expected nonzero features for each class.")
        object.__setattr__(self, "features", F.normalize(features, dim=-1))

    @classmethod
    def read(cls, value: object) -> Self:
        """Return the text features of a tensor or array (C, D), or text features."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, (Tensor, np.ndarray)):
            raise OtptError(
                f"The text features are {_short(value)}; expected a tensor or an array of shape (classes, dimensions)."
            )
        return cls(to_tensor(value, "text features", "floats"))

    def to_json(self) -> Json:
        """Return the digest of the features."""
        return {"text_features": self.digest}

    @cached_property
    def digest(self) -> str:
        """Digest of the normalised features as 32 hexadecimal digits."""
        return _tensor_digest(self.features)

    def __eq__(self, other: object) -> bool:
        return self._content == other._content if isinstance(other, TextFeatures) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._content)

    @property
    def _content(self) -> tuple[object, ...]:
        return self.name, tuple(self.features.shape), self.digest


FixedTexts: TypeAlias = Templates | Descriptions | TextFeatures
"""Texts without a tunable context, in place of a prompt."""


def _tensor_digest(tensor: Tensor) -> str:
    """Return a digest of the values in float64, without the shape."""
    return hashlib.sha256(tensor.detach().cpu().double().numpy().tobytes()).hexdigest()[:32]


def _check_keys(subject: str, value: Mapping[object, object], expected: Collection[str]) -> None:
    unknown = [key for key in value if key not in expected]
    if unknown:
        names = " and ".join(repr(name) for name in expected)
        raise OtptError(f"{subject} the field {unknown[0]!r}; expected {names}.")


def _short(value: object) -> str:
    """Return a representation for messages of at most 100 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 100 else f"{text[:97]}..."
