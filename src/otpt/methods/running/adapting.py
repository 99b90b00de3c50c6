"""From views under an initial prompt to outputs: the gates, adaptations, calibrations and aggregations of methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from otpt.calibration import BaseTexts
from otpt.methods.method import Method
from otpt.methods.output import Adapted, Output
from otpt.methods.prompt_tuning.config import TuningConfig
from otpt.methods.prompt_tuning.passes import mean_cosine
from otpt.methods.running.calling import Available, Extras, GateAnswer, call_function, call_gate
from otpt.methods.running.finish import finish
from otpt.methods.running.hosting import adapts_on_host, initial_on_host, needs_after, on_host
from otpt.methods.task import Task
from otpt.registry import ADAPTATIONS, CONTEXT, GATES, NONE, STATE
from otpt.transfers import Steps, join

if TYPE_CHECKING:
    from otpt.methods.maple.two_tower import TwoTowerSide
    from otpt.methods.prompt_tuning import TextSide

GATED = "adapted"
"""Extra of a gated method: 1 if the image was adapted, 0 if it kept zero-shot."""

Tune = Callable[[Mapping[TuningConfig, Sequence[int]]], Steps[Mapping[TuningConfig, Adapted]]]
"""Positions of the images that each config is to tune → all images as it leaves them, the others as at the init."""


class AdaptingGroup:
    """What groups share whose methods adapt, calibrate and aggregate what they see of the views."""

    def __init__(
        self,
        methods: tuple[Method, ...],
        family: str,
        side: TextSide | TwoTowerSide,
        task: Task,
        base_texts: BaseTexts | None = None,
    ) -> None:
        """``base_texts``, on the host, are for calibrations of learned prompts that look at their base classes."""
        self.methods = methods
        self._family, self._side, self._task, self._base_texts = family, side, task, base_texts
        self._state: dict[str, dict[str, Any]] = {}  # of stream methods

    @property
    def graph_bytes(self) -> int:
        """See :class:`otpt.methods.running.groups.Group`."""
        return self._side.linearisation.graph_bytes

    def release(self) -> int:
        """See :class:`otpt.methods.running.groups.Group`."""
        size = self.graph_bytes
        self._side.linearisation.release()
        return size or self._task.memory_budget

    def _outputs(
        self, methods: Sequence[Method], at_init: Adapted, names: Sequence[str], tune: Tune
    ) -> Steps[dict[str, list[Output]]]:
        """The outputs of images by method, from what they are at the init."""
        family, dataset = self._task.family, self._task.dataset
        settings = {method.name: method.settings_for(family, dataset) for method in methods}
        initial = yield from initial_on_host(at_init, methods)
        gates = {
            method.name: [self._gate(method, initial, i, name, settings[method.name]) for i, name in enumerate(names)]
            for method in methods
        }
        configs: dict[str, TuningConfig] = {}
        wanted: dict[TuningConfig, set[int]] = {}
        for method in methods:
            images = {i for i, gate in enumerate(gates[method.name]) if gate.is_open}
            config = method.tuning(family, dataset) if method.tunes and images else None
            if config is not None:
                configs[method.name] = config
                wanted.setdefault(config, set()).update(images)
        tuned = (yield from tune({config: sorted(images) for config, images in wanted.items()})) if wanted else {}
        adapted: dict[str, Adapted] = {}
        for method in methods:
            if method.adapt != CONTEXT:
                own = initial if adapts_on_host(method) else at_init
                adapted[method.name] = self._by_function(method, own, settings[method.name], gates[method.name], names)
            elif method.name in configs:
                adapted[method.name] = tuned[configs[method.name]]
        after = needs_after(methods)
        # what several methods share is copied once
        distinct = {id(each): each for each in adapted.values()}
        initial, *copies = yield from join([on_host(each, after) for each in (initial, *distinct.values())])
        copied = dict(zip(distinct, copies, strict=True))
        answers = {}
        for method in methods:
            found = copied[id(adapted[method.name])] if method.name in adapted else initial
            answers[method.name] = finish(
                method,
                found if method.gate == NONE else _gated(found, initial, gates[method.name]),
                initial,
                tower=self._family,
                official=self._task.official_precision,
                available=partial(self._available, initial, found),
                settings=settings[method.name],
                names=names,
            )
        return answers

    def _available(self, initial: Adapted, now: Adapted, i: int) -> Available:
        """What a function of image ``i`` may ask for, of the initial prompt and of the views as they are ``now``."""
        return {
            "features": lambda: (now if now.features else initial).view_features(i),
            "text_features": lambda: initial.text_features(i),
            "logit_scale": lambda: self._side.logit_scale,
            "zero_shot": lambda: initial.view_logits(i),
            "base_texts": lambda: self._base_texts,
        }

    def _gate(self, method: Method, initial: Adapted, i: int, name: str, settings: Mapping[str, float]) -> GateAnswer:
        """Whether a method adapts image ``i``."""
        if method.gate == NONE:
            return GateAnswer()
        return call_gate(GATES[method.gate], self._available(initial, initial, i), settings, name)

    def _by_function(
        self,
        method: Method,
        initial: Adapted,
        settings: Mapping[str, float],
        gates: Sequence[GateAnswer],
        names: Sequence[str],
    ) -> Adapted:
        """Images by an adaptation that is a function, one after the other, as a stream's state asks for.

        Where the gate is closed the function is not called.
        """
        value = ADAPTATIONS[method.adapt]
        state = self._state.setdefault(method.name, {})
        rows: list[Tensor] = []
        texts: list[Tensor] = []
        extras: list[Extras] = []
        for i, name in enumerate(names):
            found = initial.text_features(i) if value.gives_texts else initial.view_logits(i)
            more: Extras = {}
            if gates[i].is_open:
                available = self._available(initial, initial, i)
                own: Available = {**available, "logits": partial(initial.view_logits, i), STATE: lambda: state}
                found, more = call_function(value, "adaptation", own, settings, tuple(found.shape), name)
            texts.append(found if value.gives_texts else initial.text_features(i))
            rows.append(self._side.logits(initial.view_features(i), found) if value.gives_texts else found)
            extras.append(more)
        columns = dict(initial.extras)
        if value.gives_texts:
            columns["mean_cosine"] = torch.stack([mean_cosine(each) for each in texts])
        columns |= _columns(extras)
        return Adapted(
            torch.stack([each[0] for each in rows]), rows.__getitem__, initial.skipped, columns, texts.__getitem__
        )


def _gated(adapted: Adapted, initial: Adapted, gates: Sequence[GateAnswer]) -> Adapted:
    """Adapted where the gate is open, as at the init elsewhere; all on the host."""
    choice = torch.tensor([each.is_open for each in gates])
    extras = {
        name: torch.where(choice, values, initial.extras.get(name, torch.full_like(values, torch.nan)))
        for name, values in adapted.extras.items()
    }
    return Adapted(
        torch.where(choice[:, None], adapted.logits, initial.logits),
        lambda i: (adapted if gates[i].is_open else initial).view_logits(i),
        adapted.skipped & choice,
        {**extras, **_columns([each.extras for each in gates]), GATED: choice.double()},
        lambda i: (adapted if gates[i].is_open else initial).text_features(i),
    )


def _columns(extras: Sequence[Extras]) -> dict[str, Tensor]:
    """Numbers of B images by name, (B,) each; nan where an image has none."""
    names = dict.fromkeys(name for each in extras for name in each)
    return {name: torch.tensor([each.get(name, torch.nan) for each in extras], dtype=torch.float64) for name in names}
