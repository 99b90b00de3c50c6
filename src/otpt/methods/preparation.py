"""Preparation of methods for a class list: inits, and systems with their own views or network.

An init makes the initial text features of methods (:class:`Init`); a system replaces the whole prediction path
(:class:`System`). Both are records of their own inputs. A new one is a class with a decorator::

    @register_init
    class Reversed(Init):
        \"\"\"The words of the prompt in reverse order.\"\"\"

        name = "reversed"
        from_words = True

        def prepare(self, setup):
            words = " ".join(reversed(setup.task.prompt.words.split()))
            return [setup.group(self.name, Prompt(words))]
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeVar
from typing import Protocol as Interface

from otpt.backbones import Backbone, has_text_encoder, open_clip_tags, text_encoder
from otpt.calibration import fixed_temperature
from otpt.errors import OtptError
from otpt.features.cache import FeatureCache
from otpt.files import Json
from otpt.methods.batch import Batch
from otpt.methods.method import Method, Methods
from otpt.methods.path import PromptGroup
from otpt.methods.protocol import Protocol, plain
from otpt.methods.stages import Output
from otpt.methods.state import PromptState, prompt_state
from otpt.methods.task import Task, Texts
from otpt.prompts import Prompt, Templates, TextFeatures
from otpt.prompts.tokens import whole_context
from otpt.registry import (
    ADAPTATIONS,
    INITS,
    PARTS,
    SYSTEMS,
    Component,
    Preparation,
    make_part,
    number_for,
    source_digest,
)

Column = tuple[str, str]
"""(prompt, method) names of a column of the results."""

_Init = TypeVar("_Init", bound="type[Init]")
_System = TypeVar("_System", bound="type[System]")


class Group(Interface):
    """Prepared methods that share an initial prompt; ``prompt`` is its name in the results."""

    prompt: str
    methods: Methods

    def outputs(self, batch: Batch) -> list[list[Output]]:
        """Return the outputs of all images, method by method."""


@dataclass(frozen=True)
class Setup:
    """What methods are prepared from.

    Attributes:
        backbone: the model.
        task: classes and texts.
        protocol: views, published numbers and precision.
        methods: methods of one init with the same inputs, or of one system.
        cache: cache of features, gradients and contexts; None to compute everything.
    """

    backbone: Backbone
    task: Task
    protocol: Protocol
    methods: Methods
    cache: FeatureCache | None = None

    @property
    def tunable(self) -> bool:
        """Whether a method tunes the context of a prompt, or is a system that may."""
        return any(method.needs_context or method.adapt in SYSTEMS for method in self.methods)

    def state(self, texts: Texts, *, tunes: bool | None = None, tunable: bool | None = None) -> PromptState:
        """Return the text features of the classes under texts.

        Args:
            texts: texts of the classes.
            tunes: whether to build the graph of the text features now; by default, if a method takes steps.
            tunable: whether a context is tuned at all; by default :attr:`tunable`.
        """
        return text_state(
            self.backbone,
            self.task,
            texts,
            memory_budget=self.protocol.memory_budget,
            tunes=any(method.tunes for method in self.methods) if tunes is None else tunes,
            tunable=self.tunable if tunable is None else tunable,
        )

    def group(self, name: str, texts: Texts | PromptState) -> PromptGroup:
        """Return the methods under texts, or under a prepared state; ``name`` is shown in the results."""
        state = texts if isinstance(texts, PromptState) else self.state(texts)
        return PromptGroup(name, self.methods, state, self.protocol, temperature_family(self.backbone))


class Preparer(Preparation, ABC):
    """Base class of inits and systems; the fields are its inputs."""

    source: ClassVar[str] = ""
    """Publication, shown by ``otpt methods``."""

    def check(self, setup: Setup) -> None:
        """Raise an :class:`OtptError` if :meth:`prepare` would, without computing anything."""

    @abstractmethod
    def prepare(self, setup: Setup) -> Sequence[Group]:
        """Return the prepared methods."""

    def prompt_name(self, task: Task, protocol: Protocol, method: Method) -> str:
        """Return the name of the prompt of a method in the results."""
        return self.name

    def facts(self, task: Task, protocol: Protocol, method: Method) -> Mapping[str, Json]:
        """Return what determines the prompt of a method, for ``config.json`` and calibration files.

        By default, the texts of the task and all inputs; of a file, a digest of its content.
        """
        inputs = {name: _input_fact(getattr(self, name)) for name in type(self).model_fields}
        return {**texts_facts(task), **({"inputs": inputs} if inputs else {})}

    def learned_from(self) -> Mapping[str, Sequence[str]]:
        """Return the keys of the images that it was learned from, where they are known, by what was learned."""
        return {}


class Init(Preparer):
    """Init: the initial prompt of methods, prepared once per class list."""


class System(Preparer):
    """System that predicts images itself, with its own views or network.

    Attributes:
        only: by axis, the values that it can be combined with; any on other axes.
    """

    only: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    needs_features: ClassVar[bool] = False

    @property
    def needs_image(self) -> bool:
        """Whether the methods need the image itself."""
        return True


def register_init(init: _Init) -> _Init:
    """Register an init (a class decorator); its name becomes a part of methods' names."""
    _register(INITS, init, {"axis": "init", "init": init.name})
    return init


