"""Every accepted input has an effect or is refused: all fields of the records and all parts of methods, in Python.

Fields are taken from the records and parts from the registries, so a new one is tested without a change here. A field
is given a value of its type; where that is not enough to see an effect, the test says what to add to its table. The
same over HTTP: tests/serve/test_fields.py; on the command line: tests/cli/test_fields.py.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from oracles.data.images import image
from oracles.fields import Case, other_value, toml_text
from oracles.methods.inputs import CLASSES, with_inputs
from oracles.models.tiny import tiny_backbone
from torch import Tensor

import otpt
from otpt import Classifier, Method, OtptError, Prediction, Prompt, functional
from otpt.calibration import Calibration
from otpt.data import Dataset
from otpt.decision import Decision
from otpt.evaluation import Evaluation, evaluate
from otpt.methods import MULTI_LABEL, Protocol, Task, known_parts
from otpt.methods.few_shot import EXAMPLE_INITS
from otpt.records import Frozen
from otpt.registry import OBJECTIVES

IMAGES = [image(seed) for seed in range(8)]
OTHER_IMAGES = [image(seed) for seed in range(100, 140)]

backbone = cache(tiny_backbone)


def fields_of(records: Sequence[type[Frozen]]) -> list[tuple[type[Frozen], str]]:
    """Each keyword of the records."""
    return [(record, name) for record in records for name in record.keywords()]


def with_case(record: type[Frozen], name: str, cases: Mapping[str, Case]) -> tuple[dict[str, Any], Any]:
    """The fields that are set besides a keyword, and its value."""
    case = cases.get(name, Case())
    value = case.value
    if value is None:
        value = other_value(name, record.model_fields[record.spellings.get(name, name)])
    return dict(case.context), value() if callable(value) else value


def set_fields(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of several tables; None leaves a field out."""
    joined = {name: value for table in tables for name, value in table.items()}
    return {name: value for name, value in joined.items() if value is not None}


# ---- fields of a classifier -----------------------------------------------------------------------------------------

BASE: dict[str, Any] = {"classes": CLASSES, "method": "mean-probability", "views": 4}
GROUPS = {"pets": ["cat", "dog"], "things": ["sea", "car"]}


@cache
def calibration() -> Calibration:
    return fitted_on_predictions(Classifier(backbone(), "zero-shot", classes=CLASSES))


def fitted_on_predictions(clf: Classifier) -> Calibration:
    """A calibration on the classifier's own predictions, the least confident of which are called wrong."""
    predictions = clf.predict(OTHER_IMAGES)
    limit = np.quantile([prediction.confidence for prediction in predictions], 0.35)
    wrong = [prediction.confidence < limit for prediction in predictions]
    labels = [(one.index + is_wrong) % len(CLASSES) for one, is_wrong in zip(predictions, wrong, strict=True)]
    return clf.calibrate(OTHER_IMAGES, labels)


def calibrated(**fields: Any) -> dict[str, Any]:
    return {"method": "zero-shot", "calibrations": [calibration()], **fields}


def examples() -> dict[str, Any]:
    return {name: OTHER_IMAGES[3 * i : 3 * i + 3] for i, name in enumerate(CLASSES)}


DESCRIPTIONS = {"descriptions": [f"this is a {name}" for name in CLASSES]}
CASES = {
    "classes": Case(["owl", "pug", "tea"]),
    "texts": Case(Prompt("a sketch of a")),
    "prompt": Case("a sketch of a"),
    "templates": Case(["a sketch of a {}.", "the {}."]),
    "descriptions": Case(DESCRIPTIONS),
    "text_features": Case(lambda: torch.eye(len(CLASSES), 32)),
    "examples": Case(examples, {"method": None}),
    "groups": Case(GROUPS),
    "multi_label": Case(True, {"method": None}),
    "allow_duplicates": Case(True, {"classes": [*CLASSES, "cat"]}, unlocks=True),
    "all_tokens": Case(True, {"method": "tpt", "prompt": "a chiaroscuro of a"}, unlocks=True),
    "method": Case("zero-shot", {"method": None}),
    "methods": Case(["zero-shot"], {"method": None}),
    "views": Case(6),
    "budget": Case(2, {"views": None}),
    "augmix": Case(False),
    "family": Case("shift", {"method": "o-tpt"}),
    "dataset": Case("dtd", {"method": "dataset-templates"}),
    "stream_length": Case(50, {"method": "onzeta"}),
    "memory_budget": Case(1, {"method": "tpt"}),
    "calibration": Case(calibration, {"method": "zero-shot"}),
    "calibrations": Case(lambda: [calibration()], {"method": "zero-shot"}),
    "coverage": Case(0.7, {"decision": calibrated}),
    "sets": Case("lac", {"decision": lambda: calibrated(coverage=0.9)}),
    "mondrian": Case(True, {"decision": lambda: calibrated(coverage=0.7)}),
    "risk": Case(0.3, {"decision": calibrated}),
    "guarantee": Case(0.05, {"decision": lambda: calibrated(risk=0.3)}),
    "reject": Case(True),
    "reject_threshold": Case(50.0, {"reject": True}),
    "threshold": Case(1.0, {"groups": GROUPS}),
}
"""Fields that need other fields, or whose values are not evident from their types."""


