"""Deviations of runs from the protocol of a paper: what its numbers can be compared with, and what differs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pandas as pd

from otpt.data import find_entry
from otpt.errors import OtptError
from otpt.files import Json
from otpt.methods import get_method, method_numbers
from otpt.report import Results
from otpt.report.selection import AVERAGE
from otpt.runs import ColumnConfig, DatasetConfig
from otpt_papers.papers import Paper, table_datasets, user_data_note

_VIEWS = re.compile(r"\bn=(\d+) augmix=(on|off)\b")
_OWN_MODELS = {"MedCLIP": "medclip:", "PLIP": "hf:vinid/plip", "FPT": "hf:google/vit-base-patch16-384"}
"""Beginning of the name of the weights of the paper's other models."""
_FLOAT32 = ("float32", "fp16", "fp16-both", "")


@dataclass(frozen=True)
class Deviations:
    """How runs deviate from the protocol of a paper's table.

    Attributes:
        other_model: whether the weights are others, so that no number can be compared.
        strange: data sets with the name of one of the paper's, but other images or classes.
        other_images: data sets of which the runs have fewer or more images than the paper's test split.
        notes: a sentence for each deviation.
    """

    other_model: bool = False
    strange: tuple[str, ...] = ()
    other_images: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def difference(self, cells: pd.DataFrame) -> pd.Series:
        """Return value minus paper of each cell, or nan where the two cannot mean the same."""
        excluded = {*self.other_images, *self.strange}
        is_other = cells["dataset"].isin(excluded) | ((cells["dataset"] == AVERAGE) & bool(excluded))
        difference = cells["value"] - cells["paper"]
        return difference.where(~is_other & (not self.other_model), np.nan)


def find_deviations(results: Results, paper: Paper, printed: pd.DataFrame) -> Deviations:
    """Compare the runs of results with the protocol of a paper's table.

    Args:
        results: what is shown of the runs.
        paper: the paper.
        printed: rows of the paper's table.
    """
    backbone, prompt = str(printed["backbone"].iloc[0]), str(printed["prompt"].iloc[0])
    of_table = table_datasets(printed)
    shown = [name for name in results.datasets if name in of_table]
    strange = [name for name in shown if not is_registered(results, name)]
    model = _model_note(results, backbone)
    notes = [] if model is None else [model]
    notes += [_strange_note(results, name) for name in strange]
    other_images = []
    for name in shown:
        entry, images = find_entry(name.partition(":")[0]), results.images_of(name)
        if name not in strange and entry is not None and entry.test_images not in {None, images}:
            other_images.append(name)
            notes.append(f"{images} of {entry.test_images} images of {name}.")
    notes += _protocol_notes(results, paper, shown, prompt)
    excluded = [*strange, *other_images]
    if model is not None or excluded:
        what = "these runs" if model is not None else ", ".join(dict.fromkeys(excluded))
        notes.append(f"So no difference is shown of {what}.")
    return Deviations(model is not None, tuple(strange), tuple(other_images), tuple(dict.fromkeys(notes)))


def is_registered(results: Results, name: str) -> bool:
    """Return whether a data set of the runs is the registered one, with its classes."""
    base = name.partition(":")[0]
    entry = None if results.is_own(name) else find_entry(base)
    if entry is None or base != entry.name:
        return False
    return sorted(results.configs_of(name)[0].classes) == sorted(entry.class_list().names)


def _strange_note(results: Results, name: str) -> str:
    if results.is_own(name):
        return user_data_note(name)
    return f"The runs' {name!r} has other class names than the registered data set, so it is not compared."


def _model_note(results: Results, backbone: str) -> str | None:
    """Return a note if the weights are not those of the paper's backbone."""
    stored = results.runs[0].config.backbone
    expected = _OWN_MODELS.get(backbone)
    if expected is not None:
        return None if stored.name.startswith(expected) else f"The model is {stored.name!r}, the paper's is {backbone}."
    architecture, _, tag = stored.name.partition("/")
    plain = architecture.replace("-quickgelu", "")
    if plain == backbone.replace("/", "-") and tag == "openai":
        return None
    return f"The model is {stored.name!r}; the paper's is {backbone} with OpenAI's weights."


