"""The configuration of a run that grows: what a command asks for is added to what is there."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Mapping
from itertools import count
from typing import Any

from otpt.errors import OtptError
from otpt.runs.differences import differences
from otpt.runs.names import folder_name

LOCKS = "locks"
CONFIG = "config.json"
METRICS = "metrics.json"

_SAME = ("format", "versions", "backbone", "numbers")
KEYS = {*_SAME, "scoring", "methods", "datasets", "commands"}
_LONGEST = 100  # characters of a folder's name; file systems allow 255


def begun(given: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a new run."""
    return grown({**given, "methods": {}, "datasets": [], "commands": []}, given, "")


def grown(stored: Mapping[str, Any], given: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """The configuration of a run after ``given`` was asked of it; an error if rows that are there would change.

    The order in which methods, prompts, data sets and images came leaves no trace beyond their own order: a run that
    was asked for them one after the other has the configuration of one that was asked for all at once.
    """
    found = copy.deepcopy(dict(stored))
    different = [each for key in _SAME for each in differences(stored.get(key), given.get(key), key)]
    for name, method in given["methods"].items():
        if name in stored["methods"]:
            different += differences(stored["methods"][name], method, f"method {name!r}:")
        found["methods"].setdefault(name, method)
    known = {each["name"]: each for each in found["datasets"]}
    for dataset in given["datasets"]:
        name = dataset["name"]
        if name not in known:
            taken = [LOCKS, CONFIG, METRICS, *(each["folder"] for each in found["datasets"])]
            known[name] = {"name": name, "folder": _free(name, taken), **dataset, "columns": []}
            found["datasets"].append(known[name])
        different += _grow_dataset(known[name], dataset, list(found["methods"]))
    if different:
        shown = "; ".join(different[:5]) + (f"; and {len(different) - 5} more" if len(different) > 5 else "")
        raise OtptError(
            f"The run in {folder!r} was made with another configuration: {shown}. Choose another folder, or repeat "
            "the settings of this one."
        )
    found["scoring"] = given["scoring"]
    found["commands"] += [each for each in given["commands"] if each not in found["commands"]]
    return found


def _grow_dataset(stored: dict[str, Any], given: Mapping[str, Any], methods: list[str]) -> list[str]:
    """Adds the columns, seeds and images of ``given``; what differs otherwise, in words."""
    name = stored["name"]
    if "source" in given:  # a run that was made before sources were kept, or from Python, has none
        stored.setdefault("source", given["source"])
    rest = ("columns", "folder") if "source" in given else ("columns", "folder", "source")
    different = differences(_without(stored, rest), _without(given, rest), f"data set {name!r}:")
    columns = {(each["prompt"]["name"], each["method"]): each for each in stored["columns"]}
    for column in given["columns"]:
        own = columns.get((column["prompt"]["name"], column["method"]))
        if own is None:
            folder = _free(column["method"], [each["folder"] for each in stored["columns"]])
            own = {"folder": folder, **copy.deepcopy(column), "images": {}}
            stored["columns"].append(own)
        where = f"{column['method']!r} on {name!r}:"
        different += differences(_without(own, ("images", "folder")), _without(column, ("images",)), where)
        images = own["images"] | {
            seed: max(number, own["images"].get(seed, 0)) for seed, number in column["images"].items()
        }
        own["images"] = dict(sorted(images.items(), key=lambda pair: int(pair[0])))
    stored["columns"] = _in_order(stored["columns"], methods)
    return different


def _in_order(columns: list[dict[str, Any]], methods: list[str]) -> list[dict[str, Any]]:
    """The first prompt of each method, in the order of the methods; then further prompts, one after the other."""
    before: Counter[str] = Counter()
    keys = []
    for column in columns:
        keys.append((before[column["method"]], methods.index(column["method"])))
        before[column["method"]] += 1
    return [columns[i] for i in sorted(range(len(columns)), key=keys.__getitem__)]


def _free(name: str, taken: Collection[str]) -> str:
    """A folder for something of this name that nothing else has, also where upper and lower case are the same."""
    used = {each.lower() for each in taken}
    base = folder_name(name)[:_LONGEST]
    numbered = (base if number == 1 else f"{base}-{number}" for number in count(1))
    return next(each for each in numbered if each.lower() not in used)


def _without(values: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}
