"""A prompt: the context that is tuned, as words, at random, or as learned vectors."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from otpt.errors import OtptError

if TYPE_CHECKING:
    from torch import Tensor

PLACE = "[CLS]"


@dataclass(frozen=True)
class Prompt:
    """Where the tunable context of a class text comes from.

    The text of class c is ``"{words} {name}."``, or has the name where ``words`` says ``[CLS]`` or ``{}``; underscores
    stand for spaces, and a full stop is always added. The context starts as the token embeddings of the words,
    unless ``vectors`` are given.

    Args:
        words: "a photo of a", "an example of", "a photo of [CLS] in the wild".
        tokens: number of tunable tokens. By default one per word, which requires every word to be a single token;
            with a number N, the first N tokens of the context are tuned and the others stay fixed.
        vectors: (n, W) initial values instead of the words' embeddings (random or learned contexts); (C, n, W) for
            a separate context per class.
        class_names: the class list that class-specific vectors belong to, where it is known.
    """

    words: str = "a photo of a"
    tokens: int | None = None
    vectors: Tensor | None = field(default=None, compare=False)
    class_names: tuple[str, ...] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        words = re.sub(r"\s+", " ", self.words.replace("_", " ").replace("{}", f" {PLACE} ")).strip()
        if words.count(PLACE) > 1:
            raise OtptError(
                f"The prompt {words!r} has the class name in {words.count(PLACE)} places; expected one {PLACE} at most."
            )
        # The full stop is added later; a name at the end is its default place.
        words = words.removesuffix(".").strip().removesuffix(PLACE).strip()
        object.__setattr__(self, "words", words)
        if not self.context:
            raise OtptError(
                f"The prompt {self.words!r} has no context words to tune; expected some, such as 'a photo of a'."
            )
        if self.tokens is not None and self.tokens < 1:
            raise OtptError(f"The number of tunable tokens is {self.tokens}; expected at least 1.")

    @classmethod
    def random(cls, tokens: int = 4, *, width: int, seed: int = 0, std: float = 0.02) -> Prompt:
        """A context drawn from N(0, std²), reproducible from the seed."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        return cls.learned(std * torch.randn(tokens, width, generator=generator))

    @classmethod
    def learned(cls, vectors: Tensor, *, class_names: tuple[str, ...] | None = None) -> Prompt:
        """A context of given vectors (n, W), such as one trained by CoOp; or (C, n, W), one for each class."""
        if vectors.ndim not in {2, 3} or not vectors.isfinite().all():
            raise OtptError(
                f"Context vectors have shape {tuple(vectors.shape)}; "
                "expected (tokens, width) or (classes, tokens, width), all finite."
            )
        return cls(words=" ".join(["x"] * vectors.shape[-2]), vectors=vectors, class_names=class_names)

    @property
    def name(self) -> str:
        """What the prompt is called in results and tables."""
        name = self.words if self.vectors is None else f"vectors {str(self.digest)[:8]}"
        return name if self.tokens is None else f"{name} ({self.tokens} tokens tuned)"

    @property
    def digest(self) -> str | None:
        """32 hexadecimal digits of the vectors; None for a context of words."""
        if self.vectors is None:
            return None
        return hashlib.sha256(self.vectors.detach().cpu().double().numpy().tobytes()).hexdigest()[:32]

    @property
    def context(self) -> str:
        """The context's words alone, in order."""
        return " ".join(part.strip() for part in self.words.split(PLACE) if part.strip())

    @property
    def before(self) -> str:
        """The context's words before the class name; all of them unless the prompt says ``[CLS]``."""
        return self.words.split(PLACE)[0].strip()

    def sentence(self, name: str) -> str:
        """The whole text of a class, full stop included.

        >>> Prompt("a_photo_of_a").sentence("red_panda")
        'a photo of a red panda.'
        """
        name = name.replace("_", " ")
        text = self.words.replace(PLACE, name) if PLACE in self.words else f"{self.words} {name}"
        return f"{text}."
