"""Write the reference of the command line and the stored help pages from the commands themselves.

python docs/command_line.py docs/reference/command-line.md [--check]
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ["COLUMNS"] = "100"

from otpt.cli.app import describe_command
from otpt.cli.commands import COMMANDS, all_commands, print_commands
from otpt.cli.pages import FILE, Page, print_page


def stored_pages() -> str:
    """Return the help pages of the built-in commands as JSON."""
    described: dict[str, Page] = {}
    for commands in COMMANDS.values():
        for name, (target, _) in commands.items():
            described[name] = describe_command(name, target)
    return json.dumps(described, indent=1, ensure_ascii=False) + "\n"


def reference() -> str:
    """Return the reference: the list of commands, then every command with all its options."""
    parts = [
        "# Command line",
        "Generated from `otpt --help` and `otpt COMMAND --help-all`.",
        _block(partial(print_commands, "")),
    ]
    for commands in all_commands().values():
        for name, (target, _) in commands.items():
            page = describe_command(name, target)
            parts.append(f"## otpt {name}\n\n{_block(partial(print_page, page, complete=True))}")
    return "\n\n".join(parts) + "\n"


def _block(show: Callable[[], None]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        show()
    return f"```text\n{printed.getvalue().strip()}\n```"


def main(path: Path, *, check: bool) -> None:
    """Write both files, or exit with a message if one is not up to date."""
    files = {path: reference(), FILE: stored_pages()}
    for file, content in files.items():
        if not check:
            file.write_text(content, encoding="utf-8")
        elif file.read_text(encoding="utf-8") != content:
            sys.exit(f"{file} is not up to date; run: python docs/command_line.py {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), check="--check" in sys.argv)
