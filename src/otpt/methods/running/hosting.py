"""Where functions of an image run: on the host, on copies that were asked for together.

Towers, gradients and logits are computed on the device. Gates, calibrations, aggregations, and adaptations that are
functions look at a few thousand numbers and ask for values again and again; on a GPU each question would empty its
queue. So what they name as parameters comes to the host in one copy for all images and methods of a batch: one before
something is adapted, if a function is asked by then, and one in the end. Stream methods, whose state may be large, stay
on the device. On a CPU nothing is copied, and nothing computed that is not asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from torch import Tensor

from otpt.methods.method import Method
from otpt.methods.output import Adapted
from otpt.registry import ADAPTATIONS, AGGREGATIONS, CALIBRATIONS, CLEAN, CONTEXT, GATES, STREAM, Component
from otpt.transfers import Steps


@dataclass(frozen=True)
class Needs:
    """What functions ask of an image beside the logits of the clean view.

    Attributes:
        rows: the logits of all views.  texts: text features.  features: those of the views.
    """

    rows: bool = False
    texts: bool = False
    features: bool = False

    def __or__(self, other: Needs) -> Needs:
        return Needs(self.rows or other.rows, self.texts or other.texts, self.features or other.features)


def adapts_on_host(method: Method) -> bool:
    """Whether the adaptation is a function of one image for itself."""
    return method.adapt != CONTEXT and method.scope != STREAM


def _needs_before(method: Method) -> Needs:
    """What a method's gate and its adaptation, if that is a function of one image, ask for under the initial prompt."""
    gate = _parameters(GATES[method.gate])
    found = Needs("zero_shot" in gate, "text_features" in gate, "features" in gate)
    if adapts_on_host(method):
        found |= Needs(rows=True, texts=True, features="features" in _parameters(ADAPTATIONS[method.adapt]))
    return found


def _needs_after(method: Method) -> Needs:
    """What calibration and aggregation ask for, both of the initial prompt and of what an adaptation made of it."""
    calibration = CALIBRATIONS[method.calibrate]
    names = _parameters(calibration) | _parameters(AGGREGATIONS[method.aggregate])
    return Needs(
        rows=calibration.views or method.aggregate != CLEAN,
        texts=not names.isdisjoint({"text_features", "adapted_text_features"}),
        features="features" in names,
    )


def _parameters(value: Component) -> set[str]:
    return set(value.parameters)


def on_host(adapted: Adapted, needs: Needs) -> Steps[Adapted]:
    """The same where functions can look at it; on a CPU as it is."""
    if adapted.logits.device.type == "cpu":
        return adapted
    images = range(len(adapted.logits))
    groups: list[list[Tensor]] = [[adapted.logits, adapted.skipped, *adapted.extras.values()]]
    for asked, source, of in (
        (needs.rows, adapted.rows, images),
        (needs.texts, adapted.texts, images[:1] if adapted.same_texts else images),
        (needs.features, adapted.features, images),
    ):
        groups.append([source(i) for i in of] if asked and source is not None else [])
    found = iter((yield [tensor for group in groups for tensor in group]))
    (logits, skipped, *extras), rows, texts, features = ([next(found) for _ in group] for group in groups)
    return replace(
        adapted,
        logits=logits,
        skipped=skipped,
        extras=dict(zip(adapted.extras, extras, strict=True)),
        rows=rows.__getitem__ if rows else None,
        texts=(lambda i: texts[0 if adapted.same_texts else i]) if texts else None,
        features=features.__getitem__ if features else None,
    )


def needs_after(methods: Sequence[Method]) -> Needs:
    """What the calibrations and aggregations of all methods ask for."""
    return reduce(or_, map(_needs_after, methods), Needs())


def initial_on_host(at_init: Adapted, methods: Sequence[Method]) -> Steps[Adapted]:
    """Images under the initial prompt as gates and adaptations see them, with all that is asked for later too.

    Where none of them looks at an image, nothing is copied yet.
    """
    before = reduce(or_, map(_needs_before, methods), Needs())
    return at_init if before == Needs() else (yield from on_host(at_init, before | needs_after(methods)))
