"""A run folder by somebody else: whether its configuration and its rows can be what they say they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from otpt.errors import OtptError
from otpt.runs.shards import COLUMNS, LAST, OPTIONAL, CorruptShardError

_MOST_IMAGES = 10**9
_MOST_SHARDS = 10**6  # of one column and seed
_SEED = re.compile(r"-?[0-9]{1,18}")
_FRACTIONS = ("confidence", "probability", "squares")
_CLASSES = ("label", "prediction", "rank")


def check_config(config: Mapping[str, Any], folder: Path) -> None:
    """``OtptError`` that names what of ``config.json`` is missing or of another form, or leads out of the run."""
    fault = _fault(config)
    if fault:
        raise OtptError(
            f"The configuration of the run {str(folder)!r} is damaged: {fault}; take an intact copy, or make the run "
            "again in another folder."
        )
    root = folder.resolve()
    for dataset in config["datasets"]:
        for inner in {"", *(column["folder"] for column in dataset["columns"])}:
            for seed in {"", *(seed for column in dataset["columns"] for seed in column["images"])}:
                place = folder / dataset["folder"] / (f"seed-{seed}" if seed else "") / (inner if seed else "")
                if not place.resolve().is_relative_to(root):
                    raise OtptError(
                        f"The run {str(folder)!r} has a link that leads out of it, {str(place)!r}; put the files "
                        "themselves in its place."
                    )


def check_asked(config: Mapping[str, Any], folder: Path) -> None:
    """``OtptError`` for the configuration of a new run that nobody could read again; before it is written."""
    fault = _fault(config)
    if fault:
        raise OtptError(
            f"The run {str(folder)!r} cannot be made: {fault}; choose another value, and names that are UTF-8 text."
        )


def check_rows(table: pa.Table, sums: npt.NDArray[np.int64], classes: int) -> None:
    """:class:`CorruptShardError` for rows with columns, classes or probabilities that no run writes."""
    if len(sums) != classes:
        raise CorruptShardError(f"it has sums of {len(sums)} classes in place of {classes}")
    names = table.column_names
    if len(set(names)) < len(names):
        raise CorruptShardError("it has two columns of one name")
    known = {**COLUMNS, **LAST, **{name: kind for name, kind in OPTIONAL.items() if name in names}}
    for name, kind in known.items():
        if name not in names or not _alike(table.schema.field(name).type, kind):
            raise CorruptShardError(f"its column {name!r} is missing or of another type")
    for name in names:
        kind = table.schema.field(name).type
        if name not in known and not (
            pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)
        ):
            raise CorruptShardError(f"its column {name!r} does not hold numbers")
    read = table.filter(table["error"].is_null())
    if any(read[name].null_count for name in (*COLUMNS, "flags")):
        raise CorruptShardError("it has rows with gaps")
    for name in _CLASSES:
        _within(name, read[name], 0, classes - 1)
    for name in _FRACTIONS:
        _within(name, read[name], 0.0, 1.0 + 1e-6)
    _within("entropy", read["entropy"], 0.0, 1e6)
    lists = read["top_classes"].combine_chunks(), read["top_probabilities"].combine_chunks()
    _within("top_classes", lists[0].flatten(), 0, classes - 1)
    _within("top_probabilities", lists[1].flatten(), 0.0, 1.0 + 1e-6)
    if not lists[0].value_lengths().equals(lists[1].value_lengths()):
        raise CorruptShardError("its kept classes and their probabilities differ in number")
    if "probabilities" in names:
        lengths = set(pc.unique(read["probabilities"].combine_chunks().value_lengths()).to_pylist())
        if not lengths <= {classes}:
            raise CorruptShardError("its probabilities are not those of all classes")


def _alike(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_list(wanted):
        return bool(pa.types.is_list(found) and found.value_type == wanted.value_type)
    return bool(found == wanted)


def _within(name: str, values: Any, low: float, high: float) -> None:
    if values.null_count:
        raise CorruptShardError(f"its column {name!r} has gaps")
    numbers = np.asarray(values.to_numpy(zero_copy_only=False), np.float64)
    if len(numbers) and not (numbers.min() >= low and numbers.max() <= high):  # also false for nan
        raise CorruptShardError(f"its column {name!r} has values outside {low:g} to {high:g}")


def _fault(config: Mapping[str, Any]) -> str:
    for key, kind in (("versions", dict), ("backbone", dict), ("numbers", dict), ("scoring", dict), ("methods", dict),
                      ("datasets", list), ("commands", list)):  # fmt: skip
        if not isinstance(config.get(key), kind):
            return _wrong(key, config.get(key))
    checks: list[tuple[str, Any, Callable[[Any], bool]]] = [
        ("backbone.name", config["backbone"].get("name"), _is_text),
        ("backbone.fingerprint", config["backbone"].get("fingerprint"), _is_text),
        ("numbers.shard_size", config["numbers"].get("shard_size"), lambda size: _is_count(size) and size > 0),
        ("scoring.bins", config["scoring"].get("bins"), _is_count),
        ("scoring.side", config["scoring"].get("side"), _is_text),
        ("commands", config["commands"], lambda each: all(map(_is_text, each))),
        ("methods", config["methods"], lambda each: all(map(_is_method, each.values()))),
        ("datasets", config["datasets"], lambda each: all(isinstance(own, dict) for own in each)),
    ]
    for where, value, fits in checks:
        if not fits(value):
            return _wrong(where, value)
    for position, dataset in enumerate(config["datasets"]):
        fault = _fault_of_dataset(dataset, f"datasets[{position}]", config)
        if fault:
            return fault
    names = [dataset["name"] for dataset in config["datasets"]]
    return "" if len(set(names)) == len(names) else "it has two data sets of one name"


def _fault_of_dataset(dataset: Mapping[str, Any], where: str, config: Mapping[str, Any]) -> str:
    classes, columns = dataset.get("classes"), dataset.get("columns")
    for key, otherwise in (("name", None), ("fingerprint", None), ("family", ""), ("source", "")):
        if not _is_text(dataset.get(key, otherwise)):
            return _wrong(f"{where}.{key}", dataset.get(key))
    if not _is_plain(dataset.get("folder")):
        return _wrong(f"{where}.folder", dataset.get("folder"))
    if not isinstance(classes, list) or not classes or not all(map(_is_text, classes)):
        return _wrong(f"{where}.classes", classes)
    if not isinstance(columns, list):
        return _wrong(f"{where}.columns", columns)
    for position, column in enumerate(columns):
        fault = _fault_of_column(column, f"{where}.columns[{position}]", config)
        if fault:
            return fault
    return ""


def _fault_of_column(column: Any, where: str, config: Mapping[str, Any]) -> str:
    if not isinstance(column, dict):
        return _wrong(where, column)
    prompt, images, views = column.get("prompt"), column.get("images"), column.get("views")
    if not _is_text(column.get("method")) or column["method"] not in config["methods"]:
        return _wrong(f"{where}.method", column.get("method"))
    if not isinstance(prompt, dict) or not _is_text(prompt.get("name")):
        return _wrong(f"{where}.prompt", prompt)
    if views is not None and not _is_text(views):
        return _wrong(f"{where}.views", views)
    if not _is_plain(column.get("folder")):
        return _wrong(f"{where}.folder", column.get("folder"))
    if not isinstance(images, dict) or not all(_SEED.fullmatch(seed) for seed in images):
        return _wrong(f"{where}.images", images)
    size = config["numbers"]["shard_size"]
    if not all(_is_count(count) and count <= min(_MOST_IMAGES, _MOST_SHARDS * size) for count in images.values()):
        return _wrong(f"{where}.images", images)
    return ""


def _is_text(value: Any) -> bool:
    """A text that can be written, so without lone surrogates."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _is_method(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("objectives", {}), dict):
        return False
    weights = [each for own in value.get("objectives", {}).values()
               for each in (own.values() if isinstance(own, dict) else [own])]  # fmt: skip
    return all(isinstance(each, (int, float)) and abs(each) < 1e300 for each in weights)


def _is_plain(value: Any) -> bool:
    """The name of a folder within the run: no path, nothing that leads elsewhere."""
    return (
        _is_text(value) and value.strip(". ") != "" and not re.search(r"[/\\\x00-\x1f:]", value) and len(value) <= 255
    )


def _wrong(where: str, value: Any) -> str:
    return f"{where} is {repr(value)[:80]}, which no run has there"