def expand(context: Mapping[str, Any]) -> dict[str, Any]:
    """Evaluate the part of a context that is made late."""
    fields = dict(context)
    late = fields.pop("decision", dict)
    return {**late(), **fields}


def seen(clf: Classifier, images: Sequence[Any] = tuple(IMAGES)) -> list[Any]:
    """Everything that a classifier says about images, except the name of the method."""
    predictor = clf._predictor(None)
    answers: list[Any] = [predictor.at_once]
    for prediction in clf.predict(list(images)):
        assert isinstance(prediction, Prediction)
        shown: dict[str, Any] = dict(prediction.to_dict())
        del shown["method"]
        shown["labels above"] = prediction.labels_above()
        shown["answer"] = prediction.back_off() if prediction.groups is not None else None
        answers.append(shown)
    return answers


def seen_or_refused(fields: Mapping[str, Any]) -> list[Any] | str:
    try:
        return seen(Classifier(backbone(), **fields))
    except OtptError as error:
        return str(error)


def test_the_table_has_no_other_fields() -> None:
    assert set(CASES) <= {name for _, name in fields_of([Task, Protocol, Decision])}


@pytest.mark.parametrize(("record", "name"), fields_of([Task, Protocol, Decision]))
def test_fields_of_a_classifier(record: type[Frozen], name: str) -> None:
    context, value = with_case(record, name, CASES)
    fields = set_fields(BASE, expand(context))
    before = seen_or_refused(fields)
    after = seen_or_refused({**fields, name: value})
    assert isinstance(before, list) != CASES.get(name, Case()).unlocks, before
    assert isinstance(after, list), f"{name}={value!r} is refused ({after}); add a context in which it is not to CASES."
    assert after != before, (
        f"{name}={value!r} has no effect on the predictions of {fields!r:.300}; add a context in which it has one to "
        "CASES, or refuse it."
    )


# ---- fields of an evaluation ----------------------------------------------------------------------------------------

RUN: dict[str, Any] = {"method": "mean-probability", "views": 4}
REFUSED_IN_EVALUATIONS = {"dataset", "stream_length", "threshold"}
"""Fields of Protocol and Decision that the data set determines, or that no row has."""
ONLY_IN_CONFIG = {"memory_budget"}
"""Fields that need not change a row; the configuration of the run shows them."""


def dataset(count: int = 12) -> Dataset:
    """Images in memory."""
    images = [image(seed) for seed in range(count)]
    labels = [i % len(CLASSES) for i in range(count)]
    return Dataset("tiny", CLASSES, ids=[f"p/{i}" for i in range(count)], labels=labels, images=images.__getitem__)


EVALUATION_CASES = {
    **{name: case for name, case in CASES.items() if name in Evaluation.keywords()},
    "memory_budget": Case(1),
    "protocol": Case(lambda: Protocol(method="zero-shot"), {"method": None, "views": None}),
    "decision": Case(lambda: Decision(reject="msp", reject_threshold=0.5)),
    "prompts": Case(["a sketch of a", "a photo of a"]),
    "seed": Case(7),
    "seeds": Case([0, 1]),
    "limit": Case(5),
    "shard_size": Case(5),
    "n_bins": Case(3),
}
"""As :data:`CASES`, for evaluations."""


def written(fields: Mapping[str, Any], folder: Path, *, config: bool = False) -> dict[str, Any] | str:
    """Rows, metrics and files of an evaluation, or why it is refused."""
    try:
        result = evaluate(dataset(), backbone(), out=folder, **fields)
    except OtptError as error:
        return str(error)
    rows = result.run.to_pandas()
    content = {
        "rows": rows.sort_values(list(rows.columns[:5])).to_json(double_precision=15),
        "metrics": result.frame.drop(columns="run").to_json(double_precision=15),
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix != ".lock"),
    }
    if config:
        content["config"] = json.loads((folder / "config.json").read_text())
    return content