def register_system(system: _System) -> _System:
    """Register a system (a class decorator) as an adaptation of the same name."""
    _register(SYSTEMS, system, {"axis": "adapt", "adapt": system.name})
    ADAPTATIONS[system.name] = Component(system.name, only=system.only)
    return system


def _register(registry: dict[str, type[Preparation]], preparer: type[Preparer], part: dict[str, object]) -> None:
    name = preparer.name
    known = registry.get(name)
    if not name or (known is not None and known.__qualname__ != preparer.__qualname__):
        raise OtptError(
            f"The name of {preparer.__name__} is {name!r}, which is empty or belongs to another class; choose another."
        )
    registry[name] = preparer
    if name not in PARTS:
        summary = (preparer.__doc__ or "").partition("\n")[0]
        PARTS[name] = make_part(name, {"summary": summary, "source": preparer.source, **part})


def init_of(method: Method) -> Init:
    """Return the init of a method with its inputs."""
    init = INITS[method.init]
    made = init(**method.inputs_of(init))
    assert isinstance(made, Init)
    return made


def preparer_of(method: Method) -> Preparer:
    """Return the system that runs a method, or else its init, with its inputs."""
    prepared = method.prepared
    assert isinstance(prepared, Preparer)
    return prepared


def by_preparer(methods: Sequence[Method]) -> list[tuple[Preparer, Methods]]:
    """Group the methods by how they are prepared, inputs included, in their order."""
    groups: list[tuple[tuple[Preparer, Init], list[Method]]] = []
    for method in methods:
        key = preparer_of(method), init_of(method)
        same = next((members for other, members in groups if other == key), None)
        if same is None:
            groups.append((key, [method]))
        else:
            same.append(method)
    return [(preparer, tuple(members)) for (preparer, _), members in groups]


def columns(tasks: Sequence[Task], protocol: Protocol, methods: Sequence[Method]) -> tuple[Column, ...]:
    """Return (prompt, method) of each output of an image.

    Args:
        tasks: the same classes under one or several texts; an init that uses no texts has one column for all of them.
        protocol: selects published templates.
        methods: methods in their order.

    Returns:
        The first prompt of every method, then the second prompt of every method, and so on.
    """
    prompts: dict[str, list[str]] = {}
    for method in methods:
        preparer = preparer_of(method)
        prompts[method.name] = list(dict.fromkeys(preparer.prompt_name(task, protocol, method) for task in tasks))
    most = max(len(names) for names in prompts.values())
    pairs: list[Column] = []
    for position in range(most):
        pairs += [(names[position], method) for method, names in prompts.items() if position < len(names)]
    return tuple(pairs)


def check_fit(
    backbone: Backbone,
    task: Task,
    protocol: Protocol,
    methods: Sequence[Method],
    *,
    texts: bool = True,
    trained: bool = True,
) -> None:
    """Raise an :class:`OtptError` early if methods or texts do not fit the backbone.

    Args:
        backbone: the model.
        task: classes and texts; checks of class names are skipped if there are none.
        protocol: views and published numbers.
        methods: methods to check.
        texts: whether to tokenise the texts.
        trained: whether methods with their own network or a first pass over the set are accepted.
    """
    if not methods:
        raise OtptError("No methods were given; expected at least one.")
    for method in methods:
        preparation = method.preparation
        if not trained and (preparation.own_network or method.sees_all_first):
            why = "sees all images of a set first"
            if preparation.own_network:
                why = "predicts with a network trained for it"
            raise OtptError(f"Method {method.name!r} {why}; run it with 'otpt evaluate' or otpt.evaluation.evaluate.")
        _check_backbone(backbone, task, method)
        protocol.recipe_for(method)
        if method.calibrate == "temperature" and method.temperature is None:
            fixed_temperature(temperature_family(backbone))
        if not isinstance(task.texts, Prompt) and task.classes:
            _check_texts(backbone, task, method)
    if task.classes and texts:
        for preparer, members in by_preparer(methods):
            preparer.check(Setup(backbone, task, protocol, members))


