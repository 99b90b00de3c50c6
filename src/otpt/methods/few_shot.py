"""Classes by example images, with or without texts: ``set_classes(examples={"ours": […], "theirs": […]})``.

If each class has examples, :mod:`otpt.methods.example_scorers` fits the weights of examples and texts. If some classes
are known by their names alone, :mod:`otpt.methods.mixed_classes` makes the scores of both kinds comparable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor
from typing_extensions import Unpack

from otpt.errors import OtptError
from otpt.files import Json
from otpt.methods.example_scorers import Fitted, class_means, fit_examples
from otpt.methods.examples import Examples
from otpt.methods.method import Method
from otpt.methods.mixed_classes import MixedScorer, fit_mixed
from otpt.methods.path import PromptGroup
from otpt.methods.preparation import Init, Setup, register_init, text_state, texts_facts
from otpt.methods.protocol import Protocol
from otpt.methods.state import PromptState, StateOptions
from otpt.methods.task import Task, Texts
from otpt.prompts import PromptEncoder, TextFeatures
from otpt.rejection import negative_words, text_features_of


class ExampleState(PromptState):
    """Logits of texts and examples; the text features are the prototypes where there are no texts.

    Args:
        class_names, encoder, init: arguments of :class:`PromptState`.
        scorer: name in :data:`SCORERS`.
        examples: encoded examples.
        nouns: text features (M, D) of common nouns, if some classes are known by their names alone.
        options: keyword arguments of :class:`PromptState`.
    """

    def __init__(
        self,
        class_names: Sequence[str],
        encoder: PromptEncoder,
        init: Tensor,
        *,
        scorer: str,
        examples: Examples,
        nouns: Tensor | None = None,
        **options: Unpack[StateOptions],
    ) -> None:
        super().__init__(class_names, encoder, init, **options)
        features, labels = examples.features, examples.labels
        assert features is not None
        assert labels is not None
        like = self.text_features
        on_device = features.to(like.device, like.dtype)
        texts = super().logits(on_device, like).double().cpu() if examples.texts else None
        self.fitted: Fitted | None = None
        self.mixed: MixedScorer | None = None
        if nouns is None:
            fitted = fit_examples(
                scorer, features, labels, len(examples.names), logit_scale=self.logit_scale, texts=texts
            )
            self.fitted = fitted.to(like.device, like.dtype)
        else:
            mixed = fit_mixed(
                scorer,
                features,
                labels,
                word_features=nouns.cpu(),
                logit_scale=self.logit_scale,
                logit_bias=self.logit_bias,
            )
            self.mixed = mixed.to(like.device, like.dtype)

    def logits(self, image_features: Tensor, text_features: Tensor) -> Tensor:
        """Compute t · text logits + s · scorer(v): (…, V, D) and (…, C, D) → (…, V, C)."""
        if self.mixed is not None:
            return self.mixed(image_features, super().logits(image_features, text_features))
        assert self.fitted is not None
        logits = self.fitted.weight * self.fitted.scorer(image_features)
        if self.fitted.text_weight:
            logits = logits + self.fitted.text_weight * super().logits(image_features, text_features)
        return logits


class ExamplesInit(Init):
    """Classes by example images, alone or with texts."""

    tunable: ClassVar[bool] = False

    def check(self, setup: Setup) -> None:
        """See :class:`Init`."""
        self.examples(setup.task)

    def examples(self, task: Task) -> Examples:
        """Return the examples of the task."""
        if task.examples is None:
            raise OtptError(
                f"The init {self.name!r} starts from example images; give some as set_classes(examples={{…}}), on the "
                "command line as --examples FOLDER."
            )
        return task.examples

    def prepare(self, setup: Setup) -> Sequence[PromptGroup]:
        """See :class:`Init`."""
        examples = self.examples(setup.task).encode(setup.backbone, upright=setup.protocol.upright)
        assert examples.features is not None
        assert examples.labels is not None
        texts: Texts = setup.task.texts
        if not examples.texts:
            texts = TextFeatures(class_means(examples.features, examples.labels, len(examples.names)))
        state = text_state(
            setup.backbone,
            setup.task,
            texts,
            memory_budget=setup.protocol.memory_budget,
            tunes=any(method.tunes for method in setup.methods),
            tunable=setup.tunable,
            kind=ExampleState,
            scorer=self.name,
            examples=examples,
            nouns=noun_features(setup) if examples.mixed else None,
        )
        return [setup.group(self.name, state)]

    def facts(self, task: Task, protocol: Protocol, method: Method) -> Mapping[str, Json]:
        """See :class:`Init`."""
        examples = self.examples(task)
        return {"examples": examples.digest, **(texts_facts(task) if examples.texts else {})}


def noun_features(setup: Setup) -> Tensor:
    """Return the text features (M, D) of common nouns that are not classes."""
    classes = {name.replace("_", " ").lower() for name in setup.task.classes}
    nouns = [word for word in negative_words() if word not in classes]
    return text_features_of(setup.backbone, nouns, setup.task.prompt, setup.protocol.memory_budget)


@register_init
class Gda(ExamplesInit):
    """Classes by example images: Gaussians with a common covariance."""

    name: ClassVar[str] = "gda"
    source: ClassVar[str] = "ICLR 2024, arXiv 2402.04087"


@register_init
class TipAdapter(ExamplesInit):
    """Classes by example images: similarity to each of them."""

    name: ClassVar[str] = "tip-adapter"
    source: ClassVar[str] = "ECCV 2022, arXiv 2111.03930"


@register_init
class Prototypes(ExamplesInit):
    """Classes by example images: similarity to their mean."""

    name: ClassVar[str] = "prototypes"
    source: ClassVar[str] = "Snell et al., NeurIPS 2017"


EXAMPLE_INITS = tuple(init.name for init in (Gda, TipAdapter, Prototypes))
"""Names of the inits that start from example images."""


def example_state(texts: PromptState, scorer: str, features: Tensor, labels: Tensor) -> ExampleState:
    """Return the state of texts and of example features (M, D) with labels (M,), without a backbone."""
    names = texts.class_names
    known = len(labels) == len(features) and labels.ndim == 1 and not labels.is_floating_point()
    if not known or not bool(((labels >= 0) & (labels < len(names))).all()):
        raise OtptError(
            f"The examples have features of shape {tuple(features.shape)} and labels of shape {tuple(labels.shape)}; "
            f"expected one label from 0 to {len(names) - 1} for each feature."
        )
    missing = sorted(set(range(len(names))) - set(labels.tolist()))
    if missing:
        raise OtptError(f"The class {missing[0]} has no example; expected one or more for each class.")
    examples = Examples(names, (True,) * len(names), features=features.double().cpu(), labels=labels.long().cpu())
    return ExampleState(
        names,
        texts.encoder,
        texts.init,
        logit_scale=texts.logit_scale,
        logit_bias=texts.logit_bias,
        contexts_per_pass=1,
        tunes=False,
        scorer=scorer,
        examples=examples,
    )
