"""A class list as users give it: names with words, templates, descriptions, attributes, or text features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from otpt.errors import OtptError
from otpt.methods.inits.attributes import read_attributes
from otpt.methods.method import Method
from otpt.methods.task import ON_PIXELS, Task
from otpt.prompts import Descriptions, FixedTexts, Prompt, Templates, TextFeatures, check_class_names
from otpt.prompts.prompt import BRACES as PLACE

ClassNames = Sequence[str] | Mapping[str, str | Sequence[str]]


def with_classes(
    task: Task,
    names: ClassNames,
    prompt: str | Prompt | None = None,
    *,
    templates: Templates | Sequence[str | Callable[[str], str]] | None = None,
    text_features: Tensor | None = None,
    attributes: Mapping[str, Sequence[str]] | str | Path | None = None,
    allow_duplicates: bool = False,
) -> Task:
    """The task with these classes; see :meth:`otpt.Classifier.set_classes`."""
    descriptions = Descriptions(list(names.values())) if isinstance(names, Mapping) else None
    given = {
        "prompt": prompt,
        "templates": templates,
        "text_features": text_features,
        "a dictionary of descriptions": descriptions,
    }
    several = [name for name, value in given.items() if value is not None]
    if len(several) > 1:
        raise OtptError(f"{' and '.join(several)} were given together; each says what stands for a class: give one.")
    listed = check_class_names(list(names) if isinstance(names, Mapping) else names, allow_duplicates=allow_duplicates)
    texts: FixedTexts | None = descriptions
    if templates is not None:
        texts = own_templates(templates)
        task = replace(task, templates=texts)
    elif text_features is not None:
        texts = _fitting(TextFeatures(text_features), len(listed))
    return replace(
        task,
        class_names=listed,
        prompts=(Prompt(prompt) if isinstance(prompt, str) else prompt or Prompt(),),
        attributes=read_attributes(attributes) if isinstance(attributes, (str, Path)) else attributes or {},
        allow_duplicates=allow_duplicates,
        texts=texts,
    )


def own_templates(templates: Templates | Sequence[str | Callable[[str], str]]) -> Templates:
    """Sentences of the user's as templates; functions of a class name, as open_clip has them, become sentences."""
    if isinstance(templates, Templates):
        return templates
    if isinstance(templates, str):
        return Templates("templates", templates)  # says that a list is expected
    return Templates("templates", [each(PLACE) if callable(each) else each for each in templates])


def check_texts(backbone: Any, task: Task, method: Method) -> None:
    """``OtptError`` if a method cannot start from texts that stand in the place of words."""
    texts = task.texts
    if texts is None or (method.init == "templates" and isinstance(texts, Templates)):
        return
    what = "templates" if isinstance(texts, Templates) else texts.name
    if method.tunes or method.adapt in ON_PIXELS:
        raise OtptError(
            f"Method {method.name!r} tunes the words of a context, but the classes were set with {what}, which leave "
            "none; set them with a prompt of words, or take a method that tunes no context, such as 'zero-shot'."
        )
    if method.init != "words":
        raise OtptError(
            f"Method {method.name!r} starts from {method.init!r}, but the classes were set with {what}; leave one of "
            "them out."
        )
    if isinstance(texts, TextFeatures) and texts.features.shape[1] != backbone.embed_dim:
        raise OtptError(
            f"The text features have {texts.features.shape[1]} dimensions; those of this model have "
            f"{backbone.embed_dim}. Compute them with the same model."
        )


def _fitting(texts: TextFeatures, classes: int) -> TextFeatures:
    rows, columns = texts.features.shape
    if rows != classes:
        remedy = "transpose them, one row per class" if columns == classes else "expected one row per class"
        raise OtptError(f"There are text features of {rows} classes, but {classes} class names; {remedy}.")
    return texts
