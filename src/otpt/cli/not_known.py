"""Commands and options that do not exist: what was probably meant, also by people who come from other projects."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Iterator, Sequence

_MODEL = ("--model", "--pretrained")
_ELSEWHERE = {
    "--dataset": "a data set is given without an option, after the command",
    "--datasets": "data sets are given without an option, after the command",
    "--dataset-root": "write --data ROOT",
    "--image": "images are given without an option, after the command",
    "--images": "images are given without an option, after the command",
    "--candidate-labels": "write --classes NAME …",
    "--labels": "write --classes NAME …",
    "--class-names": "write --classes NAME …",
    "--output": "write --out",
    "--batch-size": "leave it out: the size of a batch changes no number",
    "--num-workers": "write --threads N, or --workers N for processes",
    "--lambda": "write --set lambda=…",
    "--lr": "write --set learning-rate=…",
    "--n-bins": "write --bins M",
    "--task": "leave it out: every method classifies",
    "--amp": "write --precision bf16 or --precision fp16",
    "--topk": "write --top K in predict; an evaluation measures top-5 accuracy in any case",
    "--top-k": "write --top K in predict; an evaluation measures top-5 accuracy in any case",
}
"""Options of other projects, and those that one would guess."""


_COMMANDS_ELSEWHERE = {
    "help": "write otpt --help",
    "version": "write otpt --version",
    "list": "write otpt methods, otpt models or otpt datasets",
    "build": "write otpt metrics RUN … -o FILE.csv",
    "classify": "write otpt predict",
    "benchmark": "write otpt evaluate",
}
"""Commands of other projects, and those that one would guess."""


def command_hint(given: str, commands: Iterable[str]) -> str:
    """What to say of a command that does not exist."""
    names = list(commands)
    near = difflib.get_close_matches(given.lower(), names, n=2, cutoff=0.6)
    near = near or [name for name in names if len(given) > 2 and name.startswith(given.lower())]
    hint = _COMMANDS_ELSEWHERE.get(given.lower()) or (f"did you mean {' or '.join(near)}?" if near else "")
    said = f"unknown command {given!r}" + (f"; {hint}" if hint else "")
    return f"{said}{'' if said.endswith('?') else '.'} The commands are {', '.join(names)}"


def words_hint(left: Sequence[str], parser: argparse.ArgumentParser, given: Sequence[str]) -> str:
    """What to say of words that no option takes."""
    hints = list(dict.fromkeys(_hints(left, list(_options_of(parser, given)))))
    return f"unrecognised arguments: {' '.join(left)}" + "".join(f"; {hint}" for hint in hints)


def _hints(left: Sequence[str], known: Sequence[str]) -> Iterator[str]:
    values = _values(left)
    if any(option in values for option in _MODEL):
        name, tag = (values.get(option) or default for option, default in zip(_MODEL, ("NAME", "TAG"), strict=True))
        yield f"write --backbone {name}/{tag}"
    for option in values:
        if option in _ELSEWHERE:
            yield _ELSEWHERE[option]
        elif option not in _MODEL and (near := difflib.get_close_matches(option, known, n=1, cutoff=0.7)):
            yield f"did you mean {near[0]}?"


def _values(left: Sequence[str]) -> dict[str, str]:
    """Options with the word after each; underscores count as hyphens."""
    found = {}
    for word, following in zip(left, [*left[1:], ""], strict=True):
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            after = value if equals else "" if following.startswith("-") else following
            found[option.replace("_", "-")] = after
    return found


def _options_of(parser: argparse.ArgumentParser, given: Sequence[str]) -> Iterator[str]:
    """The options of the command that was given, and of the command below it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                if name in given:
                    yield from _options_of(below, given)
        elif action.help != argparse.SUPPRESS:
            yield from action.option_strings
