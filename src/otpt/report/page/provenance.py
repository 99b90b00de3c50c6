"""Settings and versions of a run, for the end of the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from otpt.evaluation import Run
from otpt.report.page.command import Command, command_of


@dataclass(frozen=True)
class RunContent:
    """A run of the page.

    Attributes:
        done, parts: how far it has come.
        settings: (name, value) pairs, versions last.
    """

    folder: str
    done: int
    parts: int
    settings: tuple[tuple[str, str], ...]
    command: Command

    @property
    def partial(self) -> bool:
        """Whether it is still in progress."""
        return self.done < self.parts


def run_content(run: Run) -> RunContent:
    """What decided the numbers of ``run``."""
    parts = len(run.items)
    return RunContent(str(run.folder), parts - len(run.missing()), parts, tuple(_settings(run.config)), command_of(run))


def _settings(config: dict[str, Any]) -> list[tuple[str, str]]:
    backbone = config["backbone"]
    found = [
        ("backbone", f"{backbone['name']} ({backbone['architecture']}, {backbone['precision']}, {backbone['device']})"),
        ("weights", str(backbone["fingerprint"])),
        ("methods", "; ".join(_method(method) for method in config["methods"])),
        ("seeds", ", ".join(map(str, config["seeds"]))),
        ("bins", f"{config['bins']}, {'(lo, hi]' if config['side'] == 'right' else '[lo, hi)'}"),
        ("official precision", "yes" if config["official_precision"] else "no"),
        ("limit", "none" if config["limit"] is None else f"first {config['limit']} pictures of each set"),
        ("image features", str(config["features"])),
    ]
    for dataset in config["datasets"]:
        words = [
            f"{dataset['pictures']} pictures",
            f"{len(dataset['classes'])} classes",
            f"weights for {dataset['family']}",
            str(dataset["views"]),
            f"prompts: {_some([prompt['name'] for prompt in dataset['prompts']])}",
            f"fingerprint {dataset['fingerprint']}",
        ]
        found.append((f"data set {dataset['name']}", "; ".join(words)))
    return found + [(f"version of {name}", str(version)) for name, version in config["versions"].items()]


def _method(method: dict[str, Any]) -> str:
    weights = [f"{name} {_weight(weight)}" for name, weight in method["objectives"].items()]
    return f"{method['name']} ({', '.join(weights) or 'nothing tuned'})"


def _weight(weight: Any) -> str:
    if isinstance(weight, dict):
        return " / ".join(f"{value:g} {family}" for family, value in weight.items())
    return f"{weight:g}"


def _some(names: list[str], most: int = 6) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"“{name}”" for name in names[:most]) + rest
