"""Settings and versions of a run and the commands that made it, for the end of the page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from otpt.data.dataset import is_own
from otpt.runs import Run


@dataclass(frozen=True)
class RunContent:
    """A run of the page.

    Attributes:
        done, images: how far it has come.
        settings: (name, value) pairs, versions last.
        commands: that made it, in their order; none if it was made from Python.
    """

    folder: str
    done: int
    images: int
    settings: tuple[tuple[str, str], ...]
    commands: tuple[str, ...]

    @property
    def partial(self) -> bool:
        """Whether it is still in progress."""
        return self.done < self.images


def run_content(run: Run) -> RunContent:
    """What decided the numbers of ``run``."""
    done, images = run.progress()
    commands = tuple(an_option_per_line(command) for command in run.config["commands"])
    return RunContent(str(run.folder), done, images, tuple(_settings(run)), commands)


def an_option_per_line(command: str) -> str:
    """The same for a shell, and easier to read."""
    try:
        quoted = [shlex.quote(word) for word in shlex.split(command)]
    except ValueError:  # not of a shell: a program may keep any words with its run
        return command
    return "".join(f" \\\n  {word}" if word.startswith("--") else f" {word}" for word in quoted).strip()


def _settings(run: Run) -> list[tuple[str, str]]:
    config = run.config
    backbone, scoring, numbers = config["backbone"], config["scoring"], config["numbers"]
    found = [
        ("backbone", f"{backbone['name']} ({', '.join(_model(backbone))})"),
        ("weights", str(backbone["fingerprint"])),
        ("methods", "; ".join(_method(name, method) for name, method in config["methods"].items())),
        ("seeds", ", ".join(map(str, run.seeds))),
        ("bins", f"{scoring['bins']}, {'(lo, hi]' if scoring['side'] == 'right' else '[lo, hi)'}"),
        ("official precision", "yes" if numbers.get("official_precision") else "no"),
        ("image features", str(numbers.get("features", "–"))),
        ("views keyed by", str(numbers.get("view_key", "file"))),
    ]
    found += [(f"data set {dataset['name']}", "; ".join(_dataset(dataset))) for dataset in config["datasets"]]
    return found + [(f"version of {name}", str(version)) for name, version in config["versions"].items()]


def _dataset(dataset: Mapping[str, Any]) -> list[str]:
    columns = dataset["columns"]
    images = dict.fromkeys(str(count) for column in columns for count in column["images"].values())
    views = dict.fromkeys(column["views"] for column in columns if column.get("views") is not None)
    prompts = list(dict.fromkeys(column["prompt"]["name"] for column in columns))
    return [
        f"{' or '.join(images)} images",
        f"{len(dataset['classes'])} classes",
        f"weights for {dataset.get('family', '–')}",
        *views,
        f"prompts: {_some(prompts)}",
        f"fingerprint {dataset['fingerprint']}",
        *([f"from {dataset['source']}"] if is_own(dataset.get("source")) else []),
    ]


def _method(name: str, method: Mapping[str, Any]) -> str:
    words = [f"{objective} {_weight(weight)}" for objective, weight in method.get("objectives", {}).items()]
    words += [f"{axis} {method[axis]}" for axis, usual in _USUAL.items() if method.get(axis, usual) != usual]
    return f"{name} ({', '.join(words) or 'nothing adapted'})"


_OF_MODEL = ("architecture", "precision", "device")


def _model(backbone: Mapping[str, Any]) -> list[str]:
    return [*(str(backbone.get(key, "–")) for key in _OF_MODEL), *(["compiled"] if backbone.get("compiled") else [])]


_USUAL = {"init": "words", "adapt": "context", "calibrate": "none", "aggregate": "clean", "gate": "none"}


def _weight(weight: Any) -> str:
    if isinstance(weight, dict):
        return " / ".join(f"{value:g} {family}" for family, value in weight.items())
    return f"{weight:g}"


def _some(names: list[str], most: int = 6) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"“{name}”" for name in names[:most]) + rest