_OTHER_CHECKPOINTS = ("SigLIP", "PE-Core", "MobileCLIP", "EVA", "ViTamin", "CLIPA", "CoCa", "worldwide")
"""Parts of the names of architectures that OpenAI's CLIP does not have."""


def temperature_family(backbone: Backbone) -> str:
    """Return the family of checkpoints whose published temperature applies.

    Temperatures were published for OpenAI's CLIP by the kind of image tower, "vit" or "resnet" (Yoon et al., 2024).
    Weights of open_clip with another tag, models trained with a sigmoid, and architectures of other families have none.
    """
    name, _, tag = backbone.name.rpartition("/")
    if tag != "openai" and tag in open_clip_tags().get(name, ()):
        return backbone.name
    if backbone.logit_bias:
        return f"{backbone.architecture}, trained with a sigmoid"
    if any(family.lower() in backbone.architecture.lower() for family in _OTHER_CHECKPOINTS):
        return backbone.architecture
    return backbone.family


def _check_backbone(backbone: Backbone, task: Task, method: Method) -> None:
    needs_texts = method.preparation.needs_text_encoder
    features_only = isinstance(task.texts, TextFeatures) or (task.examples is not None and not task.examples.texts)
    needs_no_encoder = features_only or not task.classes
    has_texts = has_text_encoder(backbone) or (needs_no_encoder and hasattr(backbone, "text"))
    if has_texts != needs_texts:
        needed = "a CLIP-like model with a text tower" if needs_texts else "an image-only model"
        raise OtptError(f"Method {method.name!r} needs {needed}; choose one instead of {backbone.name!r}.")


def _check_texts(backbone: Backbone, task: Task, method: Method) -> None:
    """Raise an :class:`OtptError` if a method cannot use texts without a context."""
    texts = task.texts
    if isinstance(texts, Templates) and method.init == "templates":
        return
    what = "templates" if isinstance(texts, Templates) else texts.name
    if method.needs_context or not method.preparation.needs_features:
        raise OtptError(
            f"Method {method.name!r} tunes a context, but the classes were set with {what}, which have none; use a "
            "prompt of words, or a method that tunes no context, such as 'zero-shot'."
        )
    if method.init != "words" and task.examples is None:
        raise OtptError(
            f"Method {method.name!r} starts from {method.init!r}, which conflicts with classes set with {what}; remove "
            "one of them."
        )
    if isinstance(texts, TextFeatures) and texts.features.shape != (len(task.classes), backbone.embed_dim):
        raise OtptError(
            f"The text features have shape {tuple(texts.features.shape)}; expected "
            f"{(len(task.classes), backbone.embed_dim)}, one row per class from the same model."
        )


def refuse_features(methods: Sequence[Method], origin: str, views: int = 1, protocol: Protocol | None = None) -> None:
    """Raise an :class:`OtptError` for a method that needs more than the features of ``views`` views."""
    place = (protocol or Protocol()).place
    for method in methods:
        if not method.preparation.needs_features or method.prepared.needs_image:
            raise OtptError(f"Method {method.name!r} needs pixels of images, but {origin!r} contains only features.")
        if views == 1 and method.needs_views(*place):
            raise OtptError(
                f"Method {method.name!r} needs several views per image, but {origin!r} has one feature per image; pass "
                "images or features of all views, or choose a single-view method such as 'zero-shot' or 'tda'."
            )


def text_state(
    backbone: Backbone,
    task: Task,
    texts: Texts,
    *,
    memory_budget: int,
    tunes: bool = False,
    tunable: bool = True,
    attributes: Mapping[str, Sequence[str]] | None = None,
    kind: Callable[..., PromptState] = PromptState,
    **options: object,
) -> PromptState:
    """Return the text features of a task's classes under texts; see :func:`otpt.methods.state.prompt_state`."""
    if task.all_tokens and isinstance(texts, Prompt):
        texts = whole_context(text_encoder(backbone), texts)
    return prompt_state(
        backbone,
        task.classes,
        texts,
        attributes=attributes,
        memory_budget=memory_budget,
        tunes=tunes,
        tunable=tunable,
        kind=partial(kind, **options),
    )


