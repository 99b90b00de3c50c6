"""Hostile arguments of every public function, and of the methods of a classifier: only our errors come out.

Functions and parameters are found from the modules' public names; a new function needs valid arguments in ``CALLS``,
or a reason in ``INSIDE`` why people do not call it. Each argument is replaced by hostile values. The functions of
``otpt.functional`` have a test with arguments of their own: tests/test_functional.py.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import math
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from oracles.data.images import image
from oracles.methods.inputs import CLASSES
from oracles.models.tiny import tiny_backbone

import otpt
from otpt import (
    Classifier,
    OtptError,
    Predictions,
    bulk,
    calibration,
    data,
    evaluation,
    explain,
    groups,
    images,
    metrics,
    plugins,
)
from otpt.backbones import ClipBackbone
from otpt.calibration import Calibration
from otpt.data import Dataset
from otpt.evaluation import evaluate
from otpt.runs import Run

MODULES = (otpt, metrics, data, calibration, evaluation, bulk, plugins, groups, images, explain)
RANDOM = np.random.default_rng(0)
PROBABILITIES = RANDOM.dirichlet(np.ones(3), 40)
LABELS = RANDOM.integers(0, 3, 40)
CONFIDENCE = PROBABILITIES.max(axis=1)
CORRECT = PROBABILITIES.argmax(axis=1) == LABELS
LOGITS = torch.log(torch.from_numpy(PROBABILITIES))
FACTS = {"classes": ["cat", "dog", "sea"], "method": {"name": "zero-shot"}}
TREE = {"pets": ["cat", "dog"], "things": ["sea", "tree"]}


def harmless(*_: object, **__: object) -> int:
    return 1


HOSTILE: dict[str, Any] = {
    "none": None,
    "empty": "",
    "word": "x",
    "control": "a\0\x1b[2J",
    "minus": -1,
    "zero": 0,
    "half": 1.5,
    "nan": math.nan,
    "infinite": math.inf,
    "huge": 10**400,
    "true": True,
    "complex": 1j,
    "list": [],
    "list of None": [None],
    "words": ["x", "y"],
    "nested": [[1.0, 2.0], [3.0]],
    "mapping": {"x": 1},
    "empty mapping": {},
    "bytes": b"x",
    "object": object(),
    "class": int,
    "set": {1, "x"},
    "range": range(3),
    "path": Path("nowhere/x"),
    "folder": "folder",
    "long": "x" * 5000,
    "long path": Path("x" * 5000),
    "function": harmless,
    "empty array": np.zeros((0, 3)),
    "texts": np.array(["x", "y"]),
    "objects": np.array([None, 1], object),
    "nans": np.full((40, 3), math.nan),
    "scalar": np.float32(0.5),
    "integers": np.arange(40),
    "tensor": torch.zeros(2, 3),
    "meta": torch.zeros(40, 3, device="meta"),
    "sparse": torch.eye(3).to_sparse(),
    "half precision": torch.ones(40, 3, dtype=torch.bfloat16, requires_grad=True),
    "series": torch.ones(40),
}
"""Values that no argument expects, or that few do. Paths are relative: "folder" is one with a file of somebody."""


@cache
def backbone() -> ClipBackbone:
    return tiny_backbone()


@cache
def classifier() -> Classifier:
    return Classifier(backbone(), "zero-shot", classes=CLASSES, views=2, groups=TREE)


def labelled_file() -> Path:
    """A file of predictions with true labels, in the current folder."""
    path = Path("labelled.csv")
    path.write_text("image,label,confidence,truth\na.png,cat,0.9,cat\nb.png,dog,0.6,cat\n", encoding="utf-8")
    return path


def tiny_dataset() -> Dataset:
    sources = [image(i) for i in range(6)]
    return Dataset("tiny", CLASSES, [f"{i}" for i in range(6)], [i % 5 for i in range(6)], sources.__getitem__)


@cache
def predictions() -> Predictions:
    return classifier().predict([image(0), b"no image"], errors="return")


@cache
def calibrated() -> Calibration:
    return calibration.fit_calibration(PROBABILITIES, LABELS, FACTS, n_bins=5)


@cache
def run() -> Run:
    folder = Path(tempfile.mkdtemp()) / "run"
    return evaluate(tiny_dataset(), backbone(), out=folder, methods=["zero-shot"], save_probabilities=True).run


BY_PARAMETER: dict[str, Any] = {
    "text": "[dtd]",
    "name": "downloads.toml",
    "downloads": {},
    "probabilities": PROBABILITIES,
    "labels": LABELS,
    "confidence": CONFIDENCE,
    "correct": CORRECT,
    "logits": LOGITS,
    "zero_shot": LOGITS,
    "tuned": LOGITS,
    "base_zero_shot": LOGITS,
    "base_tuned": LOGITS,
    "facts": FACTS,
    "metric": "ece",
    "level": 0.9,
    "risk": 0.5,
    "threshold": 0.5,
    "resamples": 20,
    "n_bins": 4,
    "image": lambda: image(1),
    "images": lambda: [image(1), image(2)],
    "source": lambda: image(1),
    "classifier": classifier,
    "methods": ["zero-shot"],
    "method": "zero-shot",
    "views": lambda: torch.ones(1, 1, 32),
    "dataset": tiny_dataset,
    "backbone": backbone,
    "device": "cpu",
    "workers": 0,
    "crops": 4,
    "seed": 0,
}
"""Valid arguments by the name of the parameter."""
CALLS: dict[str, dict[str, Any]] = {
    "otpt.Classifier": {"classes": CLASSES, "coverage": None, "urls": None, "groups": None, "prompt": "a photo of a"},
    "otpt.Frames": {"source": lambda: [image(0)]},
    "otpt.Prompt": {"words": "a photo of a", "vectors": None},
    "otpt.ViewRecipe": {},
    "otpt.Task": {"prompt": "a photo of a", "classes": CLASSES, "examples": None, "groups": None, "templates": None},
    "otpt.Protocol": {},
    "otpt.Decision": {},
    "otpt.Method": {"name": "mine"},
    "otpt.load": {"model": "pocket", "views": 2, "classes": CLASSES},
    "otpt.load_backbone": {"spec": "pocket"},
    "otpt.pipeline": {"model": "pocket", "method": "zero-shot"},
    "otpt.plot": {"shown": predictions},
    "otpt.get_method": {"name": "zero-shot"},
    "otpt.load_methods": {"path": "nowhere.toml"},
    "otpt.load_plugin": {"path": "nowhere.py"},
    "otpt.metrics.bootstrap_difference": {"first": (PROBABILITIES, LABELS), "second": (PROBABILITIES, LABELS)},
    "otpt.metrics.clopper_pearson": {"successes": 3, "trials": 9},
    "otpt.data.as_dataset": {"data": tiny_dataset},
    "otpt.data.check_dataset": {"data": tiny_dataset, "sample": 2},
    "otpt.data.Dataset": {
        "name": "x",
        "class_names": CLASSES,
        "ids": ["a", "b"],
        "labels": [0, 1],
        "images": lambda: [image(0), image(1)].__getitem__,
    },
    "otpt.data.feature_dataset": {"features": RANDOM.normal(size=(40, 1, 8)), "class_names": ["a", "b", "c"]},
    "otpt.data.load_dataset": {"spec": "emoji/food", "classes": None},
    "otpt.data.open_source": {},
    "otpt.data.read_class_list": {"path": "nowhere.txt"},
    "otpt.data.read_features": {"path": Path("nowhere.npz")},
    "otpt.data.label_table": {"file": Path("nowhere.csv")},
    "otpt.data.find_entry": {"name": "dtd"},
    "otpt.calibration.apply_temperature": {"temperature": 2.0},
    "otpt.calibration.fit_label_calibration": {"present": lambda: np.eye(3)[LABELS]},
    "otpt.calibration.fixed_temperature": {"family": "vit"},
    "otpt.calibration.read_calibration": {"path": "nowhere.json"},
    "otpt.calibration.Calibrated": {"calibration": calibrated},
    "otpt.evaluation.Evaluation": {"methods": ["zero-shot"], "views": 8},
    "otpt.evaluation.evaluate": {"datasets": tiny_dataset, "out": "run", "methods": ["zero-shot"], "limit": 2},
    "otpt.evaluation.sweep_method": {"method": lambda: otpt.get_method("o-tpt"), "values": {"lambda": ["1", "6"]}},
    "otpt.bulk.read_labelled": {"file": labelled_file, "labels": None, "truth": None, "method": None},
    "otpt.data.label_studio_dataset": {"path": Path("nowhere.json")},
    "otpt.data.photograph": {"name": "cat"},
    "otpt.evaluation.duration": {"seconds": 3.0},
    "otpt.evaluation.Progress": {},
    "otpt.bulk.predict": {"source": lambda: [image(0)], "out": "out.csv", "overwrite": True, "workers": None},
    "otpt.bulk.open_images": {"source": lambda: [image(0)]},
    "otpt.bulk.check_output": {"path": "out.csv"},
    "otpt.bulk.Monitor": {},
    "otpt.plugins.load_plugin": {"path": "nowhere.py"},
    "otpt.groups.Groups.read": {"groups": TREE, "classes": CLASSES},
    "otpt.groups.back_off_threshold": {
        "probabilities": PROBABILITIES,
        "labels": LABELS,
        "groups": lambda: groups.Groups.read({"pets": ["cat", "dog"]}, ["cat", "dog", "sea"]),
        "names": ["cat", "dog", "sea"],
        "risk": 0.9,
    },
    "otpt.metrics.get_metric": {"name": "ece"},
    "otpt.metrics.lower_confidence_bound": {"successes": 3, "trials": 9, "alpha": 0.1},
    "otpt.metrics.percent": {"fraction": 0.5},
    "otpt.evaluation.calibrate_run": {"run": run},
    "otpt.groups.class_names_of": {"groups": TREE},
    "Classifier.set_classes": {"names": CLASSES, "prompt": None, "templates": None, "text_features": None},
    "Classifier.predict": {"images": lambda: image(1), "coverage": None, "within": "pets", "views": None, "risk": None},
    "Classifier.__call__": {"images": lambda: image(1), "candidate_labels": ["cat", "dog"], "within": None},
    "Classifier.classify_features": {"views": lambda: torch.ones(2, 1, 32)},
    "Classifier.embed": {"images": lambda: [image(1)], "views": 1},
    "Classifier.calibrate": {"images": lambda: [image(i) for i in range(12)], "labels": lambda: [0, 1, 2] * 4},
    "Classifier.use_calibrations": {"calibrations": []},
    "Classifier.to": {"device": "cpu"},
    "Classifier.replace": {"views": 4, "coverage": None, "within": None, "threshold": 0.5, "method": "zero-shot"},
    "otpt.bulk.check_ranked": {"out": "out.csv", "export": None},
    "otpt.bulk.rank": {"source": lambda: [image(0)], "out": "ranked.csv", "overwrite": True},
    "otpt.bulk.uncertainty": {"prediction": lambda: predictions()[0], "several_labels": False},
    "Prediction.top": {"count": 2},
    "Calibration.write": {"path": "cal.json"},
}
"""Further valid arguments of functions: those that have no default, and fields among ``**fields``."""
INSIDE: dict[str, str] = {
    **dict.fromkeys(
        ("otpt.adaptation", "otpt.aggregation", "otpt.calibrator", "otpt.gate", "otpt.objective"),
        "decorators, whose functions tests/methods/test_own_functions.py varies",
    ),
    **dict.fromkeys(
        ("otpt.data.find_records", "otpt.data.read_folders"),
        "called with a registered entry",
    ),
    **dict.fromkeys(("otpt.data.register_dataset", "otpt.data.register_reader"), "called by plugins"),
    **dict.fromkeys(
        ("otpt.bulk.answer_rows", "otpt.bulk.embed", "otpt.bulk.fit_job", "otpt.bulk.flat_row", "otpt.bulk.run"),
        "steps of otpt.bulk.predict and the command line",
    ),
    **dict.fromkeys(
        ("otpt.plugins.restorable", "otpt.plugins.is_registered", "otpt.plugins.load_entry_point"),
        "called by registries",
    ),
    **dict.fromkeys(
        ("otpt.metrics.evaluate_rows", "otpt.images.open_header", "otpt.explain.heat_map", "otpt.data.stratified"),
        "steps of other functions",
    ),
    "otpt.data.is_label_studio": "a step of load_dataset",
    "otpt.images.is_colourful": "a step of otpt predict",
    "otpt.bulk.stamp_of": "a step of the store",
    "otpt.images.fetch_url": "needs a network; tests/images/test_files_and_urls.py",
    "otpt.images.read_file_object": "a step of open_image",
    "otpt.images.file_bytes": "a step of open_image",
    "otpt.images.is_url": "a step of open_image",
    "otpt.images.rgb_array": "a step of open_image",
    "otpt.explain.crop_map": "a step of explain",
    "otpt.explain.tuned_text_features": "a step of otpt plot",
    "otpt.data.classes_without_images": "a step of evaluate",
}
"""Public functions that people do not call with arguments of their own, and why."""


COSTLY = {"otpt.load": 12, "otpt.load_backbone": 12, "otpt.pipeline": 12}
"""Functions that load models: of n hostile values they get one, and all only in the ``long`` test."""


def public_functions(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the functions that a module makes public."""
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    for name in names:
        function = getattr(module, name)
        public = hasattr(module, "__all__") or getattr(function, "__module__", "") == module.__name__
        if public and inspect.isfunction(function) and function.__module__.startswith("otpt"):
            yield f"{module.__name__}.{name}", function


