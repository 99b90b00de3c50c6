"""What ``otpt reproduce`` makes: the groups of runs, checkpoints and figures of ``exhibits.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import field
from importlib import resources

import pydantic.dataclasses
from pydantic import TypeAdapter

LAYOUT_GROUPS = {
    "groups": "main",
    "main": "main",
    "sce": "main",
    "householder": "main",
    "combination": "main",
    "shifts": "shifts",
    "seeds": "seeds",
    "coop": "coop",
    "maple": "maple",
}
"""Group whose runs a layout of tables shows, for those where it is not the prompt or the system that decides."""
PROMPT_GROUPS = {"a photo of the cool": "prompt-cool", "an example of": "prompt-example"}
"""Groups of the tables of other prompts."""


@pydantic.dataclasses.dataclass(frozen=True)
class Group:
    """Runs of one folder per backbone.

    Attributes:
        command: "evaluate" or "sweep".
        options: options that all its data sets share.
        seeds: seeds of the views; the paper's number of them by default.
        views: whether the number of views is given.
        checkpoint: name of the file that it needs, see :data:`CHECKPOINTS`.
        validation: whether a temperature is fitted on each validation split first.
    """

    command: str = "evaluate"
    options: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    views: bool = True
    checkpoint: str = ""
    validation: bool = False


@pydantic.dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A file that other authors publish.

    Attributes:
        option: option of ``otpt reproduce`` that names it.
        what: what it is.
        source: where it comes from.
    """

    option: str
    what: str
    source: str

    def __str__(self) -> str:
        return f"{self.what}; give it by {self.option}. Source: {self.source}"


@pydantic.dataclasses.dataclass(frozen=True)
class FigureSpec:
    """A figure of the paper.

    Attributes:
        title: what it shows.
        kind: kind of ``otpt plot``.
        datasets: data sets that it shows.
        needs: methods by the group of the runs that hold them.
        methods: methods that it shows.
        backbone: the paper's name of the backbone.
        prompts: whether the prompts of the group are given.
        data: whether it reads images.
        remark: a choice of ours where the paper says nothing.
    """

    title: str
    kind: str
    datasets: tuple[str, ...]
    needs: dict[str, tuple[str, ...]]
    methods: tuple[str, ...] = ()
    backbone: str = "ViT-B/16"
    prompts: bool = False
    data: bool = False
    remark: str = ""


@pydantic.dataclasses.dataclass(frozen=True)
class _Exhibits:
    groups: dict[str, Group] = field(default_factory=dict)
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    figures: dict[str, FigureSpec] = field(default_factory=dict)


_EXHIBITS = TypeAdapter(_Exhibits).validate_python(
    tomllib.loads(resources.files(__package__).joinpath("exhibits.toml").read_text(encoding="utf-8"))
)
GROUPS = _EXHIBITS.groups
CHECKPOINTS = _EXHIBITS.checkpoints
FIGURES = _EXHIBITS.figures


def group_of(layout: str, prompt: str, methods: tuple[str, ...]) -> str | None:
    """Return the group whose runs hold the numbers of a table, or None for tables that are not planned.

    >>> group_of("prompts", "an example of", ("tpt",))
    'prompt-example'
    """
    if layout == "prompts":
        return PROMPT_GROUPS.get(prompt)
    if layout == "medical":
        return methods[0].partition("+")[0]
    return LAYOUT_GROUPS.get(layout)
