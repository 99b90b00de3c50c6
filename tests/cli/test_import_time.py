"""What it costs to start: the package, the parser, and the options of every command."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

MILLISECONDS = {"import otpt": 300, "import otpt.cli.parser": 500}
"""Bounds of time beyond the interpreter's own: far above a loaded machine, far below numpy, let alone torch."""


def milliseconds(statement: str) -> float:
    """The least of a few measurements: of all imports that the statement leads to, each counted once."""
    found = []
    for _ in range(5):
        done = subprocess.run([sys.executable, "-X", "importtime", "-c", statement], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        lines = re.findall(r"import time:\s+(\d+) \|\s+\d+ \| (.*)", done.stderr)
        last = next(i for i, (_, name) in enumerate(lines) if name.strip() == "site")  # the interpreter's own
        found.append(sum(int(micro) for micro, _ in lines[last + 1 :]) / 1000)
    return min(found)


@pytest.mark.parametrize("statement", MILLISECONDS)
def test_imports_are_quick(statement: str) -> None:
    assert milliseconds(statement) < MILLISECONDS[statement]


def test_options_of_no_command_need_a_heavy_library() -> None:
    program = (
        "import sys; from otpt.cli.parser import COMMANDS, make_parser; make_parser(COMMANDS); "
        "print(sorted({'torch', 'numpy', 'open_clip', 'matplotlib', 'pyarrow', 'argcomplete'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
