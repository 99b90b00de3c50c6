"""What an evaluation does, as data; and the configuration that its run folder carries."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from typing import TYPE_CHECKING, Any, Protocol

from otpt._version import __version__
from otpt.errors import OtptError, unknown
from otpt.evaluation.format import FEATURE_TYPES, FORMAT, check_bins
from otpt.evaluation.starts import ContextSource, column_names, find_contexts, folder_name, learned_numbers
from otpt.methods import FAMILIES, Method, get_methods
from otpt.prompts import MEMORY_BUDGET, Prompt
from otpt.views import ViewRecipe

if TYPE_CHECKING:
    import torch

    from otpt.backbones import Preprocessing
    from otpt.data import Dataset
    from otpt.prompts.learned import LearnedPrompt

_VERSIONS = ("numpy", "open-clip-torch", "pillow", "pyarrow", "torch")


class Model(Protocol):
    """What a run says of its model: a :class:`otpt.backbones.Backbone`, or that of a medical system."""

    name: str
    architecture: str
    fingerprint: str
    family: str
    device: torch.device
    precision: str
    preprocessing: Preprocessing


@dataclass(frozen=True)
class Settings:
    """Everything that decides an evaluation's numbers, besides the backbone and the data sets.

    Args:
        methods: names, files, or :class:`Method` objects; all are run in one pass.
        prompts: the contexts to judge with, all in one pass; None takes each data set's own.
        seeds: of the views; one pass each.
        recipe: number and kind of views. Where no method tunes, one view is made.
        augmix: mix the views or not; None takes each data set's own.
        family: whose weights the methods take; None takes each data set's own.
        limit: judge only the first so many pictures of each set.
        part_size: pictures in a part, which is what a killed run may lose.
        features: "full" keeps image features as the backbone gives them; "float16" rounds them (and halves the cache).
        all_tokens: tune all tokens of a context whose words are not single tokens, in place of an error.
        save_probabilities: keep all probabilities of every row.
        bins, side: of ECE, adaptive ECE, MCE and SCE.
        contexts: files of learned prompts for the methods that start from one, at most one a kind; ``{dataset}`` in a
            path stands for the data set's name.
    """

    methods: Sequence[str | Method] = ("zero-shot", "tpt", "c-tpt", "o-tpt")
    prompts: Sequence[str | Prompt] | None = None
    seeds: Sequence[int] = (0,)
    recipe: ViewRecipe = field(default_factory=ViewRecipe)
    augmix: bool | None = None
    family: str | None = None
    official_precision: bool = False
    limit: int | None = None
    part_size: int = 64
    features: str = "full"
    all_tokens: bool = False
    save_probabilities: bool = False
    bins: int = 20
    side: str = "right"
    memory_budget: int = MEMORY_BUDGET
    contexts: Sequence[ContextSource] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", get_methods(self.methods))
        object.__setattr__(self, "seeds", tuple(self.seeds))
        object.__setattr__(self, "contexts", tuple(self.contexts))
        if self.prompts is not None:
            prompts = tuple(Prompt(each) if isinstance(each, str) else each for each in self.prompts)
            object.__setattr__(self, "prompts", prompts)
            each_once("prompt", [prompt_name(prompt) for prompt in prompts])
        each_once("method", [method.name for method in self.chosen])
        if self.prompts is not None and all(method.start != "words" for method in self.chosen):
            named = ", ".join(method.name for method in self.chosen)
            raise OtptError(f"Words of a prompt were given, but no method starts from words ({named}); leave them out.")
        each_once("seed", list(self.seeds))
        if self.family is not None and self.family not in FAMILIES:
            raise unknown("family of data sets", self.family, FAMILIES)
        if self.features not in FEATURE_TYPES:
            raise unknown("type of features", self.features, FEATURE_TYPES)
        check_bins(self.bins, self.side)
        for name, value in (("limit", self.limit), ("part size", self.part_size)):
            if value is not None and value < 1:
                raise OtptError(f"The {name} is {value}; expected 1 or more.")

    @property
    def chosen(self) -> tuple[Method, ...]:
        """The methods."""
        return get_methods(self.methods)

    def recipe_for(self, dataset: Dataset) -> ViewRecipe:
        """The views of a data set's pictures."""
        augmix = dataset.augmix if self.augmix is None else self.augmix
        tunes = any(method.objectives and method.start != "maple" for method in self.chosen)
        return replace(self.recipe, augmix=augmix, n_views=self.recipe.n_views if tunes else 1)

    @property
    def two_tower_recipe(self) -> ViewRecipe:
        """The views of MaPLe's methods: without AugMix, as PromptAlign has them, unless it is asked for."""
        tunes = any(method.objectives and method.start == "maple" for method in self.chosen)
        return replace(self.recipe, augmix=bool(self.augmix), n_views=self.recipe.n_views if tunes else 1)

    @property
    def system(self) -> str:
        """The medical system whose methods are run; "" for test-time tuning on views."""
        return ""

    def system_numbers(self, dataset: Dataset) -> dict[str, Any]:
        """What a system adds to the configuration of a data set."""
        return {}

    def contexts_for(self, dataset: Dataset) -> Mapping[str, LearnedPrompt]:
        """The learned prompts that a data set's pictures are judged with, by the start that they are for."""
        return find_contexts(self.contexts, dataset.name, self.chosen)

    def columns_for(self, dataset: Dataset) -> tuple[tuple[str, str], ...]:
        """(prompt, method) of the rows of a picture, in their order."""
        prompts = [prompt_name(prompt) for prompt in self.prompts_for(dataset)]
        return column_names(prompts, [(method.name, method.start) for method in self.chosen])

    def prompts_for(self, dataset: Dataset) -> tuple[Prompt, ...]:
        """The contexts that a data set's pictures are judged with."""
        given = self.prompts or (dataset.prompt,)
        return tuple(Prompt(each) if isinstance(each, str) else each for each in given)

    def family_for(self, dataset: Dataset) -> str:
        """Whose weights the methods take on a data set."""
        return self.family or dataset.family


