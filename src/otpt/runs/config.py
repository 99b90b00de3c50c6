"""The configuration of a run, ``config.json``: everything that decided its rows, and how it grows.

Two requests share a run if their configurations are equal in all fields but those that are marked as :data:`GROWS` or
:data:`INFORMS` where they are declared; a new field is compared unless it is marked.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from otpt.errors import OtptError
from otpt.files import Json, as_json, read_json, write_atomically
from otpt.records import describe_mistake

CONFIG = "config.json"
FORMAT = 3
GROWS = "grows"
"""Mark of a field that further requests extend: methods, data sets, columns, images."""
INFORMS = "informs"
"""Mark of a field that does not decide any row and may change."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")

    def decisive(self) -> dict[str, object]:
        """Return the fields that must be equal for two requests to share a run."""
        values: dict[str, object] = {}
        for name, field in type(self).model_fields.items():
            if GROWS in field.metadata or INFORMS in field.metadata:
                continue
            value = getattr(self, name)
            values[name] = value.decisive() if isinstance(value, _Part) else value
        return values


class ModelConfig(_Part):
    """The model: the name given by the user, and a fingerprint of its weights."""

    name: Annotated[str, INFORMS]
    fingerprint: str
    architecture: str = ""
    family: str = ""
    precision: str = ""
    device: str = ""
    compiled: bool = False
    preprocessing: Mapping[str, Json] = Field(default_factory=dict)


class Scoring(_Part):
    """Number and closed side of the bins of calibration errors."""

    n_bins: int = 20
    side: str = "right"


class ColumnConfig(_Part):
    """A method under a prompt on one data set.

    Attributes:
        prompt: its name, and its words, fingerprint or digest.
        views: the recipe of the views, None for methods that take the image itself.
        images: seed → number of images.
        order: set for streams, whose predictions depend on the order and number of images.
        facts: further values that decide the rows, such as a calibration.
    """

    method: str
    prompt: Mapping[str, Json]
    views: str | None = None
    images: Annotated[dict[int, int], GROWS]
    order: str | None = None
    facts: Mapping[str, Json] = Field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        """(prompt, method)."""
        return str(self.prompt["name"]), self.method


class DatasetConfig(_Part):
    """A data set of the run and the columns that were computed on it.

    Attributes:
        name: unique within the run.
        variant: distinguishes several runs of one method on a data set, in addition to seeds; "" usually.
        source: where the data came from: a registered name, or the absolute path of the user's own data; None if
            unknown, which agrees with any other.
    """

    name: str
    variant: str = ""
    source: str | None = None
    fingerprint: str
    family: str = ""
    classes: list[str]
    columns: Annotated[list[ColumnConfig], GROWS]

    @property
    def base_name(self) -> str:
        """The name without the variant."""
        return self.name.removesuffix(f"@{self.variant}") if self.variant else self.name

    @property
    def seeds(self) -> list[int]:
        """The seeds of its columns."""
        return sorted({seed for column in self.columns for seed in column.images})


class RunConfig(_Part):
    """The whole configuration.

    Attributes:
        shard_size: images per shard.
        numbers: further settings that all rows of the run share.
        methods: name → definition of the method.
        commands: command lines that created and extended the run, for people.
    """

    format: int = FORMAT
    versions: dict[str, str]
    backbone: ModelConfig
    shard_size: int = Field(ge=1)
    numbers: Mapping[str, Json]
    scoring: Annotated[Scoring, INFORMS] = Field(default_factory=Scoring)
    methods: Annotated[dict[str, Mapping[str, Json]], GROWS]
    datasets: Annotated[list[DatasetConfig], GROWS]
    commands: Annotated[list[str], INFORMS] = Field(default_factory=list)


def read_config(folder: Path) -> RunConfig:
    """Read ``config.json`` of a run folder; one sentence if it is missing, damaged or of another version."""
    path = folder / CONFIG
    content = read_json(path, "run configuration")
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise OtptError(
            f"The run {str(folder)!r} has another format than this version of otpt reads ({FORMAT}); make it again in "
            "another folder, or read it with the version that made it."
        )
    try:
        return RunConfig.model_validate(content)
    except ValidationError as error:
        raise OtptError(f"The run configuration {str(path)!r} is damaged: {describe_mistake(error)}.") from None


