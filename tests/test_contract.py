"""Every accepted input has an effect or is refused: all fields of the records and all parts of methods, in Python.

Fields are taken from the records and parts from the registries, so a new one is tested without a change here. A field
is given a value of its type; where that is not enough to see an effect, the test says what to add to its table. The
same over HTTP: tests/serve/test_fields.py; on the command line: tests/cli/test_fields.py.
"""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from oracles.data.images import image, turned
from oracles.fields import Case, other_values, same, toml_text, values_to_try
from oracles.methods.inputs import CLASSES, other_input, with_inputs
from oracles.models.tiny import tiny_backbone
from pydantic.fields import FieldInfo
from torch import Tensor

import otpt
from otpt import Classifier, Method, OtptError, Prediction, Prompt, functional
from otpt.calibration import Calibration
from otpt.data import Dataset
from otpt.decision import Decision
from otpt.evaluation import Evaluation, evaluate
from otpt.methods import MULTI_LABEL, Protocol, Task, calibration_facts, known_parts, prompt_facts
from otpt.methods.few_shot import EXAMPLE_INITS
from otpt.records import Frozen
from otpt.registry import INITS, OBJECTIVES, Preparation

IMAGES = [turned(image(0)), *(image(seed) for seed in range(1, 8))]
OTHER_IMAGES = [turned(image(seed)) if seed == 120 else image(seed) for seed in range(100, 140)]

RECORDS = (Task, Protocol, Decision)
Results = list[Any] | dict[str, Any]
Outcome = Results | str
"""What somebody sees, or the sentence with which it is refused."""

backbone = cache(tiny_backbone)


def fields_of(records: Sequence[type[Frozen]]) -> list[tuple[type[Frozen], str]]:
    """Each keyword of the records."""
    return [(record, name) for record in records for name in record.keywords()]


def field_info(record: type[Frozen], name: str) -> FieldInfo:
    """The field that a keyword sets."""
    return record.model_fields[record.spellings.get(name, name)]


def assert_effect(
    name: str, values: Sequence[Any], outcome: Callable[..., Outcome], case: Case, table: str = "CASES"
) -> None:
    """One of the values is accepted and changes the outcome.

    Args:
        name: keyword.
        values: values that are tried, in this order.
        outcome: called with the keyword and a value, and without any; results, or why it is refused.
        case: whether the keyword is needed for any result.
        table: table of cases, for error messages.
    """
    before = outcome()
    assert isinstance(before, str) == case.unlocks, before
    refusals = {}
    for value in values:
        after = outcome(**{name: value})
        if isinstance(after, str):
            refusals[repr(value)] = after
        elif not same(after, before):
            return
    assert len(refusals) < len(values), f"{name} is refused: {refusals}; add a context in which it is not to {table}."
    pytest.fail(f"{name} in {values!r:.300} has no effect; add a context in which it has one to {table}, or refuse it.")


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
    "multi_label": Case(True, {"method": None, "views": None}),
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
    "within": Case("pets", {"groups": GROUPS}),
}
"""Fields that need other fields, or whose values are not evident from their types."""


def expand(context: Mapping[str, Any]) -> dict[str, Any]:
    """Evaluate the part of a context that is made late."""
    fields = dict(context)
    late = fields.pop("decision", dict)
    return {**late(), **fields}


def seen(clf: Classifier, images: Sequence[Any] = tuple(IMAGES)) -> Results:
    """Everything that a classifier says about images, except the name of the method."""
    predictor = clf._predictor(None)
    answers: Results = [predictor.at_once]
    for prediction in clf.predict(list(images)):
        assert isinstance(prediction, Prediction)
        shown: dict[str, Any] = dict(prediction.to_dict())
        del shown["method"]
        shown["labels above"] = prediction.labels_above()
        shown["answer"] = prediction.back_off() if prediction.groups is not None else None
        answers.append(shown)
    return answers


def seen_or_refused(fields: Mapping[str, Any], images: Sequence[Any] = tuple(IMAGES)) -> Outcome:
    try:
        return seen(Classifier(backbone(), **fields), images)
    except OtptError as error:
        return str(error)


def test_the_table_has_no_other_fields() -> None:
    assert set(CASES) <= {name for _, name in fields_of(RECORDS)}


@pytest.mark.parametrize(("record", "name"), fields_of(RECORDS))
def test_fields_of_a_classifier(record: type[Frozen], name: str) -> None:
    case = CASES.get(name, Case())
    fields = set_fields(BASE, expand(case.context))
    values = values_to_try(name, field_info(record, name), case)
    assert_effect(name, values, lambda **changes: seen_or_refused({**fields, **changes}), case)


# ---- fields of a classifier, for other questions --------------------------------------------------------------------

