"""Help pages of commands.

Those of built-in commands are stored in ``help.json``, so that ``otpt COMMAND --help`` imports neither the command nor
torch; ``python docs/command_line.py`` writes the file from the commands, and ``make lint`` compares the two.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TypedDict

from otpt.cli.terminal import help_width, print_entry

FILE = Path(__file__).with_name("help.json")
SHOWN = ("Arguments", "Options", "Method", "Data", "Model", "Run", "Training")
"""Groups of options that ``--help`` shows; ``--help-all`` also shows the others."""
_INDENT = 26


class Page(TypedDict):
    """Help page of a command.

    Attributes:
        usage: the line after "Usage:".
        text: what the command does.
        examples: lines of examples.
        groups: by title, the spelling and the help text of each option.
    """

    usage: str
    text: str
    examples: list[str]
    groups: dict[str, list[tuple[str, str]]]


def stored_page(command: str) -> Page | None:
    """Return the page of a built-in command, or None for another one."""
    pages: dict[str, Page] = json.loads(FILE.read_text(encoding="utf-8"))
    return pages.get(command)


def commands_with(option: str) -> list[str]:
    """Return the built-in commands that have an option, by its stored spelling."""
    pages: dict[str, Page] = json.loads(FILE.read_text(encoding="utf-8"))
    return [command for command, page in pages.items() if option in _options(page)]


def _options(page: Page) -> set[str]:
    """Return the names of the options of a page."""
    spellings = [spelling for options in page["groups"].values() for spelling, _ in options]
    return {name.split()[0] for spelling in spellings for name in spelling.split(", ") if name.startswith("-")}


def print_page(page: Page, *, complete: bool) -> None:
    """Print the usage, examples and options of a command; without ``complete``, only the most used options."""
    width = help_width()
    print(f"Usage: {page['usage']}\n\n{textwrap.fill(page['text'], width)}\n")
    if page["examples"]:
        print("Examples:", *(f"  {line}" for line in page["examples"]), "", sep="\n")
    groups = page["groups"]
    further = [title for title in groups if title not in SHOWN]
    for title in [*SHOWN, *(further if complete else ())]:
        if title in groups:
            print(f"{title}:")
            for spelling, text in groups[title]:
                print_entry(spelling, text, _INDENT)
            print()
    if further and not complete:
        print(textwrap.fill(f"More with --help-all: {', '.join(title.lower() for title in further)}.", width))
