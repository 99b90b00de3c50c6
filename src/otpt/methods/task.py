"""What methods are to tell apart, and with what: classes, prompts, learned prompts, views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from otpt.errors import OtptError, unknown
from otpt.methods.method import Method
from otpt.prompts import MEMORY_BUDGET, FixedTexts, Prompt, Templates, dataset_templates, published_templates
from otpt.prompts.learned import LearnedPrompt
from otpt.registry import FAMILIES, STREAM, TEMPLATES
from otpt.rejection.registry import chosen_threshold
from otpt.settings import Fpp
from otpt.views import ViewRecipe

if TYPE_CHECKING:
    from otpt.methods.inits.trained import TrainedFile
    from otpt.methods.promptsmooth.smoothing import Smoothing

OWN_NETWORK = {"baple": "learned context", "fpt": "no text"}
"""Adaptations that were trained beforehand and bring what they predict with; what stands in the place of a prompt."""

ON_PIXELS = (*OWN_NETWORK, "promptsmooth")
"""Adaptations that take the image as it is, not the features of its views."""

Column = tuple[str, str]
"""(prompt, method) of a row of the results."""


@dataclass(frozen=True)
class Task:
    """A class list and everything about it that decides a prediction besides backbone, method and image.

    Attributes:
        class_names: (C,).
        prompts: the contexts to start from; methods that start from words are run with each.
        contexts: learned prompts by the init that they are for: "coop", "cocoop", "maple".
        attributes: of each class, for methods whose init is "attributes".
        family: whose weights methods take: "fine-grained" or "shift".
        dataset: the registered name, for its template and for numbers published for some data sets; "" for one's own.
        recipe: the views of methods that need views; ``augmix`` None lets each method decide, then ``recipe``.
        official_precision: round logits and softmax to float16 as the official scripts do.
        allow_duplicates: accept a duplicate class name, as ImageNet has two.
        memory_budget: bytes that graphs of text features may take.
        all_tokens: tune all tokens of a context whose words are not single tokens, in place of an error.
        smoothing: PromptSmooth's numbers, None for the published ones; noise_prompt: its own context for these classes.
        trained: files of trained networks, for BAPLe and FPT; keep: where FPT keeps keys and values.
        backdoor: images get BAPLe's trigger.
        templates: sentences of the user's own, for the init "templates".
        fpp: FPP's numbers.
        reject: score by which images that fit none of the classes are marked, one of :data:`otpt.rejection.SCORES`;
            None marks none. reject_threshold: in place of the score's own.
        texts: in the place of words: templates, descriptions or text features, for methods that tune no context.
    """

    class_names: tuple[str, ...]
    prompts: Sequence[Prompt] = (Prompt(),)
    contexts: Mapping[str, LearnedPrompt] = field(default_factory=dict)
    attributes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    family: str = "fine-grained"
    dataset: str = ""
    recipe: ViewRecipe = field(default_factory=ViewRecipe)
    augmix: bool | None = None
    official_precision: bool = False
    allow_duplicates: bool = False
    memory_budget: int = MEMORY_BUDGET
    all_tokens: bool = False
    smoothing: Smoothing | None = None
    noise_prompt: Prompt | None = None
    trained: Sequence[TrainedFile] = ()
    keep: Path | None = None
    backdoor: bool = False
    templates: Templates | None = None
    fpp: Fpp = field(default_factory=Fpp)
    reject: str | None = None
    reject_threshold: float | None = None
    texts: FixedTexts | None = None

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise unknown("family of data sets", self.family, FAMILIES)
        if self.reject is not None:
            chosen_threshold(self.reject, self.reject_threshold)
        elif self.reject_threshold is not None:
            raise OtptError("A threshold of unknown images was given without a score; expected both (--reject).")

    def prompts_of(self, method: Method) -> Sequence[Prompt | str]:
        """What a method starts from: prompts of words, or the name of something else."""
        if method.adapt in OWN_NETWORK:
            return [OWN_NETWORK[method.adapt]]
        if method.init in TEMPLATES:
            return [self.templates_of(method).name]
        if not method.starts_from_words:
            return [method.init]
        if method.adapt == "promptsmooth" and self.noise_prompt is not None:
            return [self.noise_prompt]
        return self.prompts if self.texts is None else [self.texts.name]

    def templates_of(self, method: Method) -> Templates:
        """The templates of a method that starts from some."""
        if method.init == "dataset-templates":
            return dataset_templates(self.dataset)
        if method.init != "templates":
            return published_templates(method.init)
        if self.templates is None:
            raise OtptError(
                f"Method {method.name!r} starts from templates of your own, but none were given; give some as "
                "--templates 'a photo of a {}.' …, in Python templates=Templates('mine', ['a photo of a {}.', …])."
            )
        return self.templates

    def columns(self, methods: Sequence[Method]) -> tuple[Column, ...]:
        """(prompt, method) of the outputs of an image, in their order.

        The first prompt of each method, in the order of the methods; then further prompts, one after the other.
        """
        prompts = {method.name: [prompt_name(each) for each in self.prompts_of(method)] for method in methods}
        most = max(len(each) for each in prompts.values())
        return tuple((each[i], name) for i in range(most) for name, each in prompts.items() if i < len(each))

    def recipe_for(self, method: Method) -> ViewRecipe | None:
        """The views that a method needs; None for one that takes the image as it is."""
        if method.adapt in ON_PIXELS:
            return None
        augmix = next((each for each in (self.augmix, method.augmix) if each is not None), self.recipe.augmix)
        views = self.recipe.n_views if method.views is None else method.views
        if method.needs_all_views(self.family, self.dataset) and views == 1:
            raise OtptError(
                f"Method {method.name!r} needs several views of an image, but the recipe has one; give a larger number "
                "of views."
            )
        if not method.needs_views(self.family, self.dataset):
            return replace(self.recipe.of(1), augmix=augmix)
        # what takes pixels, or remembers the images before, always sees all views
        in_rounds = not _takes_pixels(method) and method.scope != STREAM
        rounds = tuple(each for each in self.recipe.rounds if in_rounds and each < views)
        return replace(self.recipe, augmix=augmix, n_views=views, rounds=rounds)

    def needs_images(self, methods: Sequence[Method]) -> bool:
        """Whether some method takes the image itself, beside or in place of its features."""
        return any(self.recipe_for(method) is None or _takes_pixels(method) for method in methods)

    def recipes_for(self, methods: Sequence[Method]) -> tuple[ViewRecipe, ...]:
        """The features that methods need, each kind of views once, with the largest number.

        In rounds if all methods that need several views of the kind have them in the same rounds.
        """
        found: dict[str, ViewRecipe] = {}
        for method in methods:
            recipe = None if method.init == "maple" else self.recipe_for(method)
            if recipe is None:
                continue
            other = found.get(recipe.kind, recipe)
            largest = max(recipe, other, key=lambda each: each.n_views)
            same = recipe == other or min(recipe.n_views, other.n_views) == 1
            found[recipe.kind] = largest if same else largest.of(largest.n_views)
        return tuple(found.values())


def _takes_pixels(method: Method) -> bool:
    return method.init == "maple" or (method.init, method.condition) == ("cocoop", "raw")


def prompt_name(prompt: Prompt | str) -> str:
    """What a prompt is called in the results."""
    return prompt if isinstance(prompt, str) else prompt.name