METHODS = (None, "mean-probability", "o-tpt", "onzeta", "tda")
ONE_LABEL = {"classes": CLASSES, "views": 4}
QUESTIONS: dict[str, tuple[dict[str, Any], Sequence[str | None]]] = {
    "one label": (ONE_LABEL, METHODS),
    "several labels": ({"classes": CLASSES, "multi_label": True}, [None]),
    "single class": ({"classes": ["cat"]}, [None]),
    "examples": (
        {"examples": examples, "views": 4},
        [None, "gda+mean-probability", "tip-adapter", "gda+onzeta", "gda+tda"],
    ),
    "templates": ({**ONE_LABEL, "templates": ["a sketch of a {}.", "the {}."]}, METHODS),
    "fixed templates": (ONE_LABEL, ["templates-7", "templates-7+mean-probability"]),
    "groups": ({**ONE_LABEL, "groups": GROUPS}, METHODS),
}
"""Kinds of questions, and the methods of which one must show the effect of a field; None is the question's default.

A field may have no effect with some method, since another one may be chosen for each image; but a field that has none
with any of these, nor with what CASES sets, must be refused.
"""
IMPLIED = {("multi_label", "single class")}
"""Fields that a question has by itself."""
FEW_IMAGES = tuple(OTHER_IMAGES[20:24])


@cache
def fields_of_question(question: str, method: str | None) -> dict[str, Any]:
    fields = {name: value() if callable(value) else value for name, value in QUESTIONS[question][0].items()}
    return set_fields({"method": method}, fields)


@cache
def seen_by(question: str, method: str | None) -> Outcome:
    """The outcome of a question to which nothing is added."""
    return seen_or_refused(fields_of_question(question, method), FEW_IMAGES)


def backgrounds(question: str, case: Case) -> Iterator[tuple[dict[str, Any], Outcome]]:
    """Fields to which another one is added, and their outcome: of the question alone, and with those of the case."""
    for method in QUESTIONS[question][1]:
        fields = fields_of_question(question, method)
        yield fields, seen_by(question, method)
        if case.context:
            fields = set_fields(fields, {"method": method}, expand(case.context))
            yield fields, seen_or_refused(fields, FEW_IMAGES)


@pytest.mark.filterwarnings("ignore:The probability that:UserWarning")
@pytest.mark.parametrize(
    ("record", "name", "question"),
    [
        (record, name, question)
        for record, name in fields_of(RECORDS)
        for question, (fields, _) in QUESTIONS.items()
        if (name == "classes" or name not in fields) and (name, question) not in IMPLIED
    ],
)
def test_fields_act_on_every_question_or_are_refused(record: type[Frozen], name: str, question: str) -> None:
    case = CASES.get(name, Case())
    field = field_info(record, name)
    values = values_to_try(name, field, case) + (other_values(field) if case.value is not None else [])
    silent = []
    for fields, before in backgrounds(question, case):
        for value in values:
            after = seen_or_refused({**fields, name: value}, FEW_IMAGES)
            if isinstance(after, str) or (isinstance(before, str) and not case.unlocks):
                continue
            if not same(before, after):
                return
            further = {key: value for key, value in fields.items() if key not in QUESTIONS[question][0]}
            silent.append({**further, name: value})
    assert not silent, f"Accepted and without effect on the question {question!r}: {silent!r:.300}; refuse it."


@pytest.mark.filterwarnings("ignore:The probability that:UserWarning")
@pytest.mark.parametrize("question", QUESTIONS)
def test_several_methods_all_run_or_are_refused(question: str) -> None:
    fields = fields_of_question(question, None)
    for several in (["zero-shot", "mean-probability"], ["gda", "tip-adapter"], ["templates-7", "templates-80"]):
        one, both = (seen_or_refused({**fields, "methods": names}, FEW_IMAGES) for names in (several[:1], several))
        ignored = not isinstance(both, str) and same(one, both)
        assert not ignored, f"Of the methods {several}, only the first has an effect; refuse several."


# ---- fields of an evaluation ----------------------------------------------------------------------------------------

RUN: dict[str, Any] = {"method": "mean-probability", "views": 4}
REFUSED_IN_EVALUATIONS = {"dataset", "stream_length", "threshold", "within"}
"""Fields of Protocol and Decision that the data set determines, or that no row has."""
ONLY_IN_CONFIG = {"memory_budget"}
"""Fields that need not change a row; the configuration of the run shows them."""


def dataset(count: int = 12) -> Dataset:
    """Images in memory."""
    images = [turned(image(0)), *(image(seed) for seed in range(1, count))]
    labels = [i % len(CLASSES) for i in range(count)]
    return Dataset("tiny", CLASSES, ids=[f"p/{i}" for i in range(count)], labels=labels, images=images.__getitem__)