def found_functions() -> dict[str, Callable[..., Any]]:
    """All public functions by name, and the classes and methods of CALLS."""
    functions = dict(pair for module in MODULES for pair in public_functions(module))
    for name in CALLS:
        if name in functions:
            continue
        owner, _, attribute = name.rpartition(".")
        methods_of: dict[str, Callable[[], object]] = {
            "Classifier": classifier,
            "Prediction": lambda: predictions()[0],
            "Predictions": predictions,
            "Calibration": calibrated,
            "otpt.groups.Groups": lambda: groups.Groups,
        }
        holder = methods_of[owner]() if owner in methods_of else importlib.import_module(owner)
        functions[name] = getattr(holder, attribute)
    return {name: function for name, function in functions.items() if name not in INSIDE}


FUNCTIONS = found_functions()


def arguments_of(name: str) -> dict[str, Any]:
    """Valid arguments of a function, fresh ones for each call."""
    parameters = inspect.signature(FUNCTIONS[name]).parameters.values()
    named = {one.name for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)}
    valid = {**{key: value for key, value in BY_PARAMETER.items() if key in named}, **CALLS.get(name, {})}
    for one in parameters:
        if one.name in named and one.name not in valid:
            assert one.default is not one.empty, f"{name} needs a valid {one.name!r}: add it to CALLS or BY_PARAMETER."
            valid[one.name] = one.default
    return {key: value() if callable(value) and not inspect.isclass(value) else value for key, value in valid.items()}