def run_config(backbone: Model, datasets: Sequence[Dataset], settings: Settings) -> dict[str, Any]:
    """The full configuration of a run, as it is stored in its folder."""
    each_once("data set", [dataset.name for dataset in datasets])
    folders = [folder_name(dataset.name) for dataset in datasets]
    return {
        "format": FORMAT,
        "versions": {
            "otpt": __version__,
            "python": ".".join(platform.python_version_tuple()[:2]),
            **{name: metadata.version(name) for name in _VERSIONS},
        },
        "backbone": {
            "name": backbone.name,
            "fingerprint": backbone.fingerprint,
            "architecture": backbone.architecture,
            "family": backbone.family,
            "precision": backbone.precision,
            "device": backbone.device.type,
            "preprocessing": _plain(asdict(backbone.preprocessing)),
        },
        "methods": [method_numbers(method) for method in settings.chosen],
        "seeds": list(settings.seeds),
        "official_precision": settings.official_precision,
        "features": settings.features,
        "memory_budget": settings.memory_budget,
        "limit": settings.limit,
        "part_size": settings.part_size,
        "save_probabilities": settings.save_probabilities,
        "bins": settings.bins,
        "side": settings.side,
        "datasets": [
            {
                "name": dataset.name,
                "folder": folder if folders.count(folder) == 1 else f"{folder}-{position}",
                "fingerprint": dataset.fingerprint,
                "pictures": min(len(dataset), settings.limit or len(dataset)),
                "family": settings.family_for(dataset),
                "views": settings.recipe_for(dataset).key,
                "prompts": [_prompt_numbers(prompt) for prompt in settings.prompts_for(dataset)],
                "classes": list(dataset.class_names),
                **learned_numbers(settings.contexts_for(dataset), settings.two_tower_recipe.key),
                **settings.system_numbers(dataset),
            }
            for position, (dataset, folder) in enumerate(zip(datasets, folders, strict=True))
        ],
    }


def method_numbers(method: Method) -> dict[str, Any]:
    """What a method computes, as plain data."""
    words = {"summary", "source"}.union({"start", "condition"} if method.start == "words" else set())
    words = words if method.system else words | {"system"}
    values = {key: getattr(method, key) for key in method.__dataclass_fields__ if key not in words}
    return _plain({**values, "objectives": {name: _plain(weight) for name, weight in method.objectives.items()}})


def prompt_name(prompt: Prompt) -> str:
    """What a prompt is called in rows and tables."""
    name = prompt.words if prompt.vectors is None else f"vectors {_vectors_digest(prompt)[:8]}"
    return name if prompt.tokens is None else f"{name} ({prompt.tokens} tokens tuned)"


def _prompt_numbers(prompt: Prompt) -> dict[str, Any]:
    vectors = None if prompt.vectors is None else _vectors_digest(prompt)
    return {"name": prompt_name(prompt), "words": prompt.words, "tokens": prompt.tokens, "vectors": vectors}


def _vectors_digest(prompt: Prompt) -> str:
    assert prompt.vectors is not None
    return hashlib.sha256(prompt.vectors.detach().cpu().double().numpy().tobytes()).hexdigest()[:32]


def each_once(kind: str, names: Sequence[object]) -> None:
    """``OtptError`` if there are no names, or one of them is there twice."""
    if not names:
        raise OtptError(f"No {kind} was given; expected at least one.")
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise OtptError(f"The {kind} {twice!r} is given twice; each is run once.")


def _plain(value: Any) -> Any:
    """Tuples as lists and mappings as dictionaries, as JSON gives them back."""
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if hasattr(value, "items"):
        return {key: _plain(each) for key, each in value.items()}
    return value
