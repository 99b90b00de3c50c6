"""Runs of the same images in one table: what differs between them becomes part of the names of methods.

Runs with 8 and with 32 views, or with two values of ``--set``, hold methods of the same names. Their images, classes,
model and seeds are the same, and view v of an image does not depend on the number of views, so their predictions are
paired; the methods are called ``o-tpt[views=8]`` and ``o-tpt[views=32]``. What both have computed alike is shown once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from otpt.errors import OtptError
from otpt.methods import Protocol
from otpt.runs import ColumnConfig, Run

_VIEWS = re.compile(r"(\w+)=(\S+)")
_PLAIN = re.compile(r"[^\s\[\],=]{1,24}")
_WORDS: Mapping[object, str] = {True: "on", False: "off", None: "none"}
_NOT_LABELLED = ("summary", "source", "caution", "name")
"""Facts of methods that decide no row."""

Column = tuple[str, str, str]
"""Data set, prompt and method as stored."""
Facts = Mapping[str, object]


def display_names(runs: Sequence[Run]) -> dict[tuple[str, str], str]:
    """Return the names under which methods are shown, by (run folder, stored name).

    Args:
        runs: runs of the same images and model.

    Raises:
        OtptError: if methods of one name differ in what no name can say, such as learned prompts.
    """
    differing: dict[str, set[str]] = {}
    of_all = _differing([_run_facts(run) for run in runs])
    for method in dict.fromkeys(method for run in runs for method in run.config.methods):
        holders = [run for run in runs if method in run.config.methods]
        definitions = [dict(_flat(run.config.methods[method])) for run in holders]
        differing[method] = of_all | _differing(definitions)
    for column in dict.fromkeys(column for run in runs for column in _columns(run)):
        facts = [column_facts(run, column) for run in runs if column in _columns(run)]
        differing[column[2]] |= _differing(facts)
    for dataset, method in dict.fromkeys((column[0], column[2]) for run in runs for column in _columns(run)):
        differing[method] |= _differing_between_prompts(runs, dataset, method)
    names: dict[tuple[str, str], str] = {}
    for run in runs:
        for method in dict.fromkeys(column[2] for column in _columns(run)):
            label = _label(run, method, sorted(differing.get(method, ())), runs)
            names[str(run.folder), method] = _joined(method, label)
    return names


def column_facts(run: Run, column: Column) -> dict[str, object]:
    """Return everything that decided the rows of a column, except the images, the model and the seeds."""
    dataset, prompt, method = column
    config = next(config for config in run.datasets if config.name == dataset)
    stored = next(stored for stored in config.columns if stored.key == (prompt, method))
    facts = _run_facts(run)
    facts |= dict(_flat(run.config.methods[method]))
    if stored.views is not None:
        facts |= dict(_view_facts(stored))
    facts["calibration"] = stored.facts.get("calibration")
    facts["prompt"] = stored.prompt.get("fingerprint")
    return facts


def _run_facts(run: Run) -> dict[str, object]:
    """Return what all rows of a run share."""
    return {name: run.config.numbers.get(name) for name in Protocol.recorded_fields()}


def _differing(facts: Sequence[Facts]) -> set[str]:
    """Return the names of the facts that are not the same in all of several mappings."""
    names = {name for each in facts for name in each}
    return {name for name in names if any(each.get(name) != facts[0].get(name) for each in facts)}


def _differing_between_prompts(runs: Sequence[Run], dataset: str, method: str) -> set[str]:
    """Return the facts that differ where no two runs share a prompt; tables tell the prompts apart by themselves."""
    by_run = {}
    for run in runs:
        columns = [column for column in _columns(run) if (column[0], column[2]) == (dataset, method)]
        if columns:
            by_run[str(run.folder)] = (run, columns)
    prompts = [column[1] for _, columns in by_run.values() for column in columns]
    if len(set(prompts)) < len(prompts):
        return set()
    return _differing([column_facts(run, columns[0]) for run, columns in by_run.values()]) - {"prompt"}


def _columns(run: Run) -> list[Column]:
    return [(config.name, *column.key) for config in run.datasets for column in config.columns]


def _view_facts(column: ColumnConfig) -> Iterator[tuple[str, object]]:
    """Yield the parts of a view recipe: number of views, rounds, AugMix and ranges of crops."""
    for name, value in _VIEWS.findall(column.views or ""):
        yield {"n": "views"}.get(name, name), value


def _flat(values: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the settings of a method by their last name; views and augmix are those of the recipe."""
    for name, value in values.items():
        if name in (*_NOT_LABELLED, "views", "augmix"):
            continue
        if isinstance(value, Mapping) and name in ("objectives", "settings"):
            yield from value.items()
        else:
            yield name, value


def _label(run: Run, method: str, names: Sequence[str], runs: Sequence[Run]) -> dict[str, str]:
    """Return the differing facts of a method in a run as words."""
    label: dict[str, str] = {}
    for name in names:
        values = [column_facts(run, column).get(name) for column in _columns(run) if column[2] == method]
        value = values[0]
        text = _WORDS.get(value, str(value)) if value is None or isinstance(value, bool) else str(value)
        text = "published" if isinstance(value, Mapping) else text
        if name in ("calibration", "prompt") or any(other != value for other in values) or not _PLAIN.fullmatch(text):
            raise OtptError(
                f"The runs {' and '.join(repr(str(run.folder)) for run in runs)} cannot be compared: {method!r} has "
                f"another {name} in each of them; leave the method out with --methods, or give one run."
            )
        label[name.replace("_", "-")] = text
    return label


def _joined(method: str, label: Mapping[str, str]) -> str:
    """Return the name of a method with further values: "o-tpt[lambda=6]" and views=8 give "o-tpt[lambda=6,views=8]"."""
    words = ",".join(f"{name}={text}" for name, text in label.items())
    if not words:
        return method
    return f"{method[:-1]},{words}]" if method.endswith("]") else f"{method}[{words}]"