def call(function: Callable[..., Any], arguments: dict[str, Any]) -> object:
    """Call a function, with its arguments by name or, if it takes no names, by position."""
    by_position = [
        arguments.pop(one.name)
        for one in inspect.signature(function).parameters.values()
        if one.kind is one.POSITIONAL_ONLY
    ]
    result = function(*by_position, **arguments)
    return list(itertools.islice(result, 5)) if isinstance(result, Iterator) else result


def hostile_calls(name: str, step: int = 1) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield calls with one hostile argument, as its name, the kind of value and all arguments.

    With a step, each argument gets only every so many values, and the next argument other ones.
    """
    for position, parameter in enumerate(arguments_of(name)):
        if (name, parameter) not in UNCHECKED:
            for kind, value in list(HOSTILE.items())[position % step :: step]:
                if (name, parameter, kind) not in CALLED:
                    yield parameter, kind, {**arguments_of(name), parameter: value}


def check_hostile_calls(name: str, step: int) -> None:
    """Fail for errors that are not ours, and for a file that is gone."""
    Path("folder").mkdir()
    foreign = Path("folder/keep.txt")
    foreign.write_text("not ours", encoding="utf-8")
    failures = []
    for parameter, kind, arguments in hostile_calls(name, step):
        try:
            call(FUNCTIONS[name], arguments)
        except OtptError:
            pass
        except Exception as error:
            failures.append(f"{parameter} = {kind}: {type(error).__name__}: {error!s:.100}")
        if not foreign.is_file():
            pytest.fail(f"{name} with {parameter} = {kind} removes files of others.")
    assert not failures, f"{name} with {len(failures)} hostile arguments:\n" + "\n".join(failures)


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder for whatever is written, also as the home folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("working_folder")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_hostile_arguments_raise_only_our_errors(name: str) -> None:
    check_hostile_calls(name, COSTLY.get(name, 1))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("working_folder")
@pytest.mark.parametrize("name", COSTLY)
def test_all_hostile_arguments_of_costly_functions(name: str) -> None:
    check_hostile_calls(name, 1)


def test_hostile_paths_stay_in_the_working_folder(working_folder: Path) -> None:
    for value in HOSTILE.values():
        if isinstance(value, (str, Path)) and "\0" not in str(value):
            path = Path(value).expanduser()
            assert not path.is_absolute()
            assert ".." not in path.parts


UNCHECKED = {
    ("otpt.explain.explain", "classifier"),
    ("otpt.metrics.bootstrap", "metric"),
    ("otpt.metrics.bootstrap_difference", "metric"),
}
"""Parameters that are functions of the caller, whose errors pass through."""
CALLED = {("otpt.evaluation.evaluate", "backbone", "class")}
"""Hostile values that are called as the caller's function, with an error of their own: ``int("auto")``."""


def test_the_reasons_are_about_functions_that_exist() -> None:
    functions = {name for module in MODULES for name, _ in public_functions(module)}
    assert set(INSIDE) <= functions
