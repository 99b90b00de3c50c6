"""Write the reference of the command line from the commands' own help texts.

python docs/command_line.py docs/reference/command-line.md [--check]
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from pathlib import Path

os.environ["COLUMNS"] = "100"

from otpt.cli import main


def help_of(*words: str) -> str:
    """The help text of a command."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*words])
    return printed.getvalue().strip()


def page() -> str:
    """The reference: the list of commands, then every command with all its options."""
    overview = help_of("--help")
    commands = re.findall(r"^  (\S+(?: \S+)?)  +\S", overview, flags=re.MULTILINE)
    parts = [
        "# Command line",
        "Generated from `otpt --help` and `otpt COMMAND --help-all`.",
        f"```text\n{overview}\n```",
    ]
    for command in commands:
        parts.append(f"## otpt {command}\n\n```text\n{help_of(*command.split(), '--help-all')}\n```")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    path, made = Path(sys.argv[1]), page()
    if "--check" not in sys.argv:
        path.write_text(made, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != made:
        sys.exit(f"{path} is not up to date; run: python docs/command_line.py {path}")
