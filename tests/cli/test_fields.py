"""Every field of the records on the command line and in a TOML file: it changes the output, or is refused.

Fields, types and options are taken from the records and the commands; a new field is covered without a change here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pyarrow.parquet as pq
import pytest

from otpt import backbones
from otpt.cli import main
from otpt.cli.app import make_app
from otpt.decision import Decision
from otpt.evaluation import Evaluation
from otpt.methods import Protocol, Task
from otpt.records import Frozen

from .conftest import Run

Options = dict[str, Any]
"""Words of options by name; True for a flag, None to leave an option out."""

PREDICT = {
    "classes": ["cat", "dog"],
    "methods": ["o-tpt", "confident-half"],
    "views": 6,
    "backbone": "pocket",
    "json": True,
}
EVALUATE = {
    "methods": ["o-tpt", "confident-half"],
    "views": 6,
    "backbone": "pocket",
    "json": True,
    "no-cache": True,
    "limit": 4,
}

CALIBRATED = {"methods": ["zero-shot"], "calibration": ["CALIBRATION"]}
SPECIAL: dict[str, tuple[object, Options]] = {
    "classes": (["cat", "bird"], {}),
    "prompt": ("a sketch of a", {}),
    "templates": (["a {}.", "the {}."], {"methods": ["zero-shot"]}),
    "groups": ("GROUPS", {"methods": ["zero-shot"]}),
    "examples": ("EXAMPLES", {"methods": None}),
    "multi_label": (True, {"methods": None}),
    "allow_duplicates": (True, {"classes": ["cat", "dog", "cat"], "methods": ["zero-shot"]}),
    "methods": (["zero-shot"], {}),
    "views": (4, {}),
    "budget": (4, {"views": None}),
    "calibration": (["CALIBRATION"], {"methods": ["zero-shot"]}),
    "coverage": (0.8, CALIBRATED),
    "sets": ("lac", {**CALIBRATED, "coverage": 0.8}),
    "mondrian": (True, {**CALIBRATED, "coverage": 0.6}),
    "risk": (0.8, CALIBRATED),
    "guarantee": (0.5, {**CALIBRATED, "risk": 0.8}),
    "reject": ("msp", {}),
    "reject_threshold": (0.01, {"reject": "msp"}),
    "threshold": (0.0, {"multi-label": True, "methods": None}),
    "seeds": ([0, 1], {}),
    "shard_size": (2, {}),
}
"""Values that a type does not tell, and the options that a field needs to have an effect."""

QUESTIONS = [(record, name) for record in (Task, Protocol, Decision) for name in record.keywords()]
EVALUATIONS = [(Evaluation, name) for name in dict.fromkeys(Evaluation.keywords())]


def ids(pair: object) -> str:
    return pair if isinstance(pair, str) else str(getattr(pair, "__name__", pair))


@pytest.fixture(scope="module", autouse=True)
def one_model() -> Iterator[None]:
    """Load the embedded model once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backbones, "load_backbone", lru_cache(backbones.load_backbone))
        yield


