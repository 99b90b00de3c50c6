"""The command that makes a run again, from what its folder says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from otpt.data import find_entry
from otpt.data.dataset import DEFAULT_PROMPT
from otpt.errors import OtptError
from otpt.evaluation import IMAGENET_80, Run, Settings, read_templates, sweep_method
from otpt.evaluation.differences import differences
from otpt.evaluation.settings import method_numbers, prompt_name
from otpt.methods import Method, get_method
from otpt.report.sweeps import variant

TEMPLATES = "templates.txt"
_TEMPLATES_OF_CLIP = 80
_DEFAULTS = Settings()


@dataclass(frozen=True)
class Command:
    """How to make a run again.

    Attributes:
        words: of the command line.
        notes: what it cannot say.
        templates: lines of the file that it names, if it names one.
    """

    words: tuple[str, ...]
    notes: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()

    def __str__(self) -> str:
        """For a shell, an option a line."""
        quoted = [shlex.quote(word) for word in self.words]
        return "".join(f" \\\n  {word}" if word.startswith("--") else f" {word}" for word in quoted).strip()


def command_of(run: Run) -> Command:
    """The command of ``run``: ``otpt evaluate``, or ``otpt sweep`` where methods or prompts were swept."""
    config, notes = run.config, []
    datasets = run.datasets
    words: list[str] = [str(dataset["name"]) for dataset in datasets]
    entries = [find_entry(name) for name in words]
    if any(entries):
        words += ["--data", "DATA"]
        notes.append("DATA is the folder that holds the data sets.")
    own = [
        name
        for name, entry in zip(words, entries, strict=False)
        if entry is None and not name.startswith(("emoji/", "hf:"))
    ]
    if own:
        notes.append(f"{', '.join(own)}: own data; give the folder, table or shards that had this name.")
    prompts, templates = _prompts(datasets, notes)
    sweeps, methods = _methods(config["methods"], notes)
    if templates and not sweeps:
        methods = ["--method", *methods[1:]]
    words += methods + prompts
    if learned := dict.fromkeys(start for dataset in datasets for start in dataset.get("contexts", {})):
        words += ["--context", *(f"{start.upper()}-FILE" for start in learned)]
        notes.append("The files of learned prompts are known by their fingerprints in config.json.")
    words += _shared(datasets, entries, config)
    words += _plain(config)
    words += ["--out", str(run.folder)]
    name = "sweep" if sweeps or templates else "evaluate"
    asked = () if templates == (IMAGENET_80,) else templates
    return Command(("otpt", name, *words), tuple(notes), asked)


def _prompts(datasets: Sequence[Mapping[str, Any]], notes: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Options of the prompts, and the templates if there are several."""
    found = [tuple(prompt["name"] for prompt in dataset["prompts"]) for dataset in datasets]
    first = datasets[0]["prompts"]
    if any(prompt["vectors"] for dataset in datasets for prompt in dataset["prompts"]):
        notes.append("The context is made of vectors, which are given from Python or with a method's checkpoint.")
        return [], ()
    if len(set(found)) > 1:  # each data set has its own
        return [], ()
    if len(first) == 1:
        if first[0]["tokens"] is None and first[0]["words"] == DEFAULT_PROMPT:
            return [], ()
        tokens = [] if first[0]["tokens"] is None else ["--prompt-tokens", str(first[0]["tokens"])]
        return ["--prompt", first[0]["words"], *tokens], ()
    of_clip = read_templates(IMAGENET_80) if len(first) == _TEMPLATES_OF_CLIP else []  # asks open_clip, and so torch
    if [prompt_name(prompt) for prompt in of_clip] == list(found[0]):
        return ["--prompts", IMAGENET_80], (IMAGENET_80,)
    lines = tuple(_template(prompt["words"]) for prompt in first)
    notes.append(f"{TEMPLATES} holds the {len(lines)} templates, one a line.")
    return ["--prompts", TEMPLATES], lines


def _template(words: str) -> str:
    return f"{words.replace('[CLS]', '{}')}." if "[CLS]" in words else f"{words} {{}}."


