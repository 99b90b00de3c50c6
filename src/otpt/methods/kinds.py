"""How methods are prepared, by their init; or by their adaptation, where a plugin brings a network for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from otpt.methods.method import Method
from otpt.plugins import EvaluationHook
from otpt.registry import ADAPTATIONS, Component

if TYPE_CHECKING:
    from otpt.features.cache import FeatureCache
    from otpt.methods.batch import Batch
    from otpt.methods.output import Output
    from otpt.settings import Settings

Methods = tuple[Method, ...]


class Group(Protocol):
    """Methods that share an initial prompt, prepared for a class list.

    Attributes:
        prompt: its name in the results.
        methods: in their order.
    """

    prompt: str
    methods: Methods

    def outputs(self, batch: Batch) -> list[list[Output]]:
        """For each method the outputs of all images."""


Make = Callable[[Any, "Settings", Methods, "FeatureCache | None"], Sequence[Group]]
"""(backbone, settings, methods, cache) → their groups."""


def _no_check(backbone: Any, settings: Settings, methods: Methods) -> None:
    """Accept everything."""


@dataclass(frozen=True)
class Kind:
    """Methods that are prepared in the same way.

    Attributes:
        make: computes what they need once per class list.
        check: raises an :class:`OtptError` before anything is computed.
        needs_image: whether a method takes the image itself.
        needs_features: whether the methods take features of views.
        prompt: name in the results, where that is not a prompt of words.
        needs_text_tower: False for methods on an image tower alone.
        trained: whether they predict with a network that was trained for them, which only an evaluation reads.
        evaluation: what they add to an evaluation.
    """

    make: Make
    check: Callable[[Any, Settings, Methods], None] = _no_check
    needs_image: Callable[[Method], bool] = lambda method: False
    needs_features: bool = True
    prompt: str | None = None
    needs_text_tower: bool = True
    trained: bool = False
    evaluation: EvaluationHook = field(default_factory=EvaluationHook)


KINDS: dict[str, Kind] = {}
"""By init, or by adaptation for methods that bring a network of their own."""


def register_kind(name: str, kind: Kind, *, only: Mapping[str, tuple[str, ...]]) -> None:
    """Register an adaptation whose methods are prepared and run by a plugin.

    Args:
        name: value of a method's ``adapt``.
        only: by axis, the values that it can be combined with; any on other axes.
    """
    KINDS[name] = kind
    ADAPTATIONS[name] = Component(name, only=only)


def kind_name(method: Method) -> str:
    """The name that decides how a method is prepared."""
    return method.adapt if method.adapt in KINDS else method.init


def kind_of(method: Method) -> Kind:
    """How a method is prepared."""
    return KINDS[kind_name(method)]
