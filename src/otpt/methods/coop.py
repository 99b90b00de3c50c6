"""CoOp and CoCoOp: contexts learned from a few labelled images and read from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

from pydantic import Field, InstanceOf
from torch import Tensor
from typing_extensions import Unpack

from otpt.backbones import Backbone, text_encoder
from otpt.calibration import BaseTexts
from otpt.errors import OtptError
from otpt.files import Json
from otpt.methods.batch import Batch
from otpt.methods.method import Method
from otpt.methods.path import PromptGroup
from otpt.methods.preparation import Init, Setup, register_init, text_state
from otpt.methods.protocol import Protocol
from otpt.methods.state import PromptState, StateOptions
from otpt.methods.task import Task
from otpt.prompts import PromptEncoder, tokenize_prompts
from otpt.prompts.learned import CocoopContext, CoopContext, MaplePrompts, fingerprint, read_learned_as
from otpt.registry import CALIBRATIONS
from otpt.views import ViewRecipe

_Learned = TypeVar("_Learned", CoopContext, CocoopContext, MaplePrompts)


def learned_prompt(kind: type[_Learned], source: str | Path | _Learned | None) -> _Learned:
    """Return a learned prompt from a file or an object; raise an :class:`OtptError` if it is missing."""
    if source is None:
        raise OtptError(
            f"The init {kind.kind!r} needs a learned prompt of {kind.trainer}; name its file as "
            f"{kind.kind}[context=FILE] or with --set context=FILE."
        )
    return read_learned_as(kind, source)


def learned_images(kind: type[_Learned], source: str | Path | _Learned | None) -> Mapping[str, Sequence[str]]:
    """Return the keys of the training images of a learned prompt."""
    return {f"the prompt of {kind.kind!r}": learned_prompt(kind, source).images}


@register_init
class Coop(Init):
    """Context learned from a few labelled images (Zhou et al., IJCV 2022)."""

    name: ClassVar[str] = "coop"
    base_classes: ClassVar[bool] = True

    context: str | Path | InstanceOf[CoopContext] | None = Field(
        None, description="file of 'otpt train coop' or of CoOp's code"
    )

    @cached_property
    def learned(self) -> CoopContext:
        """The learned context."""
        return learned_prompt(CoopContext, self.context)

    def check(self, setup: Setup) -> None:
        """See :class:`Init`."""
        _base_classes(self.learned, setup.methods)
        tokenize_prompts(text_encoder(setup.backbone), setup.task.classes, self.learned.prompt())

    def prepare(self, setup: Setup) -> Sequence[PromptGroup]:
        """See :class:`Init`."""
        prompt = self.learned.prompt()
        group = setup.group(self.name, prompt)
        base = _base_classes(self.learned, setup.methods)
        if base is not None:
            tasks = setup.task, setup.task.replace(classes=base, groups=None)
            budget = setup.protocol.memory_budget
            features = [
                text_state(setup.backbone, task, texts, memory_budget=budget, tunable=False).text_features.cpu()
                for task in tasks
                for texts in (setup.task.prompt, prompt)
            ]
            group.constants["base_texts"] = BaseTexts(*features)
        return [group]

    def facts(self, task: Task, protocol: Protocol, method: Method) -> Mapping[str, Json]:
        """See :class:`Init`."""
        return {"fingerprint": fingerprint(self.learned)}

    def learned_from(self) -> Mapping[str, Sequence[str]]:
        """See :class:`Init`."""
        return learned_images(CoopContext, self.context)


def _base_classes(learned: CoopContext, methods: Sequence[Method]) -> tuple[str, ...] | None:
    """Return the classes that a context was learned on, or None if no method needs them."""
    needing = [method.name for method in methods if "base_texts" in CALIBRATIONS[method.calibrate].parameters]
    if not needing:
        return None
    if learned.class_names is None:
        raise OtptError(
            f"Method {needing[0]!r} needs the classes that the context was learned on, but its file does not name "
            "them; make one with 'otpt train coop', or in Python give CoopContext(vectors, class_names)."
        )
    return learned.class_names


class ConditionalState(PromptState):
    """CoCoOp: each image has its own initial context, ctx + net(x) of its feature x.

    ``raw`` feeds the tower's feature before normalisation, as TPT's code does.
    """

    def __init__(
        self,
        class_names: Sequence[str],
        encoder: PromptEncoder,
        init: Tensor,
        *,
        context: CocoopContext,
        model: Backbone,
        raw: bool,
        **options: Unpack[StateOptions],
    ) -> None:
        super().__init__(class_names, encoder, init, **options)
        self._backbone, self._raw = model, raw
        self._context = context.to(model.device, model.dtype)

    def inputs(self, batch: Batch, recipe: ViewRecipe) -> tuple[Tensor, Tensor | None]:
        """See :class:`PromptState`."""
        clean = batch.clean_features()
        if self._raw:
            pixels = batch.pixels(ViewRecipe(n_views=1), self._backbone)[:, 0]
            clean = self._backbone.encode_pixels(pixels, chunk=self._backbone.chunk, unit=False)
        return batch.features(recipe), self._context.starts(clean)

    def starts_of(self, clean: Tensor) -> Tensor | None:
        """See :class:`PromptState`."""
        return self._context.starts(clean)


@register_init
class Cocoop(Init):
    """CoCoOp: a learned context plus what a small network says of the image (Zhou et al., CVPR 2022)."""

    name: ClassVar[str] = "cocoop"
    shares_texts: ClassVar[bool] = False

    context: str | Path | InstanceOf[CocoopContext] | None = Field(None, description="file of CoCoOp's code")
    condition: Literal["unit", "raw"] = Field(
        "unit", description="image feature of the network: of norm one, as in training, or not (raw), as in TPT's code"
    )

    @cached_property
    def learned(self) -> CocoopContext:
        """The learned context and network."""
        return learned_prompt(CocoopContext, self.context)

    @property
    def needs_image(self) -> bool:
        """See :class:`Init`."""
        return self.condition == "raw"

    def check(self, setup: Setup) -> None:
        """See :class:`Init`."""
        self.learned.check_fits(setup.backbone.embed_dim)
        tokenize_prompts(text_encoder(setup.backbone), setup.task.classes, self.learned.prompt())

    def prepare(self, setup: Setup) -> Sequence[PromptGroup]:
        """See :class:`Init`."""
        self.learned.check_fits(setup.backbone.embed_dim)
        state = text_state(
            setup.backbone,
            setup.task,
            self.learned.prompt(),
            memory_budget=setup.protocol.memory_budget,
            tunes=False,  # images have different contexts, so there is no shared graph to build
            kind=ConditionalState,
            context=self.learned,
            model=setup.backbone,
            raw=self.condition == "raw",
        )
        return [setup.group(self.name, state)]

    def facts(self, task: Task, protocol: Protocol, method: Method) -> Mapping[str, Json]:
        """See :class:`Init`."""
        return {"fingerprint": fingerprint(self.learned), "condition": self.condition}

    def learned_from(self) -> Mapping[str, Sequence[str]]:
        """See :class:`Init`."""
        return learned_images(CocoopContext, self.context)