# ---- facts: plain data that determine the predictions of a method ---------------------------------------------------


def prompt_facts(task: Task, protocol: Protocol, method: Method) -> dict[str, Json]:
    """Describe the initial prompt of a method, or the system that replaces it, as plain data."""
    preparer = preparer_of(method)
    facts: dict[str, Json] = {"name": preparer.prompt_name(task, protocol, method)}
    for each in (preparer,) if isinstance(preparer, Init) else (init_of(method), preparer):
        facts |= each.facts(task, protocol, method)
        if not type(each).__module__.startswith("otpt."):
            facts["source"] = source_digest(type(each))
    return facts


def _input_fact(value: object) -> Json:
    """Return an input of an init or a system as plain data: a digest of a file's content, other values themselves."""
    if isinstance(value, Path) and value.is_file():
        return {"file": hashlib.sha256(value.read_bytes()).hexdigest()[:32]}
    return plain(value)


def texts_facts(task: Task) -> dict[str, Json]:
    """Describe the texts of a task as plain data."""
    texts = task.texts
    if isinstance(texts, Prompt):
        tokens = "all" if task.all_tokens and texts.tokens is None else texts.tokens
        return {"words": texts.words, "tokens": tokens, "vectors": texts.digest}
    if isinstance(texts, TextFeatures):
        return {"features": hashlib.sha256(texts.features.cpu().numpy().tobytes()).hexdigest()[:32]}
    return {"texts": hashlib.sha256(json.dumps(texts.to_json()).encode()).hexdigest()[:32]}


def method_numbers(method: Method) -> dict[str, Json]:
    """Return the fields that determine a method's predictions, with source digests of custom functions.

    Inputs of its init or system are not among them; see :func:`prompt_facts`.
    """
    words = {"name", "summary", "source", "caution", "settings"}
    values = {field.name: getattr(method, field.name) for field in fields(method) if field.name not in words}
    digests = {component.name: component.digest for component in method.functions if component.digest}
    values["settings"] = {**method.defaults, **method.numbers}
    if digests:
        values["own_functions"] = digests
    return {name: plain(value) for name, value in values.items()}


def calibration_facts(backbone: Backbone, task: Task, protocol: Protocol, method: Method) -> dict[str, Json]:
    """Return the facts of a column that a calibration applies to; see :class:`otpt.calibration.Calibration`."""
    recipe = protocol.recipe_for(method)
    return column_facts(
        {"name": backbone.name, "fingerprint": backbone.fingerprint},
        {"name": method.name, "numbers": numbers_on(method_numbers(method), *protocol.place)},
        task.classes,
        prompt_facts(task, protocol, method),
        None if recipe is None else recipe.key,
        protocol.recorded(),
    )


def column_facts(
    model: Mapping[str, Json],
    method: Mapping[str, Json],
    classes: Sequence[str],
    prompt: Mapping[str, Json],
    views: str | None,
    settings: Mapping[str, Json],
) -> dict[str, Json]:
    """Return :func:`calibration_facts` from the config of a run; the recipe of a single view is ignored.

    Args:
        model: name and fingerprint of the backbone.
        method: name of the method, and its numbers on the data set.
        classes: class names.
        prompt: facts of the initial prompt.
        views: key of the view recipe, or None.
        settings: fields of the protocol that all results of a run share.
    """
    return {
        "model": dict(model),
        "method": dict(method),
        "classes": list(classes),
        "prompt": dict(prompt),
        "views": None if views is None or " n=1 " in views else views,
        **settings,
    }


def numbers_on(numbers: Mapping[str, Json], family: str, dataset: str) -> dict[str, Json]:
    """Resolve the numbers of a method that depend on the family or the data set."""
    resolved = {**numbers, "learning_rate": _resolved(numbers["learning_rate"], family, dataset)}
    for key in ("objectives", "settings"):
        table = numbers[key]
        assert isinstance(table, Mapping)
        resolved[key] = {name: _resolved(value, family, dataset) for name, value in table.items()}
    return resolved


def _resolved(value: Json, family: str, dataset: str) -> Json:
    return number_for(value, family, dataset) if isinstance(value, Mapping) else value
