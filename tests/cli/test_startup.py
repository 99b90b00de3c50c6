"""Commands start at once: what they do not need is not imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from otpt import __version__

pytestmark = pytest.mark.slow

READING = {"torch", "open_clip", "transformers", "torchvision", "timm", "ray", "datasets"}
HEAVY = READING | {"matplotlib", "pyarrow", "numpy"}

_PROGRAM = """
import json, sys
from otpt.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as error:
    code = error.code
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""


def outcome(*arguments: object, folder: Path | None = None) -> tuple[int, str, str, set[str]]:
    """Exit code, output, error output and the packages that ``otpt ARGUMENTS`` imported, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    *errors, last = done.stderr.splitlines()
    code, modules = json.loads(last)
    return code, done.stdout, "\n".join(errors), {name.partition(".")[0] for name in modules}


def test_methods_are_looked_up_without_torch() -> None:
    program = "import sys, otpt.methods as m; m.get_method('coop+o-tpt+sals'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run ``run``."""
    folder = tmp_path_factory.mktemp("finished")
    data = ("emoji/food", "--limit", 6, "--methods", "zero-shot", "tpt", "--no-cache", "--out", "run")
    code, _, errors, _ = outcome("evaluate", *data, "--backbone", "pocket", "--views", 4, folder=folder)
    assert code == 0, errors
    return folder


@pytest.mark.parametrize("command", ["--version", "--help", "datasets", "models", "methods"])
def test_what_is_listed_needs_no_model(command: str) -> None:
    code, out, _, modules = outcome(command)
    assert code == 0
    assert out
    assert not modules & HEAVY


def test_the_package_is_the_command_too() -> None:
    done = subprocess.run([sys.executable, "-m", "otpt", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"otpt {__version__}\n"), done.stderr


def test_help_lists_every_command_with_its_line() -> None:
    from otpt.cli.parser import GROUPS

    _, out, _, _ = outcome("--help")
    shown = " ".join(out.split())
    for commands in GROUPS.values():
        for name, words in commands.items():
            assert f"{name} {words}" in shown
    for heading in ("classify images:", "evaluate methods:", "read results:", "look things up:"):
        assert f"\n  {heading}\n" in out


@pytest.mark.parametrize(
    "command",
    [
        ("wrong",),
        ("--wrong",),
        *(
            (name, "--wrong")
            for name in ("predict", "evaluate", "calibrate", "sweep", "certify", "reproduce", "cache", "demo")
        ),
        *(("train", name, "--wrong") for name in ("coop", "maple", "baple", "fpt")),
        *((name, "--wrong") for name in ("table", "compare", "metrics", "report", "datasets", "methods", "models")),
        ("plot", "reliability", "--wrong"),
        ("plot", "similarity", "--wrong"),
    ],
    ids=" ".join,
)
def test_a_wrong_option_is_one_sentence_at_once(command: tuple[str, ...]) -> None:
    code, out, errors, modules = outcome(*command)
    assert (code, out) == (2, "")
    assert errors.startswith("otpt")
    assert errors.endswith("--help'.")
    assert len(errors.splitlines()) == 1
    assert not modules & HEAVY


@pytest.mark.parametrize("command", ["predict", "evaluate", "train", "certify", "plot", "table"])
def test_help_of_a_command_is_there_at_once(command: str) -> None:
    code, out, _, modules = outcome(command, "--help")
    assert code == 0
    assert out.startswith(f"usage: otpt {command}")
    assert not modules & HEAVY


@pytest.mark.parametrize(
    "command",
    [
        ("table", "run"),
        ("compare", "run", "--a", "tpt", "--b", "zero-shot"),
        ("metrics", "run"),
        ("plot", "reliability", "run", "-o", "figure.png"),
        ("report", "run"),
    ],
    ids=lambda command: command[0],
)
def test_a_finished_run_is_read_without_torch(finished: Path, command: tuple[str, ...]) -> None:
    code, out, errors, modules = outcome(*command, folder=finished)
    assert code == 0, errors
    assert out
    assert not modules & READING


def test_the_package_is_imported_name_by_name() -> None:
    program = """
import sys, otpt
assert not {"torch", "numpy", "PIL"} & set(sys.modules)
rooms = "backbones calibration data evaluation features functional images learning methods metrics objectives prompts "
rooms += "report runs views"
assert {"load", "Classifier", "Method", "__version__"} <= set(otpt.__all__)
assert set(dir(otpt)) - {"errors"} == {*otpt.__all__, *rooms.split()}
otpt.metrics.expected_calibration_error, otpt.report.open_results, otpt.data.load_dataset
assert "torch" not in sys.modules
for name in dir(otpt):
    room = getattr(otpt, name)
    for each in getattr(room, "__all__", ()):
        getattr(room, each)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
