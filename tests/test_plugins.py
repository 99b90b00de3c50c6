"""Packages that extend otpt through entry points: one made here from outside, one that is broken, and otpt_medical."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from oracles.data.data_files import put_images

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).resolve().parent.parent / "src"

PLUGIN = '''
from otpt import objective
from otpt.data import ClassList, DatasetEntry, Layout, Place, Record, register_dataset, register_reader
from otpt.methods import Init, register_init, register_methods
from otpt.prompts import Prompt


@register_init
class TheirInit(Init):
    """The prompt with a style in front of it."""

    name = "their-init"

    style: str = "a sketchy"

    def prepare(self, setup):
        return [setup.group(self.name, Prompt(f"{self.style} {setup.task.prompt.words}"))]


@objective(weight=2.0)
def their_objective(text_features, exponent: float = 2.0):
    """Powers of the mean."""
    return text_features.mean(dim=-2).abs().pow(exponent).sum(dim=-1)


def read_list(place: Place) -> list[Record]:
    lines = place.need("list", "list.txt").read_text().splitlines()
    return [Record(line, place.classes.index()[line.partition("/")[0]]) for line in lines]


part = {"axis": "adapt", "objectives": ["entropy", "their-objective"]}
register_methods({"parts": {"their-tpt": part}, "field": ["their-init+their-tpt"]})
register_reader("their-list", read_list)
register_dataset(
    DatasetEntry(
        "their-set", "Their set", 2, None, "shift", False, reader="their-list",
        layouts=(Layout("theirs", "their-images"),), listed=ClassList(("a", "b"), ("apple", "bee")),
    )
)
'''

COMMAND = '''
from typing import Annotated

from otpt.cli import options as o


def their_command(*, loud: Annotated[bool, o.option("say it loudly")] = False) -> int:
    """Say hello.

    otpt theircommand --loud
    """
    print("HELLO" if loud else "hello")
    return 0
'''


def install(folder: Path, name: str, files: dict[str, str], entry_points: str) -> None:
    """Make a package as pip would leave it in a folder of sys.path."""
    for file, text in files.items():
        path = folder / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    commands = '{"Their group": {"theircommand": ("their_package.commands:their_command", "say hello")}}'
    install(
        folder,
        "their_package",
        {"__init__.py": f"COMMANDS = {commands}\n", "plugin.py": PLUGIN, "commands.py": COMMAND},
        "[otpt.plugins]\ntheirs = their_package.plugin\n\n[otpt.commands]\ntheirs = their_package:COMMANDS\n",
    )
    return folder


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("broken")
    half = (
        "import otpt\n\n@otpt.gate\ndef half_registered(zero_shot):\n    return True\n\nraise ImportError('no luck')\n"
    )
    install(
        folder,
        "broken_package",
        {"__init__.py": "COMMANDS = ['certify']\n", "plugin.py": half},
        "[otpt.plugins]\nbroken = broken_package.plugin\nabsent = broken_package.nowhere\n\n"
        "[otpt.commands]\nbroken = broken_package:COMMANDS\nabsent = broken_package:NOTHING\n",
    )
    return folder


def call(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with a folder of packages."""
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(site), *([before] if before else [])])
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )


def run_code(site: Path, code: str) -> list[str]:
    """Run statements; return the printed lines."""
    done = call(site, "-c", code)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_methods_of_a_package(site: Path) -> None:
    lines = run_code(
        site,
        """
import json, otpt
from PIL import Image
clf = otpt.load("pocket", "their-init[style=a red]+tpt+their-objective[weight=3]", device="cpu", views=4)
answer = clf.set_classes(["cat", "dog"]).predict(Image.new("RGB", (40, 40), (200, 40, 30)))
method = clf.method
print(json.dumps([method.init, dict(method.objectives), dict(method.settings), float(answer.probabilities.sum())]))
print(otpt.get_method("their-tpt").override({"exponent": 3}).defaults)
print(otpt.Method("mine", init="their-init").preparation.__name__)
""",
    )
    init, objectives, settings, total = json.loads(lines[0])
    assert (init, settings) == ("their-init", {"style": "a red"})
    assert objectives == {"entropy": 1.0, "their-objective": 3.0}
    assert total == pytest.approx(1)
    assert lines[1:] == ["{'exponent': 2.0}", "TheirInit"]


