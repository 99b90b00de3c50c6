"""Names in the documentation exist, and public names are in the documentation."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from oracles.pages.docs_pages import DOCS, PAGES, ROOT, TUTORIALS, code, rows, section

import otpt
import otpt.objectives
from otpt.cli import main
from otpt.cli.parser import parse
from otpt.errors import OtptError
from otpt.methods import FAMILIES, known_parts
from otpt.methods.names.registry import DEFAULT_METHOD
from otpt.objectives.registry import OBJECTIVES, TEXTS

METHODS = DOCS / "methods.md"
OTHER_TOOLS = {
    "--photograph-images",
    "--evaluate",
    "--parts",
    "--wheel",
    "--disable-pip",
    "--cases",
    "--kind",
    "--no-deps",
    "--requirement",
    "--strict",
    "--import-mode",
    "--quick",
    "--photographs",
    "--write",
    "--runs",
    "--training-runs",
    "--pretrained",
}  # mypy, mkdocs, pytest, benchmarks, open_clip
OLD_SPELLINGS = {"--classes-file", "--model"}  # which work, and are not shown any more


def _options(command: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", capsys.readouterr().out))


def _nav(entry: object) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    values = entry.values() if isinstance(entry, dict) else entry
    assert not isinstance(values, str)
    return [page for value in values for page in _nav(value)]  # type: ignore[union-attr]


COMMANDS = ("", "predict", "methods", "models", "demo", "datasets", "datasets check", "datasets get",
            "evaluate", "calibrate", "metrics", "sweep", "cache", "table", "compare", "plan", "reproduce",
            "plot reliability", "plot templates", "plot similarity", "report",
            "train coop", "train maple", "train baple", "train fpt", "certify", "doctor", "completion",
            "serve")  # fmt: skip


def test_every_page_is_in_the_navigation() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(_nav(config["nav"])) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


def test_nothing_is_fetched_when_a_page_is_read() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert config["theme"]["font"] is False
    assert not [name for key in ("extra_css", "extra_javascript") for name in config.get(key, []) if "://" in name]
    named = [name for key in ("extra_css", "extra_javascript") for name in config[key]]
    assert all((DOCS / name).is_file() for name in named)
    css = (DOCS / "assets/katex/katex.min.css").read_text(encoding="utf-8")
    fonts = set(re.findall(r"url\(([^)]+)\)", css))
    assert fonts == {f"fonts/{path.name}" for path in (DOCS / "assets/katex/fonts").iterdir()}
    assert "MIT License" in (DOCS / "assets/katex/LICENSE").read_text(encoding="utf-8")


def _formulas(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\$\$(.+?)\$\$", text, re.DOTALL) + re.findall(r"(?<![\\$])\$([^$\n]+)\$(?!\$)", text)


def test_formulas_are_typeset() -> None:
    """By the very KaTeX that is shipped: an error would be red letters on the site."""
    found = {formula: page.name for page in [*DOCS.glob("*.md"), *TUTORIALS] for formula in _formulas(page)}
    assert {"methods.md", "metrics.md", "calibration.md", "design.md"} <= set(found.values())
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node here")
    script = (
        f"const katex = require({json.dumps(str(DOCS / 'assets/katex/katex.min.js'))});"
        f"for (const formula of {json.dumps(list(found))}) {{"
        "  try { katex.renderToString(formula, { strict: 'ignore' }); }"
        "  catch (error) { console.log(formula, error.message); }"
        "}"
    )
    done = subprocess.run([node, "-e", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""


@pytest.mark.parametrize("page", [*PAGES, *TUTORIALS], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).is_file(), target


@pytest.mark.parametrize("page", [*PAGES, *TUTORIALS], ids=lambda page: page.name)
def test_options_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = (OTHER_TOOLS | OLD_SPELLINGS).union(*(_options(command, capsys) for command in COMMANDS))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text(encoding="utf-8")))
    assert named <= known


def test_every_option_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    explained = {
        word.split()[0]
        for row in rows(section(DOCS / "quick-start.md", "All options of `otpt predict`"))
        for word in code(row[0])
    }
    assert explained == _options("predict", capsys) - {"--help"}


def test_defaults_are_those_of_the_command() -> None:
    """A default that is written as code in the table is what the parser holds."""
    options = vars(parse(["predict", "photo.jpg", "--classes", "cat", "dog"]))
    compared = set()
    for row in rows(section(DOCS / "quick-start.md", "All options of `otpt predict`")):
        name = next((word.split()[0].removeprefix("--").replace("-", "_") for word in code(row[0])), None)
        shown = re.fullmatch(r"\[?`([^`]+)`(?:\]\(.*\))?|(\d+)", row[2])
        if name is None or shown is None:
            continue
        default = DEFAULT_METHOD if name == "methods" else options.get(name)
        if default is not None:  # None: decided later
            assert str(default) == (shown[1] or shown[2]), name
            compared.add(name)
    assert {"methods", "backbone", "device"} <= compared


def test_every_method_has_its_row_with_its_weights() -> None:
    table = {code(row[0])[0]: row for row in rows(section(METHODS, "The common frame")) if code(row[0])}
    methods = otpt.published_methods()
    assert set(table) == set(methods)
    for name, method in methods.items():
        for family, cell in zip(FAMILIES, table[name][2:4], strict=True):
            config = method.tuning(family)
            weights = [] if config is None else [weight for _, weight in config.text_weights]
            assert [float(number) for number in re.findall(r"[\d.]+", cell)] == weights, (name, family)
        assert {"temperature": "temperature", "sals": "SaLS", "none": ""}[method.calibrate] == table[name][4]


def test_readme_names_every_part_on_its_axis() -> None:
    table = {row[0]: set(code(row[2])) for row in rows(section(ROOT / "README.md", "The methods")) if len(row) == 3}
    published = [part for part in known_parts().values() if part.source]  # examples may have registered others
    for axis in ("init", "adapt", "calibrate", "aggregate", "gate"):
        assert table[axis] == {part.name for part in published if part.axis == axis}


def test_method_names_in_the_readme_compose() -> None:
    named = [
        code(row[0])[0] for row in rows(section(ROOT / "README.md", "The methods")) if len(row) == 2 and code(row[0])
    ]
    assert len(named) >= 5
    for name in named:
        assert otpt.get_method(name).name == name


def test_objectives() -> None:
    table = {code(row[0])[0]: row for row in rows(section(METHODS, "Objectives")) if code(row[0])}
    ours = {name: objective for name, objective in OBJECTIVES.items() if not objective.digest}
    assert set(table) == set(ours)
    for name, row in table.items():
        assert ("text features" in row[1]) == (ours[name].on == TEXTS)
        assert code(row[3])[0] in otpt.objectives.__all__


def test_settings() -> None:
    table = [row for row in rows(section(METHODS, "Change numbers: `--set`")) if code(row[0])]
    values: Mapping[str, str | float] = {
        "reference": "clean",
        "two-step": "on",
        "calibrate": "sals",
        "selection-ratio": 1.0,
        "frozen-below": 0.5,
    }
    names = [code(row[0])[0] for row in table]
    assert {"lambda", "steps", *values} < set(names)
    method = otpt.get_method("o-tpt").override({"calibrate": "temperature"})
    for name in names:
        assert method.override({name: values.get(name, 2.0)}) != method
    with pytest.raises(OtptError, match="Available") as error:
        method.override({"nothing": 1})
    available = str(error.value).split("Available: ")[1].rstrip(".").split(", ")
    assert set(available) - set(method.objectives) == set(names)


def test_method_file_keys() -> None:
    text = section(METHODS, "Make your own")
    keys = code(text[text.index("Keys of a table:") : text.index("(written with")])
    assert {key.replace("-", "_") for key in keys} == {field.name for field in fields(otpt.Method)} - {"name"}


ROOMS = ("otpt", "otpt.methods", "otpt.methods.prompt_tuning", "otpt.objectives", "otpt.calibration", "otpt.prompts",
         "otpt.prompts.learned", "otpt.learning", "otpt.images", "otpt.views", "otpt.backbones", "otpt.features",
         "otpt.evaluation", "otpt.functional", "otpt.runs", "otpt.metrics", "otpt.data", "otpt.rejection",
         "otpt.costs", "otpt.report", "otpt.serve")  # fmt: skip


def test_every_room_has_its_reference() -> None:
    """Generated from docstrings by mkdocstrings: a page names its module, and the overview names all modules."""
    named = [line[4:] for page in (DOCS / "reference").glob("*.md") for line in page.read_text("utf-8").splitlines()
             if line.startswith("::: ")]  # fmt: skip
    assert sorted(named) == sorted({*ROOMS, "otpt.report.figures", "otpt.report.page"})


def test_code_in_docstrings_of_rooms_is_a_block() -> None:
    """Indented, or the reference shows it as a paragraph of words."""
    pages = [page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md")]
    for name in re.findall(r"^::: (\S+)", "\n".join(pages), re.MULTILINE):
        words = importlib.import_module(name).__doc__ or ""
        assert not re.search(r"^(import |from \S+ import |otpt \w|\w+ = |\w+\(.*\)$)", words, re.MULTILINE), name


def test_roles_and_examples_of_docstrings_become_code() -> None:
    griffe = pytest.importorskip("griffe")
    spec = importlib.util.spec_from_file_location("roles", DOCS / "roles.py")
    assert spec is not None
    assert spec.loader is not None
    roles = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(roles)
    obj = griffe.Function("f", docstring=griffe.Docstring("See :func:`~otpt.report.open_models` and :class:`Run`."))
    roles.Roles().on_instance(obj=obj)
    assert obj.docstring.value == "See `open_models` and `Run`."
    words = "One.\n\n>>> f(\n...     1)\n2\n\nTwo.\n\nExample:\n    >>> g()\n    3\n"
    obj = griffe.Function("f", docstring=griffe.Docstring(words))
    roles.Roles().on_instance(obj=obj)
    one, two = "```pycon\n>>> f(\n...     1)\n2\n```", "    ```pycon\n    >>> g()\n    3\n    ```"
    assert obj.docstring.value == f"One.\n\n{one}\n\nTwo.\n\nExample:\n{two}", "an example is no quotation"


@pytest.mark.parametrize("room", ROOMS)
def test_public_names(room: str) -> None:
    text = section(DOCS / "api.md", f"`{room}`")
    named = {re.split(r"[(.]", name)[0] for name in code(text)}
    public = set(importlib.import_module(room).__all__)
    assert public - named == set(), "public names that are not listed"
    first = {re.split(r"[(.]", n)[0] for row in rows(text.split("\n### ")[0]) for n in code(row[0])}
    assert first - public == set(), "listed names that are not public"


def test_classifier_methods() -> None:
    named = {
        re.split(r"\(", name)[0] for row in rows(section(DOCS / "api.md", "`Classifier`")) for name in code(row[0])
    }
    assert named == {name for name in vars(otpt.Classifier) if not name.startswith("_")}
