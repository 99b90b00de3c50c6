"""Inits from words, attributes and templates."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from pydantic import Field, InstanceOf

from otpt.backbones import text_encoder
from otpt.errors import OtptError
from otpt.files import Json, read_text
from otpt.methods.attributes import names_with_attributes, read_attributes
from otpt.methods.method import Method
from otpt.methods.path import PromptGroup
from otpt.methods.preparation import Init, Setup, register_init, text_state, texts_facts
from otpt.methods.protocol import Protocol
from otpt.methods.task import Task
from otpt.prompts import (
    Prompt,
    Templates,
    dataset_templates,
    published_templates,
    tokenize_prompts,
)
from otpt.prompts.tokens import check_lengths, fixed_tokens, whole_context
from otpt.registry import INITS


class Words(Init):
    """The texts of the task: a prompt of words, templates, descriptions or text features."""

    name: ClassVar[str] = "words"
    from_words: ClassVar[bool] = True
    served: ClassVar[bool] = True

    def check(self, setup: Setup) -> None:
        """See :class:`Init`."""
        check_words(setup, setup.task.classes)

    def prepare(self, setup: Setup) -> Sequence[PromptGroup]:
        """See :class:`Init`."""
        texts = setup.task.texts
        return [setup.group(texts.name, texts)]

    def prompt_name(self, task: Task, protocol: Protocol, method: Method) -> str:
        """See :class:`Init`."""
        return task.texts.name

    def facts(self, task: Task, protocol: Protocol, method: Method) -> Mapping[str, Json]:
        """See :class:`Init`."""
        return texts_facts(task)


INITS[Words.name] = Words  # the default, and no part of a name


def check_words(setup: Setup, names: Sequence[str]) -> None:
    """Raise an :class:`OtptError` if the texts of ``names`` do not fit the text tower."""
    texts = setup.task.texts
    if isinstance(texts, Templates):
        check_lengths(text_encoder(setup.backbone), texts.texts(setup.task.classes))
    elif isinstance(texts, Prompt):
        encoder = text_encoder(setup.backbone)
        if setup.task.all_tokens:
            texts = whole_context(encoder, texts)
        tokenize = tokenize_prompts if setup.tunable else fixed_tokens
        tokenize(encoder, names, texts)


@register_init
class Attributes(Words):
    """A text "{attribute} {name}" for each attribute of each class."""

    name: ClassVar[str] = "attributes"
    served: ClassVar[bool] = False
    one_text: ClassVar[bool] = False

    attributes: str | Path | Mapping[str, Sequence[str]] | None = Field(
        None, description="file of attributes per class, or {class: attributes}"
    )

    @cached_property
    def by_class(self) -> Mapping[str, Sequence[str]]:
        """Attributes by class name."""
        if isinstance(self.attributes, (str, Path)):
            return read_attributes(Path(self.attributes).expanduser())
        return self.attributes or {}

    def check(self, setup: Setup) -> None:
        """See :class:`Init`."""
        check_words(setup, names_with_attributes(setup.task.classes, self.by_class))

    def prepare(self, setup: Setup) -> Sequence[PromptGroup]:
        """See :class:`Init`."""
        texts = setup.task.texts
        state = text_state(
            setup.backbone,
            setup.task,
            texts,
            memory_budget=setup.protocol.memory_budget,
            tunes=any(method.tunes for method in setup.methods),
            tunable=setup.tunable,
            attributes=self.by_class,
        )
        return [setup.group(texts.name, state)]

    def facts(self, task: Task, protocol: Protocol, method: Method) -> Mapping[str, Json]:
        """See :class:`Init`."""
        names = names_with_attributes(task.classes, self.by_class)
        digest = hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()[:32]
        return {**texts_facts(task), "attributes": digest}


class TemplatesInit(Init):
    """Text features averaged over sentences; there is no context to tune."""

    tunable: ClassVar[bool] = False
    served: ClassVar[bool] = True

    def sentences(self, task: Task, protocol: Protocol) -> Templates:
        """Return the templates."""
        return published_templates(self.name)

    def check(self, setup: Setup) -> None:
        """See :class:`Init`."""
        templates = self.sentences(setup.task, setup.protocol)
        check_lengths(text_encoder(setup.backbone), templates.texts(setup.task.classes))

    def prepare(self, setup: Setup) -> Sequence[PromptGroup]:
        """See :class:`Init`."""
        templates = self.sentences(setup.task, setup.protocol)
        return [setup.group(templates.name, templates)]

    def prompt_name(self, task: Task, protocol: Protocol, method: Method) -> str:
        """See :class:`Init`."""
        return self.sentences(task, protocol).name

    def facts(self, task: Task, protocol: Protocol, method: Method) -> Mapping[str, Json]:
        """See :class:`Init`."""
        return {"templates": self.sentences(task, protocol).digest}


@register_init
class Templates7(TemplatesInit):
    """Text features averaged over seven general templates."""

    name: ClassVar[str] = "templates-7"


@register_init
class Templates80(TemplatesInit):
    """Text features averaged over CLIP's 80 templates for ImageNet."""

    name: ClassVar[str] = "templates-80"


@register_init
class DatasetTemplates(TemplatesInit):
    """The hand-written template of a registered data set."""

    name: ClassVar[str] = "dataset-templates"

    def sentences(self, task: Task, protocol: Protocol) -> Templates:
        """See :class:`TemplatesInit`."""
        return dataset_templates(protocol.dataset)


@register_init
class CustomTemplates(TemplatesInit):
    """Text features averaged over the user's sentences."""

    name: ClassVar[str] = "templates"

    templates: str | Path | InstanceOf[Templates] | Sequence[str] | None = Field(
        None, description="sentences with {} for the class name, or a file of them, one per line"
    )

    def sentences(self, task: Task, protocol: Protocol) -> Templates:
        """See :class:`TemplatesInit`."""
        if self.templates is not None:
            return read_templates(self.templates)
        if isinstance(task.texts, Templates):
            return task.texts
        raise OtptError(
            "The method 'templates' needs sentences, but none were given; pass them as --set templates=FILE, in Python "
            "as templates=['a photo of a {}.', …]."
        )


def read_templates(value: str | Path | Sequence[str] | Templates) -> Templates:
    """Read templates from one sentence, a list of sentences or a file with one per line."""
    if isinstance(value, str) and "{}" in value:
        return Templates.read([value])
    if not isinstance(value, (str, Path)):
        return Templates.read(value)
    path = Path(value).expanduser()
    lines = read_text(path, "file of templates").splitlines()
    return Templates(path.stem, [line.strip() for line in lines if line.strip()])