def test_data_sets_of_a_package(site: Path, tmp_path: Path) -> None:
    put_images(tmp_path / "their-images", ["a/1.png", "b/2.png"])
    (tmp_path / "their-images" / "list.txt").write_text("a/1.png\nb/2.png\n")
    lines = run_code(
        site,
        f"""
from otpt.data import list_datasets, load_dataset
data = load_dataset("their-set", root={str(tmp_path)!r})
print(data.class_names, data.ids, data.labels, data.family)
print("their-set" in [entry.name for entry in list_datasets()])
""",
    )
    assert lines == ["('apple', 'bee') ('a/1.png', 'b/2.png') (0, 1) shift", "True"]


def test_a_method_of_a_package_goes_to_another_process(site: Path, tmp_path: Path) -> None:
    file = str(tmp_path / "method.pickle")
    code = "import pathlib, pickle, otpt; pathlib.Path({!r}).write_bytes(pickle.dumps(otpt.get_method('their-init')))"
    run_code(site, code.format(file))
    code = "import pathlib, pickle; print(pickle.loads(pathlib.Path({!r}).read_bytes()).preparation.__name__)"
    assert run_code(site, code.format(file)) == ["TheirInit"]


def test_the_command_line_sees_a_package(site: Path) -> None:
    done = call(site, "-m", "otpt", "methods", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["their-init+their-tpt"]["objectives"] == {"entropy": 1.0, "their-objective": 2.0}
    done = call(site, "-m", "otpt", "methods")
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
    assert {"their-init", "their-tpt", "promptsmooth"} <= listed
    done = call(site, "-m", "otpt", "theircommand", "--help")
    assert (done.returncode, "say it loudly" in done.stdout) == (0, True), done.stderr
    done = call(site, "-m", "otpt", "theircommand", "--loud")
    assert (done.returncode, done.stdout) == (0, "HELLO\n"), done.stderr


def test_commands_are_listed_without_torch(site: Path) -> None:
    code = "import sys; from otpt.cli import main; code = main(['--help']); print('torch' in sys.modules, code)"
    lines = run_code(site, code)
    assert lines[-1] == "False 0"
    assert any(line.split() == ["theircommand", "say", "hello"] for line in lines)
    assert any(line.split()[:1] == ["certify"] for line in lines), "the entry points of this project are installed"


def test_a_broken_package_gives_a_warning_and_nothing_else(broken: Path) -> None:
    lines = run_code(
        broken,
        """
import warnings, otpt
from otpt.plugins import plugin_commands
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    otpt.get_method("tpt+sals")
    print(len(caught))
    try:
        otpt.get_method("tpt+half-registered")
    except otpt.OtptError as error:
        print(error)
    for warning in caught:
        print(warning.message)
    caught.clear()
    print("half-registered" in otpt.methods.known_parts(), len(caught))
    commands = plugin_commands()
    print("certify" in commands["Evaluate methods"], [str(warning.message).split("'")[1] for warning in caught])
""",
    )
    assert lines[0] == "0", "known names import no plugin"
    assert lines[1].startswith("Unknown part 'half-registered'")
    assert lines[2].startswith("The plugin 'absent' (broken_package.nowhere) failed: ModuleNotFoundError")
    assert lines[3] == "The plugin 'broken' (broken_package.plugin) failed: ImportError: no luck."
    assert lines[4] == "False 0"
    assert lines[5] == "True ['absent', 'broken']"


def imported_names(path: Path) -> list[str]:
    """The dotted names that a module imports."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def test_plugins_of_this_project_use_public_names() -> None:
    packages = [folder for folder in SOURCE.iterdir() if folder.is_dir() and folder.name.startswith("otpt_")]
    assert SOURCE / "otpt_medical" in packages
    private = []
    for package in packages:
        for path in package.rglob("*.py"):
            names = [name for name in imported_names(path) if name.startswith("otpt.")]
            private += [f"{path.name}: {name}" for name in names if "._" in name and not name.endswith(".__version__")]
    assert private == []


def test_the_core_does_not_know_the_plugins_of_this_project() -> None:
    importing = []
    for path in (SOURCE / "otpt").rglob("*.py"):
        importing += [f"{path.name}: {name}" for name in imported_names(path) if name.startswith("otpt_")]
    assert importing == []


@pytest.mark.parametrize(
    ("module", "method", "weights"),
    [
        ("baple", "baple+o-tpt", {"orthogonality": 18.0}),
        ("promptsmooth", "promptsmooth+o-tpt", {"entropy": 1.0, "orthogonality": 18.0}),
    ],
)
def test_a_module_of_the_plugin_alone_has_the_published_numbers(
    module: str, method: str, weights: dict[str, float], tmp_path: Path
) -> None:
    code = f"import json, otpt_medical.{module}, otpt; print(json.dumps(dict(otpt.get_method({method!r}).objectives)))"
    assert json.loads(run_code(tmp_path, code)[0]) == weights