EVALUATION_CASES = {
    **{name: case for name, case in CASES.items() if name in Evaluation.keywords()},
    "memory_budget": Case(1),
    "protocol": Case(lambda: Protocol(method="zero-shot"), {"method": None, "views": None}),
    "decision": Case(lambda: Decision(reject="msp", reject_threshold=0.5)),
    "prompts": Case(["a sketch of a", "a photo of a"]),
    "sweep": Case({"views": [2, 4]}),
    "seed": Case(7),
    "seeds": Case([0, 1]),
    "limit": Case(5),
    "shard_size": Case(5),
    "n_bins": Case(3),
}
"""As :data:`CASES`, for evaluations."""


def written(fields: Mapping[str, Any], folder: Path, *, config: bool = False) -> Outcome:
    """Rows, metrics and files of an evaluation, or why it is refused."""
    try:
        result = evaluate(dataset(), backbone(), out=folder, **fields)
    except OtptError as error:
        return str(error)
    rows = result.run.to_pandas()
    content = {
        "rows": plain_rows(rows.sort_values(list(rows.columns[:5]))),
        "metrics": plain_rows(result.frame.drop(columns="run")),
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix != ".lock"),
    }
    if config:
        content["config"] = json.loads((folder / "config.json").read_text())
    return content


def plain_rows(frame: pd.DataFrame) -> dict[str, Any]:
    """Columns of a table, in which missing values and numbers are as in JSON."""
    columns: dict[str, Any] = json.loads(frame.to_json(orient="split", index=False, double_precision=15))
    return columns


def test_the_table_of_evaluations_has_no_other_fields() -> None:
    assert set(EVALUATION_CASES) <= set(Evaluation.keywords())


def test_equal_fields_give_equal_results(tmp_path: Path) -> None:
    """What the tests of effects rely on."""
    assert same(seen_or_refused(BASE), seen_or_refused(BASE))
    assert same(written(RUN, tmp_path / "one", config=True), written(RUN, tmp_path / "other", config=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in Evaluation.keywords() if name not in REFUSED_IN_EVALUATIONS])
def test_fields_of_an_evaluation(name: str, tmp_path: Path) -> None:
    owners = [one for one in (Protocol, Decision) if name in one.keywords() and name not in Evaluation.model_fields]
    case = EVALUATION_CASES.get(name, Case())
    fields = set_fields(RUN, expand(case.context))
    values = values_to_try(name, field_info(owners[0] if owners else Evaluation, name), case)
    runs = itertools.count()

    def outcome(**changes: Any) -> Outcome:
        return written({**fields, **changes}, tmp_path / f"run-{next(runs)}", config=name in ONLY_IN_CONFIG)

    assert_effect(name, values, outcome, case, "EVALUATION_CASES")


@pytest.mark.parametrize(
    "name", [*sorted(REFUSED_IN_EVALUATIONS), *(name for name in Task.keywords() if name not in Evaluation.keywords())]
)
def test_fields_that_evaluations_refuse(name: str, tmp_path: Path) -> None:
    record = next(one for one in RECORDS if name in one.keywords())
    value, *_ = values_to_try(name, field_info(record, name), CASES.get(name, Case()))
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
def seen_of_toml(text: str) -> Outcome:
    fields = tomllib.loads(text)
    images = [*IMAGES, *OTHER_IMAGES] if "calibrations" in fields else IMAGES[:2]
    try:
        return seen(otpt.load("pocket", device="cpu", **fields), images)
    except OtptError as error:
        return str(error)


@pytest.mark.slow
@pytest.mark.parametrize(("record", "name"), [pair for pair in fields_of(RECORDS) if pair[1] not in NOT_IN_TOML])
def test_fields_in_a_toml_file(record: type[Frozen], name: str, files: Path) -> None:
    case = TOML_CASES.get(name, Case())
    fields = set_fields(BASE, case.context)
    values = values_to_try(name, field_info(record, name), case)

    def outcome(**changes: Any) -> Outcome:
        return seen_of_toml(toml_text({**fields, **changes}).replace("{folder}", str(files)))

    assert_effect(name, values, outcome, case, "TOML_CASES")


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
        fields |= {"multi_label": True, "views": 64}  # it sees a grid of crops
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
    assert same(after, seen_or_refused(fields_of_method(without))) == (name in NO_EFFECT)


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


# ---- inputs of inits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("init", "name"), [(init, name) for init in INITS.values() for name in init.model_fields])
def test_inputs_of_inits_change_the_facts(init: type[Preparation], name: str) -> None:
    """A run folder and a calibration notice another value of each input."""
    method = with_inputs(init.name)
    task, protocol = Task(classes=CLASSES), Protocol()
    other = method.override({name: other_input(init, name)})
    assert prompt_facts(task, protocol, method) != prompt_facts(task, protocol, other)
    before, after = (calibration_facts(backbone(), task, protocol, each) for each in (method, other))
    assert before != after