def write_config(folder: Path, config: RunConfig) -> None:
    """Write ``config.json``, whole or not at all."""
    write_atomically(
        folder / CONFIG, as_json(config.model_dump(mode="json", exclude_defaults=True) | {"format": FORMAT})
    )


def merge_config(stored: RunConfig | None, requested: RunConfig, folder: Path) -> RunConfig:
    """Return the configuration of a run after a request; an error if existing rows would change.

    Requests of methods, prompts, seeds, data sets and images one after the other give the same configuration as a
    single request, except for the order.
    """
    if stored is None:
        stored = requested.model_copy(update={"methods": {}, "datasets": [], "commands": []})
    merged = stored.model_copy(deep=True)
    conflicts = differences(stored.decisive(), requested.decisive())
    for name, method in requested.methods.items():
        if name in stored.methods:
            conflicts += differences(stored.methods[name], method, f"method {name!r}:")
        merged.methods.setdefault(name, method)
    datasets = {dataset.name: dataset for dataset in merged.datasets}
    for dataset in requested.datasets:
        if dataset.name not in datasets:
            datasets[dataset.name] = dataset.model_copy(update={"columns": []})
            merged.datasets.append(datasets[dataset.name])
        conflicts += _merge_dataset(datasets[dataset.name], dataset, list(merged.methods))
    if conflicts:
        rest = f"; and {len(conflicts) - 5} more" if len(conflicts) > 5 else ""
        raise OtptError(
            f"The run in {str(folder)!r} was made with another configuration: {'; '.join(conflicts[:5])}{rest}. Choose "
            "another folder, or repeat the settings of this one."
        )
    merged.scoring = requested.scoring
    merged.commands += [command for command in requested.commands if command not in merged.commands]
    return merged


def _merge_dataset(stored: DatasetConfig, requested: DatasetConfig, methods: list[str]) -> list[str]:
    """Add the columns, seeds and images of a request to ``stored``; return other differences."""
    stored.source = stored.source or requested.source
    known_source = requested.model_copy(update={"source": requested.source or stored.source})
    conflicts = differences(stored.decisive(), known_source.decisive(), f"data set {requested.name!r}:")
    columns = {column.key: column for column in stored.columns}
    for column in requested.columns:
        merged = columns.get(column.key)
        if merged is None:
            merged = copy.deepcopy(column.model_copy(update={"images": {}}))
            stored.columns.append(merged)
        where = f"{column.method!r} on {requested.name!r}:"
        conflicts += differences(merged.decisive(), column.decisive(), where)
        images = {seed: max(count, merged.images.get(seed, 0)) for seed, count in column.images.items()}
        merged.images = dict(sorted((merged.images | images).items()))
    # The first prompt of each method, in the order of the methods; then further prompts.
    seen: Counter[str] = Counter()
    order = {}
    for column in stored.columns:
        order[column.key] = seen[column.method], methods.index(column.method)
        seen[column.method] += 1
    stored.columns.sort(key=lambda column: order[column.key])
    return conflicts


def differences(stored: object, requested: object, where: str = "") -> list[str]:
    """List where two configurations differ, in words."""
    if stored == requested:
        return []
    if isinstance(stored, Mapping) and isinstance(requested, Mapping):
        join = " " if where.endswith(":") else "." if where else ""
        keys = {**stored, **requested}
        pairs = {f"{where}{join}{key}": (stored.get(key), requested.get(key)) for key in keys}
    elif isinstance(stored, list) and isinstance(requested, list) and len(stored) == len(requested):
        pairs = {f"{where}[{i}]": pair for i, pair in enumerate(zip(stored, requested, strict=True))}
    else:
        return [f"{where} is {stored!r:.80} there and {requested!r:.80} now"]
    return [words for place, (before, now) in pairs.items() for words in differences(before, now, place)]


def folder_name(name: str) -> str:
    """Convert ``emoji/food`` to ``emoji-food``; ``coop+o-tpt`` is unchanged."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip("-._+") or "data"
