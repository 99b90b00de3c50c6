"""What is asked of an image: the classes, and how they are described."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, cast

from pydantic import Field, InstanceOf, field_serializer, model_validator

from otpt.errors import OtptError
from otpt.files import Json
from otpt.groups import Groups, class_names_of
from otpt.methods.examples import Examples
from otpt.prompts import DEFAULT_PROMPT, Descriptions, Prompt, Templates, TextFeatures, check_class_names
from otpt.records import NO_OPTION, NOT_SERVED, Frozen

Texts = Prompt | Templates | Descriptions | TextFeatures
"""Texts of the classes; only a prompt has a context that methods can tune."""

_FORMS: Mapping[str, type[Prompt] | type[Templates] | type[Descriptions] | type[TextFeatures]] = {
    "prompt": Prompt,
    "templates": Templates,
    "descriptions": Descriptions,
    "text_features": TextFeatures,
}
"""Keywords that give the texts, by the class that reads their value."""


class Task(Frozen):
    """What is asked of an image.

    The texts may be given as ``prompt``, ``templates``, ``descriptions`` or ``text_features``, and descriptions also
    as ``classes={name: descriptions}``.

    Example:
        >>> Task(classes=["cat", "dog"], prompt="a sketch of a").texts.words
        'a sketch of a'
    """

    spellings: ClassVar[Mapping[str, str]] = dict.fromkeys(_FORMS, "texts")

    classes: tuple[str, ...] = Field((), description="class names; a single name predicts whether it is present")
    texts: InstanceOf[Prompt] | InstanceOf[Templates] | InstanceOf[Descriptions] | InstanceOf[TextFeatures] = Field(
        DEFAULT_PROMPT, description="prompt (default: 'a photo of a'), templates, descriptions or text features"
    )
    examples: InstanceOf[Examples] | None = Field(
        None,
        description="folder of example images with one sub-folder per class, for all or some of the classes",
        json_schema_extra={NOT_SERVED: "it needs image files, which only Python and the command line take"},
    )
    groups: InstanceOf[Groups] | None = Field(
        None, description="CSV file of class groups: a class, then its groups from narrow to broad"
    )
    multi_label: bool = Field(False, description="several labels per image, with independent probabilities")
    allow_duplicates: bool = Field(False, description="accept duplicate class names; ImageNet has two")
    all_tokens: bool = Field(
        False,
        description="tune all tokens of the context, even if a word has several tokens",
        json_schema_extra={NO_OPTION: "write --prompt-tokens N, the number of tokens to tune"},
    )

    @model_validator(mode="before")
    @classmethod
    def _read(cls, values: dict[str, object]) -> dict[str, object]:
        values = dict(values)
        if isinstance(values.get("classes"), Mapping):
            _read_described_classes(values)
        texts = _read_texts(values)
        if texts is not None:
            values["texts"] = texts
        classes = values.get("classes", ())
        if isinstance(classes, str):
            raise OtptError(f"The classes are the single string {classes!r}; expected a list.")
        if not isinstance(classes, Sequence):
            raise OtptError(f"The classes are {classes!r:.80}; expected a list of class names.")
        classes = tuple(classes)
        if not classes and values.get("groups") is not None:
            classes = class_names_of(values["groups"])
        if values.get("examples") is not None:
            examples = Examples.read(values["examples"], classes)
            if classes and classes != examples.names:
                raise OtptError(
                    f"The classes are {classes!r:.200}, but the examples are of {examples.names!r:.200}; give examples "
                    "of these classes."
                )
            values["examples"], classes = examples, examples.names
        if values.get("groups") is not None:
            values["groups"] = Groups.read(cast("str | Groups", values["groups"]), classes)
        return {**values, "classes": classes} if "classes" in values or classes else values

    @model_validator(mode="after")
    def _check(self) -> Task:
        if self.classes:
            self._check_texts()
            single = self.multi_label or (len(self.classes) == 1 and self.examples is None)
            check_class_names(self.classes, allow_duplicates=self.allow_duplicates, least=1 if single else 2)
        for name in ("groups", "examples"):
            if getattr(self, name) is not None and self.independent_labels:
                raise OtptError(
                    f"{name} cannot be combined with {self.question}; it requires exactly one label per image."
                )
        if self.examples is not None and not self.examples.texts and self.texts != DEFAULT_PROMPT:
            raise OtptError(
                f"The texts are {self.texts.name!r}, but all classes are known by example images; leave the texts out."
            )
        has_context = isinstance(self.texts, Prompt) and self.examples is None
        if self.all_tokens and (not has_context or self.independent_labels):
            raise OtptError("all_tokens tunes the context of a prompt, which these classes do not have; leave it out.")
        return self

    def _check_texts(self) -> None:
        """Raise an :class:`OtptError` for texts of another number of classes."""
        texts = self.texts
        count = len(self.classes)
        if isinstance(texts, Descriptions) and len(texts.texts) != count:
            raise OtptError(
                f"There are descriptions of {len(texts.texts)} classes and {count} class names; expected descriptions "
                "of each class."
            )

    @field_serializer("classes", when_used="json")
    def _classes_to_json(self, value: tuple[str, ...]) -> Json:
        by_examples = self.examples is not None and not self.examples.texts
        return [] if by_examples else list(value)  # class names next to examples would be texts

    @field_serializer("texts", "examples", "groups", when_used="json")
    def _to_json(self, value: Texts | Examples | Groups | None) -> Json:
        return None if value is None else value.to_json()

    @property
    def independent_labels(self) -> bool:
        """Whether each label has its own probability: several labels per image, or a single one."""
        return self.multi_label or (len(self.classes) == 1 and self.examples is None)

    @property
    def question(self) -> str:
        """What is asked, in the words of error messages."""
        return "multi_label" if self.multi_label else f"the single class {self.classes[0]!r}"

    @property
    def has_own_prompt(self) -> bool:
        """Whether a prompt other than the default was given."""
        return isinstance(self.texts, Prompt) and self.texts != DEFAULT_PROMPT

    @property
    def prompt(self) -> Prompt:
        """The prompt of words, or the default one where the texts are something else."""
        return self.texts if isinstance(self.texts, Prompt) else DEFAULT_PROMPT


def _read_described_classes(values: dict[str, object]) -> None:
    """Split ``classes={name: descriptions}`` into names and descriptions."""
    described = values["classes"]
    assert isinstance(described, Mapping)
    nested = next((name for name, texts in described.items() if isinstance(texts, Mapping)), None)
    if nested is not None:
        raise OtptError(
            f"The class {nested!r} is {described[nested]!r:.80}; expected one or more descriptions. Groups of classes "
            "are given as groups={…}, which may be nested."
        )
    if "descriptions" in values:
        raise OtptError("classes with descriptions and descriptions cannot be combined; pass only one of them.")
    values["descriptions"] = Descriptions.read({"descriptions": list(described.values())})
    values["classes"] = tuple(described)


def _read_texts(values: dict[str, object]) -> Texts | None:
    """Remove the keywords of texts from the values and return the texts, or None if there are none."""
    forms = [name for name in ("texts", *_FORMS) if values.get(name) is not None]
    if len(forms) > 1:
        raise OtptError(f"{' and '.join(forms)} cannot be combined; pass only one of them.")
    for name in ("texts", *_FORMS):
        if values.get(name) is None:
            values.pop(name, None)
    if not forms:
        return None
    value = values.pop(forms[0])
    return read_texts(value) if forms[0] == "texts" else _FORMS[forms[0]].read(value)


def read_texts(value: object) -> Texts:
    """Read texts from plain data: words, sentences with {}, or a mapping as :meth:`Prompt.to_json` returns it."""
    if isinstance(value, Texts):
        return value
    if isinstance(value, str):
        return Prompt.read(value)
    if isinstance(value, Mapping):
        if "descriptions" in value:
            return Descriptions.read(value)
        return Templates.read(value) if "sentences" in value else Prompt.read(value)
    return Templates.read(value)