def _methods(stored: Sequence[dict[str, Any]], notes: list[str]) -> tuple[bool, list[str]]:
    """Whether methods were swept, and the options that name them and their numbers."""
    names = [method["name"] for method in stored]
    parts = [variant(name) for name in names]
    if all(parts):
        bases = list(dict.fromkeys(base for base, _ in filter(None, parts)))
        values: dict[str, list[str]] = {}
        for _, settings in filter(None, parts):
            for setting in settings.split(","):
                name, _, value = setting.partition("=")
                if value not in values.setdefault(name, []):
                    values[name].append(value)
        chosen = [f"{name}={','.join(each)}" for name, each in values.items()]
        _tell(stored, lambda: [each for base in bases for each in sweep_method(get_method(base), values)], notes)
        return True, ["--method", *bases, "--set", *chosen]
    changes: dict[str, str] = {}
    for method in stored:
        changes |= _changes(method)
    _tell(stored, lambda: [_changed(get_method(name), changes) for name in names], notes)
    replaced = ["--set", *(f"{name}={value}" for name, value in changes.items())] if changes else []
    return False, ["--methods", *names, *replaced]


def _changes(stored: Mapping[str, Any]) -> dict[str, str]:
    """Settings in which a stored method differs from the one that is called so now."""
    try:
        now = method_numbers(get_method(stored["name"]))
    except OtptError:
        return {}
    found = {
        key.replace("_", "-"): str(value)
        for key, value in stored.items()
        if key not in {"name", "objectives"} and value != now.get(key) and value is not None
    }
    weights = stored["objectives"].items()
    return found | {name: str(value) for name, value in weights if value != now["objectives"].get(name)}


def _changed(method: Method, changes: Mapping[str, str]) -> Method:
    return method.override({name: value for name, value in changes.items() if method.has_setting(name)})


def _tell(stored: Sequence[dict[str, Any]], make: Callable[[], list[Method]], notes: list[str]) -> None:
    """A note where the command would run other methods than those stored."""
    try:
        found = differences(list(stored), [method_numbers(method) for method in make()], "methods")
    except OtptError:
        found = ["a method of the run is not built in"]
    if found:
        notes.append(
            f"Methods of your own, or put together from Python ({found[0]}): their numbers are in config.json."
        )


def _shared(datasets: Sequence[Mapping[str, Any]], entries: Sequence[Any], config: Mapping[str, Any]) -> list[str]:
    """Options of family, AugMix and number of views, where they are not those that the data sets have by themselves."""
    words: list[str] = []
    family = [dataset["family"] for dataset in datasets]
    usual = [entry.family if entry else "fine-grained" for entry in entries]
    if family != usual and len(set(family)) == 1:
        words += ["--family", family[0]]
    found = [re.search(r"n=(\d+) augmix=(on|off)", dataset["views"]) for dataset in datasets]
    views = [match.groups() for match in found if match is not None]
    if len(views) < len(datasets):  # a system that makes no such views
        return words
    mixed = [augmix == "on" for _, augmix in views]
    if mixed != [entry.augmix if entry else True for entry in entries] and len(set(mixed)) == 1:
        words.append("--augmix" if mixed[0] else "--no-augmix")
    tunes = any(method["objectives"] for method in config["methods"])
    if tunes and int(views[0][0]) != _DEFAULTS.recipe.n_views:
        words += ["--views", views[0][0]]
    return words


def _plain(config: Mapping[str, Any]) -> list[str]:
    """Options that a run's configuration names as they are."""
    words = ["--backbone", config["backbone"]["name"], "--device", config["backbone"]["device"]]
    if config["backbone"]["precision"] != "float32":
        words += ["--precision", config["backbone"]["precision"]]
    if tuple(config["seeds"]) != tuple(_DEFAULTS.seeds):
        words += ["--seeds", *map(str, config["seeds"])]
    for name in ("limit", "part_size", "bins", "features"):
        if config[name] != getattr(_DEFAULTS, name):
            words += [f"--{name.replace('_', '-')}", str(config[name])]
    flags = ("official_precision", "save_probabilities")
    return words + [f"--{name.replace('_', '-')}" for name in flags if config[name]]
