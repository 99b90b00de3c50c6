"""The configuration of a run, ``config.json``: everything that decided its rows, and how it grows."""

from __future__ import annotations

import copy
import re
from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from otpt.errors import OtptError
from otpt.files import as_json, read_json, write_atomically

CONFIG = "config.json"
FORMAT = 3


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ModelConfig(_Part):
    """The model: the name given by the user, and a fingerprint of its weights."""

    name: str
    fingerprint: str
    architecture: str = ""
    family: str = ""
    precision: str = ""
    device: str = ""
    compiled: bool = False
    preprocessing: dict[str, Any] = Field(default_factory=dict)


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
    prompt: dict[str, Any]
    views: str | None = None
    images: dict[int, int]
    order: str | None = None
    facts: dict[str, Any] = Field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        """(prompt, method)."""
        return str(self.prompt["name"]), self.method


class DatasetConfig(_Part):
    """A data set of the run and the columns that were computed on it.

    Attributes:
        name: unique within the run.
        variant: distinguishes several runs of one method on a data set, in addition to seeds; "" usually.
        source: where the data came from: a registered name, or the absolute path of the user's own data.
    """

    name: str
    variant: str = ""
    source: str | None = None
    fingerprint: str
    family: str = ""
    classes: list[str]
    columns: list[ColumnConfig]

    @property
    def base_name(self) -> str:
        """The name without the variant."""
        return self.name.removesuffix(f"@{self.variant}") if self.variant else self.name

    @property
    def seeds(self) -> list[int]:
        """The seeds of its columns."""
        return sorted({seed for each in self.columns for seed in each.images})


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
    numbers: dict[str, Any]
    scoring: Scoring = Field(default_factory=Scoring)
    methods: dict[str, dict[str, Any]]
    datasets: list[DatasetConfig]
    commands: list[str] = Field(default_factory=list)


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
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise OtptError(f"The run configuration {str(path)!r} is damaged: {where}: {first['msg']}.") from None


def write_config(folder: Path, config: RunConfig) -> None:
    """Write ``config.json``, whole or not at all."""
    write_atomically(
        folder / CONFIG, as_json(config.model_dump(mode="json", exclude_defaults=True) | {"format": FORMAT})
    )


def merge_config(stored: RunConfig | None, given: RunConfig, folder: Path) -> RunConfig:
    """Return the configuration of a run after ``given`` was requested; an error if existing rows would change.

    Requests of methods, prompts, seeds, data sets and images one after the other give the same configuration as a
    single request, except for the order.
    """
    if stored is None:
        stored = given.model_copy(update={"methods": {}, "datasets": [], "commands": []})
    merged = stored.model_copy(deep=True)
    different = differences(_fixed(stored), _fixed(given))
    for name, method in given.methods.items():
        if name in stored.methods:
            different += differences(stored.methods[name], method, f"method {name!r}:")
        merged.methods.setdefault(name, method)
    known = {each.name: each for each in merged.datasets}
    for dataset in given.datasets:
        if dataset.name not in known:
            known[dataset.name] = dataset.model_copy(update={"columns": []})
            merged.datasets.append(known[dataset.name])
        different += _merge_dataset(known[dataset.name], dataset, list(merged.methods))
    if different:
        more = f"; and {len(different) - 5} more" if len(different) > 5 else ""
        raise OtptError(
            f"The run in {str(folder)!r} was made with another configuration: {'; '.join(different[:5])}{more}. Choose "
            "another folder, or repeat the settings of this one."
        )
    merged.scoring = given.scoring
    merged.commands += [each for each in given.commands if each not in merged.commands]
    return merged


def _fixed(config: RunConfig) -> dict[str, Any]:
    """Return the part shared by all rows, without the user's name of the weights."""
    found = config.model_dump(include={"versions", "backbone", "shard_size", "numbers"})
    del found["backbone"]["name"]
    return found


def _merge_dataset(stored: DatasetConfig, given: DatasetConfig, methods: list[str]) -> list[str]:
    """Add the columns, seeds and images of ``given``; return other differences."""
    ignored = {"columns"} if stored.source and given.source else {"columns", "source"}
    where = f"data set {given.name!r}:"
    different = differences(stored.model_dump(exclude=ignored), given.model_dump(exclude=ignored), where)
    stored.source = stored.source or given.source
    columns = {each.key: each for each in stored.columns}
    for column in given.columns:
        own = columns.get(column.key)
        if own is None:
            own = copy.deepcopy(column.model_copy(update={"images": {}}))
            stored.columns.append(own)
        where = f"{column.method!r} on {given.name!r}:"
        different += differences(own.model_dump(exclude={"images"}), column.model_dump(exclude={"images"}), where)
        images = {seed: max(count, own.images.get(seed, 0)) for seed, count in column.images.items()}
        own.images = dict(sorted((own.images | images).items()))
    # The first prompt of each method, in the order of the methods; then further prompts.
    seen: Counter[str] = Counter()
    order = {}
    for column in stored.columns:
        order[column.key] = seen[column.method], methods.index(column.method)
        seen[column.method] += 1
    stored.columns.sort(key=lambda column: order[column.key])
    return different


def differences(stored: Any, given: Any, where: str = "") -> list[str]:
    """List where two configurations differ, in words."""
    if stored == given:
        return []
    if isinstance(stored, dict) and isinstance(given, dict):
        join = " " if where.endswith(":") else "." if where else ""
        pairs = {f"{where}{join}{key}": (stored.get(key), given.get(key)) for key in {**stored, **given}}
    elif isinstance(stored, list) and isinstance(given, list) and len(stored) == len(given):
        pairs = {f"{where}[{i}]": pair for i, pair in enumerate(zip(stored, given, strict=True))}
    else:
        return [f"{where} is {stored!r:.80} there and {given!r:.80} now"]
    return [each for place, (one, other) in pairs.items() for each in differences(one, other, place)]


def folder_name(name: str) -> str:
    """Convert ``emoji/food`` to ``emoji-food``; ``coop+o-tpt`` is unchanged."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip("-._+") or "data"
