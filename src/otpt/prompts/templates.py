"""Templates: whole sentences with a place for the class name, whose text features are averaged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from otpt.errors import OtptError

PLACE = "{}"
GENERAL = "a photo of a {}."
"""For data sets without a template of their own."""


@dataclass(frozen=True)
class Templates:
    """Sentences such as "a photo of a {}.", with ``{}`` for the class name; they are taken as they are.

    Args:
        name: what they are called in the results.
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
        for sentence in self.sentences:
            if not isinstance(sentence, str) or sentence.count(PLACE) != 1:
                raise OtptError(
                    f"The template {sentence!r} of {self.name!r} does not have the class name in one place; expected a "
                    f"sentence with one {PLACE}, such as {GENERAL!r}."
                )

    @property
    def digest(self) -> str:
        """32 hexadecimal digits of the sentences."""
        return hashlib.sha256(json.dumps(self.sentences).encode()).hexdigest()[:32]

    def texts(self, names: Sequence[str]) -> list[list[str]]:
        """For each template the text of each class; underscores of names become spaces."""
        spoken = [name.replace("_", " ") for name in names]
        return [[sentence.replace(PLACE, name) for name in spoken] for sentence in self.sentences]


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
