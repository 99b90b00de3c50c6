"""Every field of the records on the command line and in a TOML file: it changes the results, or says why it cannot.

Fields, types and options are taken from the records and the commands; a new field is covered without a change here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from oracles.fields import Case, same, values_to_try

import otpt
from otpt import backbones
from otpt.cli import main
from otpt.cli.app import ELSEWHERE, make_app
from otpt.decision import Decision
from otpt.evaluation import Evaluation
from otpt.methods import Protocol, Task
from otpt.records import NO_OPTION, Frozen, mark_of

from .conftest import Run

Options = dict[str, Any]
"""Words of options by name; True for a flag, None to leave an option out."""

TARGETS = {"predict": "otpt.cli.predict:predict", "evaluate": "otpt.cli.evaluate:evaluate"}
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
}

CALIBRATED = {"methods": ["zero-shot"], "calibration": ["CALIBRATION"]}
CASES: dict[str, Case] = {
    "classes": Case(["cat", "bird"]),
    "prompt": Case("a sketch of a"),
    "templates": Case(["a {}.", "the {}."], {"methods": ["zero-shot"]}),
    "groups": Case("GROUPS"),
    "examples": Case("EXAMPLES", {"methods": None}),
    "multi_label": Case(True, {"methods": None, "views": None}),
    "allow_duplicates": Case(True, {"classes": ["cat", "dog", "cat"], "methods": ["zero-shot"]}, unlocks=True),
    "methods": Case(["zero-shot"]),
    "method": Case("zero-shot", {"methods": None}),
    "views": Case(4),
    "sweep": Case(["views=2,4", "lambda=1,6"]),
    "budget": Case(4, {"views": None, "methods": ["confident-half"]}),
    "calibration": Case(["CALIBRATION"], {"methods": ["zero-shot"]}),
    "coverage": Case(0.8, CALIBRATED),
    "sets": Case("lac", {**CALIBRATED, "coverage": 0.9}),
    "mondrian": Case(True, {**CALIBRATED, "coverage": 0.6}),
    "risk": Case(0.3, CALIBRATED),
    "guarantee": Case(0.05, {**CALIBRATED, "risk": 0.3}),
    "reject": Case("msp"),
    "reject_threshold": Case(0.01, {"reject": "msp"}),
    "within": Case("animal", {"groups": "GROUPS"}),
    "threshold": Case(0.0, {"multi-label": True, "methods": None, "views": None}),
    "seeds": Case([0, 1]),
    "shard_size": Case(2),
}
"""Values that a type does not tell, and the options that a field needs to have an effect; as words."""

QUESTIONS = [(record, name) for record in (Task, Protocol, Decision) for name in record.keywords()]
PARTS = [(record, name) for record in (Protocol, Decision) for name in record.keywords()]
EVALUATIONS = [
    *((Evaluation, name) for name in Evaluation.keywords() if name not in [part for _, part in PARTS]),
    *PARTS,
]


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
    label_confident_images(sorted(images.rglob("*.png")), folder / "many")
    words = ["--backbone", "pocket", "--methods", "zero-shot", "--views", "6", "--no-cache", "--json"]
    places = ["--out", str(folder / "cal.json"), "--run", str(folder / "run")]
    assert main(["calibrate", str(folder / "many"), *words, *places]) == 0
    (folder / "groups.csv").write_text("cat,animal\ndog,animal\n", encoding="utf-8")
    return {"CALIBRATION": folder / "cal.json", "GROUPS": folder / "groups.csv", "EXAMPLES": images}


def label_confident_images(paths: list[Path], folder: Path) -> None:
    """Copy images into class folders: as they are predicted, except the least confident ones."""
    classifier = otpt.load("pocket", "zero-shot", device="cpu", classes=["cat", "dog"])
    predictions = classifier.predict(paths)
    limit = sorted(prediction.confidence for prediction in predictions)[len(paths) // 4]
    for path, prediction in zip(paths, predictions, strict=True):
        is_wrong = prediction.confidence < limit
        for copy in range(3):  # twenty labels are needed
            target = folder / ("cat", "dog")[prediction.index ^ is_wrong] / f"{copy}-{path.name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)


@lru_cache
def option_of(command: str, keyword: str) -> str | None:
    """Return the name of the option that sets a keyword of the records, or None."""
    for argument in make_app(f"otpt {command}", TARGETS[command]).assemble_argument_collection():
        names = (*argument.keys[-1:], argument.field_info.name, *(name.lstrip("-") for name in argument.names))
        if argument.name.startswith("--") and (keyword in names or keyword.replace("_", "-") in names):
            return argument.name.removeprefix("--")
    return None


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


@dataclass(frozen=True)
class Outcome:
    """Exit code, results and messages of a command."""

    code: int
    results: Any
    messages: str


Call = Callable[..., Outcome]
BASELINES: dict[str, Outcome] = {}
"""Outcomes of options to which nothing is added, which many tests share."""


def assert_refused(outcome: Outcome) -> str:
    """Return the one sentence with which options are refused."""
    assert outcome.code == 2, outcome
    lines = [line for line in outcome.messages.splitlines() if line.startswith("otpt: ")]
    (line,) = [line for line in lines if "otpt: note: " not in line]
    return line


def check(command: str, record: type[Frozen], keyword: str, base: Options, call: Call, *, in_file: bool) -> None:
    """A value is accepted and changes the results; a field that is marked has no option, and a reason for it.

    Messages are no results: a note may repeat any value.
    """
    option = option_of(command, keyword)
    field = record.spellings.get(keyword, keyword)
    if option is None:
        spellings = [other for other in record.keywords() if record.spellings.get(other, other) == field]
        sentence = assert_refused(call({**base, keyword.replace("_", "-"): "x"}, in_file=in_file))
        if not any(option_of(command, other) for other in spellings):
            reason = mark_of(record.model_fields[field], NO_OPTION)
            reason = reason.get(command) if isinstance(reason, dict) else reason
            assert reason, f"'otpt {command}' has no option for {field}; add one, or mark it with records.NO_OPTION."
            assert str(reason) in sentence or ELSEWHERE.get(f"--{keyword}", "no hint") in sentence
        return
    case = CASES.get(keyword, Case())
    options = {**base, **case.context}
    key = f"{command} {json.dumps(options)}"
    if key not in BASELINES:
        BASELINES[key] = call(options)
    before = BASELINES[key]
    assert (before.code == 2) == case.unlocks, before
    refusals = {}
    for value in values_to_try(keyword, record.model_fields[field], case):
        outcome = call({**options, option: value}, in_file=in_file)
        if outcome.code == 2:
            refusals[str(value)] = assert_refused(outcome)
        elif (outcome.code, before.code) != (0, 0) or not same(outcome.results, before.results):
            return
    assert not refusals, f"--{option} is refused: {refusals}; add a case in which it is not."
    pytest.fail(f"--{option} changes no result; add a case in which it does, or refuse it.")


@pytest.fixture
def predicted(otpt: Run, images: Path, files: dict[str, Path], tmp_path: Path) -> Call:
    """Predict all images with options, given as words or in a TOML file."""

    def call(options: Options, *, in_file: bool = False) -> Outcome:
        given = write_options("predict", with_paths(options, files), tmp_path, in_file=in_file)
        code, out, messages = otpt("predict", images, *given)
        return Outcome(code, [json.loads(line) for line in out.splitlines()], messages)

    return call


@pytest.fixture
def evaluated(otpt: Run, images: Path, files: dict[str, Path], tmp_path: Path) -> Call:
    """Evaluate the images with options; returns scores, and the rows of the run by file."""
    runs = count()

    def call(options: Options, *, in_file: bool = False) -> Outcome:
        folder = tmp_path / f"run-{next(runs)}"
        given = write_options("evaluate", with_paths(options, files), tmp_path, in_file=in_file)
        code, out, messages = otpt("evaluate", images, "--out", folder, *given)
        shards = sorted((folder / "rows").rglob("*.parquet"))
        rows = {str(path.relative_to(folder)): pq.read_table(path).to_pydict() for path in shards}
        return Outcome(code, [json.loads(out)["scores"] if code == 0 else None, rows], messages)

    return call


def write_options(command: str, options: Options, folder: Path, *, in_file: bool) -> list[str]:
    """Return the words that give the options, in a file or directly."""
    if not in_file:
        return words(options)
    (folder / "my.toml").write_text(toml(command, options), encoding="utf-8")
    return ["--config", "my.toml"]


def with_paths(options: Options, files: dict[str, Path]) -> Options:
    """Replace the names of files by their paths."""

    def path(value: object) -> object:
        return str(files[value]) if isinstance(value, str) and value in files else value

    return {
        name: [path(item) for item in value] if isinstance(value, list) else path(value)
        for name, value in options.items()
    }


@pytest.mark.parametrize("in_file", [False, True], ids=["words", "toml"])
@pytest.mark.parametrize(("record", "keyword"), QUESTIONS, ids=ids)
def test_predict(record: type[Frozen], keyword: str, in_file: bool, predicted: Call) -> None:
    check("predict", record, keyword, PREDICT, predicted, in_file=in_file)


@pytest.mark.parametrize("in_file", [False, True], ids=["words", "toml"])
@pytest.mark.parametrize(("record", "keyword"), EVALUATIONS, ids=ids)
def test_evaluate(record: type[Frozen], keyword: str, in_file: bool, evaluated: Call) -> None:
    check("evaluate", record, keyword, EVALUATE, evaluated, in_file=in_file)