@pytest.fixture(scope="module")
def files(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files that options name: a calibration, groups and example images."""
    folder = tmp_path_factory.mktemp("files")
    for copy in range(3):  # twenty labels are needed
        for path in images.rglob("*.png"):
            target = folder / "many" / path.parent.name / f"{copy}-{path.name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    words = ["--backbone", "pocket", "--methods", "zero-shot", "--views", "6", "--no-cache", "--json"]
    places = ["--out", str(folder / "cal.json"), "--run", str(folder / "run")]
    assert main(["calibrate", str(folder / "many"), *words, *places]) == 0
    (folder / "groups.csv").write_text("cat,animal\ndog,animal\n", encoding="utf-8")
    return {"CALIBRATION": folder / "cal.json", "GROUPS": folder / "groups.csv", "EXAMPLES": images}


@lru_cache
def option_of(command: str, target: str, field: str) -> str | None:
    """Return the name of the option that sets a field, or None."""
    for argument in make_app(f"otpt {command}", target).assemble_argument_collection():
        names = (*argument.keys[-1:], argument.field_info.name, *(name.lstrip("-") for name in argument.names))
        if field in names or field.replace("_", "-") in names:
            return argument.name.removeprefix("--")
    return None


def values_of(record: type[Frozen], field: str) -> list[object]:
    """Return values of a field, of which at least one is not its default."""
    info = record.model_fields.get(field)
    if info is None:
        return ["x"]
    members = (info.annotation, *get_args(info.annotation))
    choices = [choice for member in members if get_origin(member) is Literal for choice in get_args(member)]
    if choices:
        return [choice for choice in choices if choice != info.default]
    if bool in members:
        return [value for value in (True, False) if value is not info.default]
    if int in members:
        return [(info.default or 2) + 1]
    return [0.3] if float in members else ["x"]


def words(options: Options) -> list[str]:
    """Return options as words of the command line."""
    found = []
    for name, value in options.items():
        if isinstance(value, bool):
            found.append(f"--{name}" if value else f"--no-{name}")
        elif value is not None:
            found += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return found


def toml(command: str, options: Options) -> str:
    """Return options as a TOML file."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in options.items() if value is not None]
    return "\n".join([f"[{command}]", *lines, ""])


Outcome = tuple[int, str]


def check(
    record: type[Frozen], field: str, option: str | None, base: Options, run: Callable[[Options], Outcome]
) -> None:
    """A field without an option is refused; any other changes the outcome, or is refused in one sentence."""
    value, context = SPECIAL.get(field, (None, {}))
    values = values_of(record, field) if field not in SPECIAL else [value]
    name = option or field.replace("_", "-")
    before = {**base, **context}
    after = [run({**before, name: value}) for value in values]
    for code, text in after:
        if code == 2:
            lines = [line for line in text.splitlines() if line.startswith("otpt: ") and "otpt: note: " not in line]
            assert len(lines) == 1, text
            assert option is None or field not in SPECIAL, f"--{name} was refused: {text}"
        else:
            assert code == 0, text
            assert option is not None, f"--{name} was accepted, but no option has this name"
    if any(code == 0 for code, _ in after):
        outcome = run(before)
        assert any(other != outcome for other in after), f"--{name} with {values} has no effect"


@pytest.fixture
def predicted(otpt: Run, images: Path, files: dict[str, Path], tmp_path: Path) -> Callable[..., Outcome]:
    """Predict all images with options, given as words or in a TOML file."""

    def call(options: Options, *, in_file: bool) -> Outcome:
        options = with_paths(options, files)
        given = words(options)
        if in_file:
            (tmp_path / "my.toml").write_text(toml("predict", options), encoding="utf-8")
            given = ["--config", "my.toml"]
        code, out, err = otpt("predict", images, *given)
        return code, out + err

    return call


@pytest.fixture
def evaluated(otpt: Run, images: Path, files: dict[str, Path], tmp_path: Path) -> Callable[..., Outcome]:
    """Evaluate the images with options; returns scores, and the files of the run with their columns."""
    runs = 0

    def call(options: Options, *, in_file: bool) -> Outcome:
        nonlocal runs
        runs += 1
        options = with_paths(options, files)
        folder = tmp_path / f"run-{runs}"
        given = words(options)
        if in_file:
            (tmp_path / "my.toml").write_text(toml("evaluate", options), encoding="utf-8")
            given = ["--config", "my.toml"]
        code, out, err = otpt("evaluate", images, "--out", folder, *given)
        if code:
            return code, err
        shards = sorted((folder / "rows").rglob("*.parquet"))
        columns = {str(path.relative_to(folder)): pq.read_schema(path).names for path in shards}
        return code, json.dumps([json.loads(out)["scores"], columns, err])

    return call


def with_paths(options: Options, files: dict[str, Path]) -> Options:
    """Replace the names of files by their paths."""

    def path(value: object) -> object:
        return str(files[value]) if isinstance(value, str) and value in files else value

    return {
        name: [path(item) for item in value] if isinstance(value, list) else path(value)
        for name, value in options.items()
    }


@pytest.mark.parametrize("in_file", [False, True], ids=["words", "toml"])
@pytest.mark.parametrize(("record", "field"), QUESTIONS, ids=ids)
def test_predict(record: type[Frozen], field: str, in_file: bool, predicted: Callable[..., Outcome]) -> None:
    option = option_of("predict", "otpt.cli.predict:predict", field)
    check(record, field, option, PREDICT, lambda options: predicted(options, in_file=in_file))


@pytest.mark.parametrize("in_file", [False, True], ids=["words", "toml"])
@pytest.mark.parametrize(("record", "field"), EVALUATIONS, ids=ids)
def test_evaluate(record: type[Frozen], field: str, in_file: bool, evaluated: Callable[..., Outcome]) -> None:
    owner = next((each for each in (Evaluation, Protocol, Decision) if field in each.model_fields), record)
    option = option_of("evaluate", "otpt.cli.evaluate:evaluate", field)
    check(owner, field, option, EVALUATE, lambda options: evaluated(options, in_file=in_file))
