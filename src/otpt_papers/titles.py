"""Short titles of data sets, methods and metrics, as the papers have them (``titles.toml``)."""

from __future__ import annotations

import tomllib
from importlib import resources

from otpt.metrics import get_metric
from otpt.report.selection import DEVIATION

_TITLES: dict[str, dict[str, str]] = tomllib.loads(
    resources.files(__package__).joinpath("titles.toml").read_text(encoding="utf-8")
)
DATASETS = _TITLES["datasets"]
"""Titles of data sets by name, in the order of the papers' columns."""
METHODS = _TITLES["methods"]
"""Titles of methods and of parts of their names."""


def dataset_title(name: str) -> str:
    """Return the short title of a data set's column, or of a group of its images.

    >>> dataset_title("dtd"), dataset_title("flowers102:group 1"), dataset_title("mine")
    ('DTD', 'FLW: group 1', 'mine')
    """
    base, _, part = name.partition(":")
    if name in DATASETS or base not in DATASETS or not part:
        return DATASETS.get(name, name)
    return f"{DATASETS[base]}: {part}"


def method_title(name: str) -> str:
    """Return the title of a method in the papers; its name for other methods.

    >>> method_title("coop+o-tpt"), method_title("tda")
    ('CoOp + O-TPT', 'tda')
    """
    if name in METHODS:
        return METHODS[name]
    parts = name.split("+")
    return " + ".join(METHODS[part] for part in parts) if all(part in METHODS for part in parts) else name


def metric_title(name: str) -> str:
    """Return the short title of a metric, or of its deviation over seeds."""
    if name.endswith(DEVIATION):
        return f"Std. {metric_title(name.removesuffix(DEVIATION))}"
    return get_metric(name).short