def test_the_table_of_evaluations_has_no_other_fields() -> None:
    assert set(EVALUATION_CASES) <= set(Evaluation.keywords())


def test_equal_fields_give_equal_results(tmp_path: Path) -> None:
    """What the tests of effects rely on."""
    assert seen_or_refused(BASE) == seen_or_refused(BASE)
    assert written(RUN, tmp_path / "one", config=True) == written(RUN, tmp_path / "other", config=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in Evaluation.keywords() if name not in REFUSED_IN_EVALUATIONS])
def test_fields_of_an_evaluation(name: str, tmp_path: Path) -> None:
    owners = [one for one in (Protocol, Decision) if name in one.keywords() and name not in Evaluation.model_fields]
    record = owners[0] if owners else Evaluation
    context, value = with_case(record, name, EVALUATION_CASES)
    fields = set_fields(RUN, expand(context))
    before = written(fields, tmp_path / "before", config=name in ONLY_IN_CONFIG)
    after = written({**fields, name: value}, tmp_path / "after", config=name in ONLY_IN_CONFIG)
    assert isinstance(before, dict) != EVALUATION_CASES.get(name, Case()).unlocks, before
    assert isinstance(after, dict), (
        f"{name}={value!r} is refused ({after}); add a context in which it is not to EVALUATION_CASES, or its name to "
        "REFUSED_IN_EVALUATIONS."
    )
    assert after != before, (
        f"{name}={value!r} changes no row, metric or file of {fields!r:.300}; add a context in which it does to "
        "EVALUATION_CASES, or refuse it."
    )


@pytest.mark.parametrize(
    "name", [*sorted(REFUSED_IN_EVALUATIONS), *(name for name in Task.keywords() if name not in Evaluation.keywords())]
)
def test_fields_that_evaluations_refuse(name: str, tmp_path: Path) -> None:
    record = next(one for one in (Task, Protocol, Decision) if name in one.keywords())
    _, value = with_case(record, name, CASES)
    with pytest.raises(OtptError, match=name):
        evaluate(dataset(), backbone(), out=tmp_path / "run", **{**RUN, name: value})
    assert not (tmp_path / "run").exists()


def test_the_seed_of_an_evaluation_runs(tmp_path: Path) -> None:
    result = evaluate(dataset(4), backbone(), out=tmp_path / "run", **RUN, seed=7)
    assert set(result.frame["seed"]) == {7}
    clf = Classifier(backbone(), classes=CLASSES, **RUN, seed=7)
    rows = result.run.to_pandas().set_index("id")
    for i, prediction in enumerate(clf.predict(IMAGES[:4])):
        assert isinstance(prediction, Prediction)
        assert rows.loc[f"p/{i}", "confidence"] == pytest.approx(prediction.confidence, abs=1e-6)


# ---- fields in a TOML file ------------------------------------------------------------------------------------------

NOT_IN_TOML = {"text_features"}
"""Fields whose values are objects in memory."""
CALIBRATED = {"method": "zero-shot", "calibrations": ["{folder}/pocket.json"]}
TOML_CASES = {
    **CASES,
    "texts": Case({"words": "a sketch of a", "tokens": 1}, {"method": "tpt"}),
    "views": Case({"n_views": 4, "augmix": False}),
    "examples": Case("{folder}/examples", {"method": None, "classes": None}, unlocks=True),
    "calibration": Case("{folder}/pocket.json", {"method": "zero-shot"}),
    "calibrations": Case(["{folder}/pocket.json"], {"method": "zero-shot"}),
    "coverage": Case(0.7, CALIBRATED),
    "sets": Case("lac", {**CALIBRATED, "coverage": 0.9}),
    "mondrian": Case(True, {**CALIBRATED, "coverage": 0.8}),
    "risk": Case(0.3, CALIBRATED),
    "guarantee": Case(0.05, {**CALIBRATED, "risk": 0.3}),
}
"""As :data:`CASES`, with plain values; ``{folder}`` is a folder of files."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibration of the pocket model, and example images."""
    folder = tmp_path_factory.mktemp("files")
    for name, images in examples().items():
        (folder / "examples" / name).mkdir(parents=True)
        for i, one in enumerate(images):
            one.save(folder / "examples" / name / f"{i}.png")
    fitted_on_predictions(otpt.load("pocket", "zero-shot", device="cpu", classes=CLASSES)).write(folder / "pocket.json")
    return folder


