"""Objects that people get: each has a representation, is equal to its copies, and can be pickled.

Public classes are found from ``otpt.__all__`` and the documented packages; a new one needs an example in ``EXAMPLES``,
or a reason in ``NO_OBJECTS``.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from oracles.data.images import image
from oracles.methods.inputs import CLASSES, MADE
from oracles.models.tiny import tiny_backbone
from pydantic import BaseModel

import otpt
from otpt import Classifier, OtptError
from otpt.calibration import Calibrated, Calibration
from otpt.data import ClassList, Conventions, Dataset, open_source
from otpt.evaluation import Evaluation, Progress, Result, evaluate
from otpt.features import FeatureCache
from otpt.groups import Answer, Groups
from otpt.methods import Examples
from otpt.prompts import Descriptions, Templates, TextFeatures
from otpt.prompts.learned import CocoopContext, CoopContext, MaplePrompts
from otpt.report import Results, open_results

MODULES = (
    *("otpt", "otpt.calibration", "otpt.data", "otpt.evaluation", "otpt.explain", "otpt.groups", "otpt.metrics"),
    *("otpt.prompts", "otpt.report", "otpt.runs", "otpt.bulk", "otpt.learning", "otpt.views", "otpt.features"),
)
GROUPS = {"pets": ["cat", "dog"], "things": ["sea", "tree", "car"]}
IMAGES = [image(i) for i in range(24)]


@cache
def classifier(**fields: Any) -> Classifier:
    return Classifier(tiny_backbone(), "zero-shot", classes=CLASSES, groups=Groups.read(GROUPS, CLASSES))


def calibration(**fields: Any) -> Calibration:
    """A calibration of any kind, on few images."""
    clf = Classifier(tiny_backbone(), **{"classes": CLASSES, **fields})
    if clf.task.multi_label:
        return clf.calibrate(IMAGES, [[CLASSES[i % 5]] for i in range(24)])
    if len(clf.class_names) == 1:
        return clf.calibrate(IMAGES, [i % 2 == 0 for i in range(24)])
    return clf.calibrate(IMAGES, [i % 5 for i in range(24)])


@cache
def dataset() -> Dataset:
    return Dataset("tiny", CLASSES, [f"p/{i}" for i in range(6)], [i % 5 for i in range(6)], Pictures())


class Pictures:
    """Images that can be pickled."""

    def __call__(self, index: int) -> Any:
        return IMAGES[index]


@cache
def result() -> Result:
    return evaluate(dataset(), tiny_backbone(), out=Path(mkdtemp()) / "run", methods=["zero-shot"])


@cache
def results() -> Results:
    return open_results([result().run.folder])


EXAMPLES: dict[str, Callable[[], Any]] = {
    "Classifier": classifier,
    "Prediction": lambda: classifier().predict(IMAGES[0]),
    "Prediction within a group": lambda: classifier().predict(IMAGES[0], within="pets"),
    "Predictions": lambda: classifier().predict([IMAGES[0], b"no image"], errors="return"),
    "Failure": lambda: classifier().predict(b"no image", errors="return"),
    "Frames": lambda: otpt.Frames("clip.mp4"),
    "HeatMap": lambda: classifier().explain(IMAGES[0], crops=4),
    "Groups": lambda: Groups.read(GROUPS, CLASSES),
    "Answer": lambda: Answer("pets", 0.9, 2),
    "Calibration of one label": lambda: calibration(method="zero-shot"),
    "Calibration of several labels": lambda: calibration(multi_label=True),
    "Calibration of a single class": lambda: calibration(classes=["cat"]),
    "Calibrated": lambda: Calibrated(calibration(method="zero-shot"), coverage=0.8),
    "Method": lambda: otpt.get_method("o-tpt"),
    "Prompt": lambda: otpt.Prompt("an example of"),
    "Prompt of vectors": lambda: MADE[CoopContext]().prompt(),  # type: ignore[attr-defined]
    "Templates": lambda: Templates("mine", ["a {}."]),
    "Descriptions": lambda: Descriptions([["a"], ["b"]]),
    "TextFeatures": lambda: TextFeatures(np.eye(3, dtype=np.float32)),  # type: ignore[arg-type]
    "CoopContext": MADE[CoopContext],
    "CocoopContext": MADE[CocoopContext],
    "MaplePrompts": MADE[MaplePrompts],
    "Examples": lambda: Examples.read({"cat": ["a.png"], "dog": ["b.png"]}),
    "Task": lambda: otpt.Task(classes=CLASSES, groups=GROUPS),
    "Protocol": lambda: otpt.Protocol(method="tpt", views=8),
    "Decision": lambda: otpt.Decision(reject=True),
    "Evaluation": lambda: Evaluation(methods=["tpt"]),
    "ViewRecipe": lambda: otpt.ViewRecipe(n_views=8),
    "OtptError": lambda: OtptError("No."),
    "Dataset": dataset,
    "ClassList": lambda: ClassList(("a",), ("a",)),
    "Conventions": Conventions,
    "Source": lambda: open_source("emoji/food"),
    "Result": result,
    "Run": lambda: result().run,
    "RunConfig": lambda: result().run.config,
    "Results": results,
    "Progress": Progress,
    "FeatureCache": lambda: FeatureCache("cache"),
}
"""An object of each kind that people get or make."""
BY_IDENTITY = {"Classifier", "Source", "Progress", "FeatureCache", "Results", "Result", "Dataset", "OtptError", "Run"}
"""Objects with a state, or errors, which are equal to themselves alone."""
IN_NOTEBOOKS = (
    "Classifier",
    "Prediction",
    "Predictions",
    "Failure",
    "Calibration",
    "Result",
    "Run",
    "Results",
    "HeatMap",
)
"""Objects that a notebook shows as a table or a picture."""


@pytest.mark.filterwarnings("ignore:The probability that")
@pytest.mark.parametrize("name", EXAMPLES)
def test_objects_are_shown_copied_and_pickled(name: str) -> None:
    one = EXAMPLES[name]()
    shown = repr(one)
    assert shown
    assert " object at 0x" not in shown
    assert len(shown) < 1500
    assert str(one)
    kind = name.partition(" ")[0]
    if kind in IN_NOTEBOOKS:
        assert hasattr(one, "_repr_html_") or hasattr(one, "_repr_png_")
    for show in ("_repr_html_", "_repr_png_"):
        if hasattr(one, show):
            assert getattr(one, show)()
    for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert type(other) is type(one)
        assert repr(other) == shown
        if kind not in BY_IDENTITY:
            assert other == one
            assert not other != one
            if type(one).__hash__ is not None:
                assert hash(other) == hash(one)
    assert one != "something else"


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name.startswith("Calibration ")])
@pytest.mark.filterwarnings("ignore:The probability that")
def test_each_kind_of_calibration_is_a_table_and_a_picture(name: str) -> None:
    one = EXAMPLES[name]()
    frame = one.to_pandas()
    assert len(frame) == len(one.held_out) > 0
    assert (frame["before_low"] <= frame["before_high"]).all()
    assert isinstance(otpt.plot(one), Figure)


def test_evaluations_are_tables_and_pictures() -> None:
    for shown in (result(), result().run, result().run.folder, str(result().run.folder), results()):
        assert isinstance(otpt.plot(shown), Figure)
    assert isinstance(otpt.plot(result(), "risk-coverage"), Figure)
    assert isinstance(result().frame, pd.DataFrame)
    predictions = classifier().predict(IMAGES[:2])
    assert isinstance(otpt.plot(predictions, limit=1), Figure)
    for wrong in (
        lambda: otpt.plot(3),
        lambda: otpt.plot(predictions, "reliability"),
        lambda: otpt.plot(result(), "x"),
    ):
        with pytest.raises(OtptError):
            wrong()
    with pytest.raises(AttributeError, match="to_pandas"):
        predictions.to_dataframe  # noqa: B018


NO_OBJECTS = {
    "Backbone": "a protocol",
    "Evaluator": "a step of evaluate",
    "EvaluationSystem": "a base class",
    "Execution": "keywords of evaluate",
    **dict.fromkeys(("DatasetNotFound", "NoSuchSplit"), "errors"),
    **dict.fromkeys(("FixedEncoder", "PlainEncoder", "PrefixEncoder", "PromptEncoder", "Linearisation"), "encoders"),
    **dict.fromkeys(("EncodedImage", "FeaturePipeline", "ImageTask", "PromptTokens"), "steps of predictions"),
    **dict.fromkeys(("FeatureWorker", "ImageWorker", "ImageJob", "Identified", "Monitor", "RowStore"), "steps of jobs"),
    **dict.fromkeys(("ClassifierJob", "EmbeddingJob"), "hold a model"),
    "ExplainableClassifier": "a protocol",
    **dict.fromkeys(("Layout", "Reference", "Selection", "Table", "Comparison", "Difference"), "parts of reports"),
    **dict.fromkeys(("Rows", "ShardRows"), "protocols of rows"),
    "RunningMetric": "made for torchmetrics",
    "FeatureDataset": "a Dataset",
    "DatasetEntry": "an entry of a table",
}
"""Public classes that are no objects which people look at, or that others stand for."""


def records(kind: type) -> bool:
    """Whether a class is a plain record, whose representation and equality Python makes."""
    own = vars(kind)
    dataclass = hasattr(kind, "__dataclass_fields__") and "__repr__" in own
    return dataclass or hasattr(kind, "_fields") or issubclass(kind, BaseModel)


@pytest.mark.parametrize("module", MODULES)
def test_no_public_class_is_forgotten(module: str) -> None:
    loaded = importlib.import_module(module)
    names = getattr(loaded, "__all__", None) or [name for name in vars(loaded) if not name.startswith("_")]
    tested = {name.partition(" ")[0] for name in EXAMPLES}
    for name in names:
        kind = getattr(loaded, name)
        mine = inspect.isclass(kind) and kind.__module__.startswith("otpt")
        if not mine or (not hasattr(loaded, "__all__") and kind.__module__ != module):
            continue
        known = name in tested or name in NO_OBJECTS or records(kind)
        assert known, f"{module}.{name} is public; add an object to EXAMPLES, or a reason to NO_OBJECTS."
