"""Options of inits other than words: ``--context``, ``--attributes``, ``--templates`` and ``--fpp``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otpt.cli.notes import tell
from otpt.cli.options.text_files import read_lines
from otpt.errors import OtptError, unknown
from otpt.settings import Fpp

if TYPE_CHECKING:
    from otpt.methods import Method
    from otpt.prompts import Templates

NAME = "templates"
"""What sentences of the command line are called in the results; those of a file are called like the file."""


def add_init_options(parser: Any, *, of_data_sets: bool = True) -> None:
    """Files of learned prompts and attributes, ``{dataset}`` in their names; and what :func:`chosen_inits` reads."""
    more = "; {dataset} is replaced by the name of the data set" if of_data_sets else ""
    parser.add_argument(
        "--context",
        nargs="+",
        default=[],
        metavar="FILE",
        help=f"learned prompts of CoOp, CoCoOp or MaPLe, for methods that start from one (coop+o-tpt){more}",
    )
    parser.add_argument(
        "--attributes",
        metavar="FILE",
        help="attributes of the classes, for methods that start from them (tca): JSON or TOML, class = [attribute, …]"
        + more,
    )
    parser.add_argument(
        "--templates",
        "--template",
        nargs="+",
        metavar="TEXT",
        help="sentences with {} for the class name, or @FILE with one per line, for methods that start from your own "
        "('templates', 'templates+sals')",
    )
    parser.add_argument(
        "--fpp",
        nargs="+",
        metavar="NAME=VALUE",
        help="numbers of FPP, for methods that start from its context ('fpp+tpt'): steps=200, seed=1, noises=8 …",
    )


def chosen_inits(options: argparse.Namespace, methods: Sequence[Method]) -> dict[str, Any]:
    """``--templates`` and ``--fpp`` as :class:`otpt.Classifier` and :class:`otpt.evaluation.Settings` take them."""
    from otpt.registry import FPP

    named = ", ".join(method.name for method in methods)
    if options.templates is not None and not any(method.init == "templates" for method in methods):
        raise OtptError(
            f"--templates was given, but no method starts from templates of your own ({named}); take the part "
            "'templates', or leave them out."
        )
    if options.fpp is not None and not any(method.init in FPP for method in methods):
        raise OtptError(f"--fpp was given, but no method starts from FPP's context ({named}); leave it out.")
    return {
        "templates": None if options.templates is None else read_templates(options.templates),
        "fpp": Fpp() if options.fpp is None else parse_fpp(options.fpp),
    }


def read_templates(given: Sequence[str]) -> Templates:
    """Sentences as they are, and those of files after ``@``."""
    from otpt.prompts import Templates

    sentences: list[str] = []
    for word in given:
        if word.startswith("@"):
            sentences += read_lines(word[1:], "template file")
        elif "{}" not in word and os.path.isfile(word):
            tell(f"--templates {word} is read as a file; write --templates @{word}.")
            sentences += read_lines(word, "template file")
        else:
            sentences.append(word)
    file = given[0].startswith("@") and len(given) == 1
    return Templates(Path(given[0]).stem.removeprefix("@") if file else NAME, sentences)


def parse_fpp(given: Sequence[str]) -> Fpp:
    """``["steps=200", "weight-per-class=0.15"]`` → FPP's numbers, the others as published."""
    known: dict[str, Any] = {name: type(getattr(Fpp(), name)) for name in Fpp.model_fields}
    found: dict[str, Any] = {}
    for item in given:
        name, equals, value = item.partition("=")
        key = name.replace("-", "_")
        if not equals or not value:
            raise OtptError(f"--fpp was given {item!r}; expected NAME=VALUE, such as steps=200.")
        if key in found:
            raise OtptError(f"--fpp names {name!r} twice; expected one value.")
        if key not in known:
            raise unknown("number of FPP", name, [each.replace("_", "-") for each in known])
        try:
            found[key] = known[key](value)
        except ValueError:
            kind = "a whole number" if known[key] is int else "a number"
            raise OtptError(f"--fpp {name} was given {value!r}; expected {kind}.") from None
    return Fpp(**found)