@cache
def seen_of_toml(text: str) -> list[Any] | str:
    fields = tomllib.loads(text)
    images = [*IMAGES, *OTHER_IMAGES] if "calibrations" in fields else IMAGES[:2]
    try:
        return seen(otpt.load("pocket", device="cpu", **fields), images)
    except OtptError as error:
        return str(error)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("record", "name"), [pair for pair in fields_of([Task, Protocol, Decision]) if pair[1] not in NOT_IN_TOML]
)
def test_fields_in_a_toml_file(record: type[Frozen], name: str, files: Path) -> None:
    context, value = with_case(record, name, TOML_CASES)
    fields = set_fields(BASE, context)
    before, after = (toml_text(table).replace("{folder}", str(files)) for table in (fields, {**fields, name: value}))
    seen_before, seen_after = seen_of_toml(before), seen_of_toml(after)
    assert isinstance(seen_before, list) != TOML_CASES.get(name, Case()).unlocks, seen_before
    assert isinstance(seen_after, list), f"This file is refused ({seen_after}); add a context to TOML_CASES:\n{after}"
    assert seen_before != seen_after, (
        f"{name} has no effect in this file; add a context in which it has one to TOML_CASES:\n{after}"
    )


# ---- parts of methods -----------------------------------------------------------------------------------------------

PARTNERS = {
    "init": ["{}"],
    "adapt": ["{}", "tpt+{}", "o-tpt+{}"],
    "objective": ["attributes+tpt+{}", "{}", "tpt+{}"],
    "calibrate": ["tpt+{}", "coop+tpt+{}"],
    "aggregate": ["{}", "promptsmooth+{}"],
    "gate": ["tpt+{}"],
}
"""Names in which a part may act, by axis; the first that exists is used."""
NO_EFFECT = {"zero-shot", "dataset-templates"}
"""Parts that are there to do nothing, or nothing outside the registered data sets."""
PARTS = list(known_parts())


@cache
def method_of_part(name: str) -> tuple[str, str]:
    """The name of a method in which a part acts, and of the same method without it."""
    part = known_parts()[name]
    takes = {parameter for objective in part.objectives for parameter in OBJECTIVES[objective].parameters}
    errors = []
    for pattern in PARTNERS[part.axis]:
        if "attributes" in pattern and "attributes" not in takes:
            continue
        joined = pattern.format(name)
        try:
            with_inputs(joined)
        except OtptError as error:
            errors.append(str(error))
        else:
            return joined, pattern.removesuffix("+{}").replace("{}", "zero-shot")
    pytest.fail(f"The part {name!r} is in no name of PARTNERS[{part.axis!r}]; add one in which it may act: {errors}")


def fields_of_method(name: str) -> dict[str, Any]:
    """What a classifier is given for a method."""
    method = with_inputs(name)
    fields: dict[str, Any] = {"classes": CLASSES, "method": method, "views": 24}
    if method.init in EXAMPLE_INITS:
        fields["examples"] = examples()
    if method.adapt == MULTI_LABEL:
        fields["multi_label"] = True
    return fields


@pytest.mark.parametrize("name", PARTS)
def test_parts_in_a_classifier(name: str) -> None:
    """Another prediction than without the part; an error for those that need a trained network or the whole set."""
    joined, without = method_of_part(name)
    method = with_inputs(joined)
    after = seen_or_refused(fields_of_method(joined))
    if method.preparation.own_network or method.sees_all_first:
        assert isinstance(after, str)
        return
    assert isinstance(after, list), f"{joined} is refused: {after}"
    assert (after != seen_or_refused(fields_of_method(without))) == (name not in NO_EFFECT)


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_parts_in_an_evaluation(name: str, tmp_path: Path) -> None:
    """Other rows than without the part, or an error: of examples, trained networks and several labels."""
    joined, without = method_of_part(name)
    method = with_inputs(joined)
    methods = [method] if name in NO_EFFECT else [method, with_inputs(without)]
    refused = method.preparation.own_network or method.init in EXAMPLE_INITS or method.adapt == MULTI_LABEL
    try:
        result = evaluate(dataset(6), backbone(), out=tmp_path / "run", methods=methods, views=24)
    except OtptError as error:
        assert refused, f"{joined} is refused: {error}"  # noqa: PT017
        assert not (tmp_path / "run").exists()
        return
    assert not refused
    rows = result.run.to_pandas().sort_values("id").set_index("method")
    columns = [column for column in rows.columns if column not in ("prompt", "index")]
    shown = [rows.loc[[method.name], columns].to_json(orient="values", double_precision=15) for method in methods]
    assert len(set(shown)) == len(methods), f"{joined} gives the rows of {without}."