def _protocol_notes(results: Results, paper: Paper, shown: list[str], prompt: str) -> Iterator[str]:
    """Yield the deviations that a comparison survives, but that may explain a difference."""
    if paper.n_bins is not None and results.n_bins != paper.n_bins:
        yield f"{results.n_bins} bins of calibration errors instead of {paper.n_bins}."
    if paper.seeds is not None and len(results.seeds) != paper.seeds:
        yield f"{_count(len(results.seeds), 'seed')} instead of {paper.seeds}."
    elif paper.seeds is None and len(results.seeds) > 1:
        yield f"Means over {len(results.seeds)} seeds; the paper does not state how many it used."
    for run in results.runs:
        if run.config.backbone.precision not in _FLOAT32:
            yield f"The towers ran in {run.config.backbone.precision}; the paper's in float16 autocast."
        if not run.config.numbers.get("official_precision"):
            yield "Logits and softmax were not rounded to float16 as in the released code (--official-precision)."
        if run.config.numbers.get("features") == "float16":
            yield "Image features were rounded to float16 (--features float16)."
        if not run.config.numbers.get("official_orientation"):
            yield "Images were turned by their EXIF tag, which the released code ignores (--official-orientation)."
    shown_keys = {(key.dataset, key.prompt, key.method) for key in results.keys_of()}
    for name in shown:
        for config in results.configs_of(name):
            yield from _dataset_notes(config)
            for column in config.columns:
                if (name, *column.key) in shown_keys:
                    yield from _column_notes(results, paper, name, column, prompt)


def _dataset_notes(config: DatasetConfig) -> Iterator[str]:
    entry = find_entry(config.base_name.partition(":")[0])
    if entry is None:
        return
    if entry.official_swap is not None and tuple(config.classes) == entry.class_list().names:
        first, second = (entry.class_list().names[label] for label in entry.official_swap)
        yield (
            f"{entry.name} has the correct class names; the released code swaps {first!r} and {second!r} "
            "(--official-names)."
        )
    if config.family and config.family != entry.family:
        yield f"{entry.name} ran with the weights of {config.family!r} data sets instead of {entry.family!r} ones."


def _column_notes(results: Results, paper: Paper, dataset: str, column: ColumnConfig, prompt: str) -> Iterator[str]:
    """Yield the deviations of a method on a data set."""
    words = str(column.prompt["name"])
    if " " in prompt and words.partition(" (")[0] != prompt:
        yield f"The prompt is {words!r} instead of {prompt!r}."
    views = _VIEWS.search(column.views or "")
    if views is not None and int(views[1]) > 1:
        count, is_mixed, wanted = int(views[1]), views[2] == "on", paper.mixes(dataset.partition(":")[0])
        if paper.views is not None and count != paper.views and not column.method.startswith("promptsmooth"):
            yield f"{count} views instead of {paper.views}."
        if wanted is not None and is_mixed != wanted and not column.method.startswith(("maple", "promptsmooth")):
            yield f"AugMix {views[2]} for {dataset}."
    for run in results.runs:
        if column.method in run.config.methods:
            yield from _method_notes(column.method, run.config.methods[column.method])


def _method_notes(name: str, numbers: Mapping[str, Json]) -> Iterator[str]:
    """Yield a note if a method has other numbers than its name says."""
    published = _published_numbers(name)
    if published is None:
        return
    for key, value in published.items():
        if numbers.get(key) != value:
            yield f"{name} has {key.replace('_', ' ')} {_words(numbers.get(key))} instead of {_words(value)}."


def _words(value: Json) -> str:
    """Format numbers of a method: nested tables without braces."""
    if not isinstance(value, Mapping):
        return str(value)
    return ", ".join(f"{name} {_words(number)}" for name, number in value.items())


@lru_cache(maxsize=64)
def _published_numbers(name: str) -> Mapping[str, Json] | None:
    """Return the numbers of a method by its name, or None for a name that is not a method's."""
    try:
        numbers = method_numbers(get_method(name))
    except OtptError:
        return None
    return {key: value for key, value in numbers.items() if key != "settings"}


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
