"""What methods start from: prompts of words, learned prompts, and their text features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from otpt.backbones import Backbone
from otpt.calibration import BaseTexts
from otpt.errors import OtptError
from otpt.methods.method import Method
from otpt.methods.prompt_tuning import AttributeTextSide, TextSide
from otpt.methods.task import Task
from otpt.prompts import FixedTexts, Prompt
from otpt.prompts.learned import CoopContext, LearnedPrompt
from otpt.prompts.tokens import whole_context


def text_side(backbone: Backbone, task: Task, prompt: Prompt | FixedTexts) -> TextSide:
    """The text features of a task under a prompt, or those that stand in the place of words."""
    return TextSide(
        backbone,
        task.class_names,
        tunable(backbone, task, prompt) if isinstance(prompt, Prompt) else prompt,
        allow_duplicates=task.allow_duplicates,
        memory_budget=task.memory_budget,
    )


def attribute_side(backbone: Backbone, task: Task, prompt: Prompt) -> AttributeTextSide:
    """The text features of a task's classes with their attributes under a prompt."""
    return AttributeTextSide(
        backbone,
        task.class_names,
        task.attributes,
        tunable(backbone, task, prompt),
        allow_duplicates=task.allow_duplicates,
        memory_budget=task.memory_budget,
    )


def tunable(backbone: Backbone, task: Task, prompt: Prompt) -> Prompt:
    """The prompt; with ``all_tokens`` all tokens of its context are tuned, also where words are several tokens."""
    return whole_context(backbone.text, prompt) if task.all_tokens else prompt


def learned_prompt(task: Task, kind: str, methods: Sequence[Method]) -> LearnedPrompt:
    """The learned prompt of a kind; if there is none, an error that names the method which starts from it."""
    if kind not in task.contexts:
        name = next(method.name for method in methods if method.init == kind)
        raise OtptError(
            f"Method {name!r} starts from a learned prompt of the kind {kind!r}; give its file with --context (in "
            f"Python contexts=[…]), or make one with 'otpt train'."
        )
    return task.contexts[kind]


def coop_context(task: Task, methods: Sequence[Method]) -> CoopContext:
    """The context of CoOp that the methods start from."""
    learned = learned_prompt(task, "coop", methods)
    assert isinstance(learned, CoopContext)
    return learned


def base_classes(learned: CoopContext, methods: Sequence[Method]) -> tuple[str, ...] | None:
    """The classes that a context was learned on, if a method looks at them; ``OtptError`` if they are not known."""
    asks = next((method.name for method in methods if method.calibrate == "dac-base"), None)
    if asks is None:
        return None
    if learned.class_names is None:
        raise OtptError(
            f"Method {asks!r} needs the classes that the context was learned on, but its file does not name them; make "
            "one with 'otpt train coop', or in Python give CoopContext(vectors, class_names)."
        )
    return learned.class_names


def base_texts(backbone: Backbone, task: Task, learned: CoopContext, base: tuple[str, ...]) -> BaseTexts:
    """Text features of the task's classes and of the base ones, under the task's first prompt and the learned one."""
    places = (task, replace(task, class_names=base))
    prompts = (task.prompts[0], learned.prompt())
    found = [text_side(backbone, place, prompt) for place in places for prompt in prompts]
    return BaseTexts(*(each.text_features.cpu() for each in found))