# ---- parts on arrays ------------------------------------------------------------------------------------------------

SCALE, WIDTH = 30.0, 12
GENERATOR = torch.Generator().manual_seed(1)
TEXTS = F.normalize(torch.randn(len(CLASSES), WIDTH, generator=GENERATOR, dtype=torch.float64), dim=-1)
VIEWS = F.normalize(
    TEXTS[[1, 3, 2]][:, None] + 0.5 * torch.randn(3, 20, WIDTH, generator=GENERATOR, dtype=torch.float64), dim=-1
)
WEIGHTS = torch.randn(len(CLASSES), WIDTH, 6, generator=GENERATOR, dtype=torch.float64)
CONTEXT = torch.randn(2, 3, generator=GENERATOR, dtype=torch.float64)
EXAMPLES = F.normalize(TEXTS.repeat(3, 1) + 0.5 * torch.randn(15, WIDTH, generator=GENERATOR), dim=-1)
KINDS = [(array, dtype) for array in ("numpy", "torch") for dtype in ("float64", "float32", "float16")]


def encoder(context: Tensor) -> Tensor:
    return TEXTS.to(context) + 0.3 * torch.tanh(WEIGHTS.to(context) @ context.flatten())


def as_array(tensor: Tensor, kind: tuple[str, str]) -> Any:
    """The same numbers in another kind of array."""
    array, dtype = kind
    converted = tensor.to(getattr(torch, dtype))
    return converted.numpy() if array == "numpy" else converted


def predict_arrays(
    method: Method, kind: tuple[str, str], views: Tensor = VIEWS, other_kind: tuple[str, str] | None = None
) -> Tensor:
    """Predict views of a kind of array; texts, contexts and examples may be of another one."""
    other = other_kind or kind
    inputs: dict[str, Any] = {"text_features": as_array(TEXTS, other)}
    if method.needs_context:
        inputs = {"text_features": encoder, "context": as_array(CONTEXT, other)}
    if method.init in EXAMPLE_INITS:
        inputs["examples"] = (as_array(EXAMPLES, other), [i % len(CLASSES) for i in range(len(EXAMPLES))])
    return functional.predict(as_array(views, kind), method=method, logit_scale=SCALE, **inputs)


@pytest.mark.parametrize("name", PARTS)
def test_parts_on_arrays(name: str) -> None:
    """Probabilities of any mixture of arrays, the same for one image; methods that need more are refused."""
    joined, without = method_of_part(name)
    method, other = with_inputs(joined), with_inputs(without)
    makes_texts = method.init not in (*EXAMPLE_INITS, "words")
    if makes_texts or not method.preparation.needs_features or method.sees_all_first:
        for kind in KINDS:
            with pytest.raises(OtptError, match=re.escape(repr(method.name))):
                predict_arrays(method, kind)
        return
    for array, dtype in KINDS:
        probabilities = predict_arrays(method, (array, dtype))
        assert (probabilities.shape, probabilities.dtype) == ((3, len(CLASSES)), torch.float64)
        torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-5)
        assert torch.equal(predict_arrays(method, ("torch", dtype)), probabilities)
        assert torch.equal(predict_arrays(method, (array, dtype), VIEWS[0]), probabilities[0])
        expected = predict_arrays(other, (array, dtype))
        # a gate may adapt no image, or each; without the entropy, AdamW's step has the same signs on these numbers
        unclear = method.gate != "none" or name == "static"
        assert unclear or torch.equal(probabilities, expected) == (name in NO_EFFECT)
    for views_type, other_type in permutations(("float64", "float32", "float16", "bfloat16"), 2):
        mixed = predict_arrays(method, ("torch", views_type), other_kind=("torch", other_type))
        assert (mixed.shape, mixed.dtype) == ((3, len(CLASSES)), torch.float64)
        torch.testing.assert_close(mixed.sum(dim=1), torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-5)
