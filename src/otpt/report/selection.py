"""Selection of results: one prompt of each data set and method, and the variants of a sweep."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product

import pandas as pd

from otpt.data.dataset import DEFAULT_PROMPT
from otpt.errors import OtptError
from otpt.report.results import Results

AVERAGE = "average"
"""Name of the average over data sets, in place of a data set."""
DEVIATION = "_deviation"
"""Ends the name of a metric's standard deviation over seeds."""

_VARIANT = re.compile(r"(?P<base>.+)\[(?P<settings>[^\[\]]+=[^\[\]]+)\]")


REMEDY = "choose one with --prompt"


def prompt_of(results: Results, dataset: str, method: str, wanted: str | None = None, *, remedy: str = REMEDY) -> str:
    """Return the prompt shown for a method on a data set: ``wanted``, its only prompt, or the default prompt.

    Args:
        results: runs of one model.
        dataset: name of the data set.
        method: name of the method.
        wanted: prompt to show; None chooses.
        remedy: end of the error's sentence if no prompt can be chosen.
    """
    prompts = results.prompts_of(dataset, method)
    if wanted is not None or not prompts:
        return wanted or ""
    if len(prompts) == 1:
        return prompts[0]
    if DEFAULT_PROMPT in prompts:
        return DEFAULT_PROMPT
    listed = f"{'; '.join(prompts[:5])}{' …' if len(prompts) > 5 else ''}"
    raise OtptError(f"The runs hold {dataset!r} with {len(prompts)} prompts ({listed}); {remedy}.")


def refuse_several_prompts(results: Results, dataset: str, methods: Sequence[str]) -> None:
    """Raise an :class:`OtptError` if one of the methods has several prompts on a data set."""
    for method in methods:
        prompts = results.prompts_of(dataset, method)
        if len(prompts) > 1:
            listed = "; ".join(map(repr, prompts[:5]))
            raise OtptError(f"The runs hold {method!r} on {dataset!r} with the prompts {listed}; {REMEDY}.")


def choose(
    results: Results,
    datasets: Sequence[str],
    methods: Sequence[str],
    prompt: str | None = None,
    *,
    remedy: str = REMEDY,
) -> Results:
    """Select data sets and methods, each pair under one prompt; see :func:`prompt_of`."""
    parts = []
    for dataset, method in product(datasets, methods):
        shown = prompt_of(results, dataset, method, prompt, remedy=remedy)
        parts.append(results.select(dataset=dataset, method=method, prompt=shown))
    return results.narrow(pd.concat(parts), datasets, methods)


def by_prompt(results: Results) -> list[Results]:
    """Split the results by prompt if a method has several on a data set."""
    columns = results.frame.drop_duplicates(["dataset", "method", "prompt"])
    if not columns.duplicated(["dataset", "method"]).any():
        return [results]
    return [results.narrow(results.select(prompt=prompt)) for prompt in results.prompts]


def all_groups(results: Results) -> dict[str, Sequence[str]]:
    """Return a group for each data set, and their average if there are several."""
    groups: dict[str, Sequence[str]] = {name: [name] for name in results.datasets}
    return {**groups, AVERAGE: results.datasets} if len(groups) > 1 else groups


def plain_methods(methods: Sequence[str]) -> list[str]:
    """Return the methods that are not variants of a sweep."""
    return [name for name in methods if not _VARIANT.fullmatch(name)]


def swept_settings(methods: Sequence[str]) -> pd.DataFrame:
    """Return the sweep variants among methods with columns method, base, label, and one for each setting.

    >>> swept_settings(["tpt", "o-tpt[lambda=18]", "o-tpt[lambda=2]"])[["base", "label", "lambda"]]
        base label  lambda
    1  o-tpt   λ=2       2
    0  o-tpt  λ=18      18
    """
    variants = []
    for method in methods:
        if match := _VARIANT.fullmatch(method):
            settings = dict(setting.split("=", 1) for setting in match["settings"].split(","))
            label = match["settings"].replace("lambda=", "λ=")
            variants.append({"method": method, "base": match["base"], "label": label, **settings})
    keys = ["method", "base", "label"]
    frame = pd.DataFrame(variants, columns=None if variants else keys)
    for name in frame.columns.difference(keys):
        numbers = pd.to_numeric(frame[name], errors="coerce")
        if (numbers.notna() == frame[name].notna()).all():
            frame[name] = numbers
    bases = list(dict.fromkeys(frame["base"]))
    order = ["base", *(name for name in frame if name not in keys)]
    return frame.sort_values(order, key=lambda column: column.map(bases.index) if column.name == "base" else column)
