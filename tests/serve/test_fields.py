"""Every field of Task, Protocol and Decision over HTTP: it changes the answer, or it is refused in a sentence.

The fields come from the records. A new one is sent with a value of its type; where that is not enough to see an effect,
the test says what to add to ``CASES``.
"""

from __future__ import annotations

import ast
import json
import re
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from httpx import Response
from oracles.fields import Case, other_values, same, values_to_try
from oracles.pages.servers import image_file, text_of
from pydantic.fields import FieldInfo

import otpt
from otpt.errors import OtptError
from otpt.methods import get_method, known_parts
from otpt.methods.method import Steps
from otpt.records import NOT_SERVED, Frozen, mark_of
from otpt.registry import ADAPTATIONS, AGGREGATIONS, CALIBRATIONS, GATES, INITS, OBJECTIVES, STREAM, SYSTEMS
from otpt.serve.fields import FORMS, RECORDS
from otpt.serve.queries import names_file, served_method
from otpt.serve.schemas import CompareRequest, PredictRequest

from .conftest import ANIMALS, Local

pytestmark = pytest.mark.slow

FILES = [image_file(seed) for seed in range(40, 46)]
ONE = {"method": "o-tpt", "labels": list(ANIMALS)}
CALIBRATED = {"classes": "animals", "labels": None, "method": "tpt", "calibration": ["animals"]}
GROUPS = {"pet": ["cat", "dog"], "wild": ["red panda", "owl"]}
CASES = {
    "labels": Case(["apple", "pear"]),
    "classes": Case("drawn", {"labels": None}, unlocks=True),
    "model": Case("twin"),
    "method": Case("zero-shot", {"method": None}),
    "methods": Case(["zero-shot"]),
    "prompt": Case("a drawing of a {}."),
    "templates": Case(["a drawing of a {}.", "a photo of the {}."], {"method": "zero-shot"}),
    "top": Case(2),
    "groups": Case(GROUPS),
    "multi_label": Case(True, {"method": None}),
    "allow_duplicates": Case(True, {"labels": ["cat", "dog", "cat"]}, unlocks=True),
    "all_tokens": Case(True, {"prompt": "a chiaroscuro of a {}."}, unlocks=True),
    "threshold": Case(1.0, {"groups": GROUPS}),
    "within": Case("pet", {"groups": GROUPS}),
    "calibration": Case(["animals"], {**CALIBRATED, "calibration": None}),
    "augmix": Case(False),
    "family": Case("shift"),
    "coverage": Case(None, CALIBRATED),
    "sets": Case(None, {**CALIBRATED, "coverage": 0.5}),
    "mondrian": Case(None, {**CALIBRATED, "coverage": 0.5}),
    "risk": Case(0.97, CALIBRATED),
    "guarantee": Case(0.5, {**CALIBRATED, "risk": 0.93}, unlocks=True),
    "reject": Case(True),
    "reject_threshold": Case(-1.0, {"reject": "msp"}),
}
"""Fields that need other fields, or whose values are not evident from their type."""
INPUTS = ("image", "images")
FIELDS: dict[str, FieldInfo] = {**CompareRequest.model_fields, **PredictRequest.model_fields}


def ask(local: Local, route: str, fields: dict[str, Any], *, form: bool, single: bool) -> Response:
    """Send images and fields; those that are None are left out."""
    files = FILES[:1] if single else FILES
    body = {name: value for name, value in fields.items() if value is not None}
    with local.client() as client:
        if form:
            texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in body.items()}
            return client.post(f"/v1/{route}/form", files=[("image", data) for data in files], data=texts)
        images: dict[str, Any] = (
            {"image": text_of(files[0])} if single else {"images": [text_of(data) for data in files]}
        )
        return client.post(f"/v1/{route}", json={**images, **body})


def test_the_table_has_no_other_fields() -> None:
    assert set(CASES) <= set(FIELDS)


@pytest.mark.parametrize("form", [False, True], ids=["json", "form"])
@pytest.mark.parametrize("name", [name for name in FIELDS if name not in INPUTS])
def test_every_field_of_a_request_has_an_effect(local: Local, name: str, form: bool) -> None:
    case = CASES.get(name, Case())
    route, request = "predict", {**ONE, **case.context}
    if name not in PredictRequest.model_fields:
        route, request = "compare", {**request, "method": None, "methods": ["tpt"]}
    single = name in ("explain", "show_views")
    before = ask(local, route, request, form=form, single=single)
    assert (before.status_code == 200) != case.unlocks, before.text
    refusals = {}
    for value in values_to_try(name, FIELDS[name], case):
        after = ask(local, route, {**request, name: value}, form=form, single=single)
        if after.status_code != 200:
            refusals[str(value)] = after.text
        elif not same(content(before), content(after)):
            return
    assert not refusals, f"{name} was refused, but it is a field of requests: {refusals}"
    pytest.fail(
        f"{name} changed nothing; add a request and a value with which it has an effect to CASES of this test, or mark "
        "the field of the record with otpt.records.NOT_SERVED."
    )


def content(answer: Response) -> dict[str, Any]:
    return {name: value for name, value in answer.json().items() if name != "seconds"}


@pytest.mark.parametrize(
    ("record", "keyword"),
    [(record, keyword) for record in RECORDS for keyword in record.keywords() if keyword not in FIELDS],
)
def test_other_fields_of_the_records_are_refused_with_a_reason(
    local: Local, record: type[Frozen], keyword: str
) -> None:
    name = record.spellings.get(keyword, keyword)
    reason = mark_of(record.model_fields[name], NOT_SERVED) or FORMS.get(name)
    assert reason, f"Requests have no field {keyword}; mark {name} with otpt.records.NOT_SERVED."
    for route, form in (("predict", False), ("predict", True), ("compare", False)):
        methods = {"methods": ["tpt"], "method": None} if route == "compare" else {}
        answer = ask(local, route, {**ONE, **methods, keyword: 1}, form=form, single=True)
        assert_refused(answer, keyword)
        assert str(reason) in answer.json()["error"]["message"]


@pytest.mark.parametrize(("route", "keyword"), [("predict", "methods"), ("compare", "method")])
def test_a_field_of_another_route_is_refused_in_a_sentence(local: Local, route: str, keyword: str) -> None:
    methods = {"methods": ["tpt"], "method": "tpt"}
    assert_refused(ask(local, route, {**ONE, **methods}, form=False, single=True), keyword)


def assert_refused(answer: Response, name: str) -> None:
    assert answer.status_code == 422, answer.text
    error = answer.json()["error"]
    assert error["type"] == "refused-field"
    assert error["message"].startswith(f"{name}: ")
    assert error["message"].endswith(".")


def test_an_unknown_field_is_refused_with_a_suggestion(local: Local) -> None:
    answer = ask(local, "predict", {**ONE, "covrage": 0.9}, form=False, single=True)
    assert answer.status_code == 422
    assert "'coverage'" in answer.json()["error"]["hint"]


def test_limits_hold_for_the_budget(local: Local) -> None:
    too_many = local.service.limits.views + 1
    for field in ("views", "budget"):
        answer = ask(local, "predict", {**ONE, field: too_many}, form=False, single=True)
        assert answer.status_code == 422
        assert answer.json()["error"]["type"] == "too-many-views"


# ---- methods --------------------------------------------------------------------------------------------------------


def method_with(part: str) -> str:
    """A method that the part is in: by itself, or joined with another part."""
    for name in (part, f"tpt+{part}", f"o-tpt+{part}", *(f"{other}+{part}" for other in known_parts())):
        try:
            get_method(name)
        except OtptError:
            continue
        return name
    pytest.fail(f"The part {part!r} is in no method with one other part; add a method to method_with of this test.")


@pytest.mark.parametrize("part", known_parts())
def test_every_part_works_or_is_refused(local: Local, part: str) -> None:
    name = method_with(part)
    request = {**ONE, "method": name, "views": 20}  # of which some objectives need two selected ones
    if name == "templates":
        request["templates"] = ["a {}."]
    if name == "multi-label":
        request["multi_label"] = True
        del request["views"]
    answer = ask(local, "predict", request, form=False, single=True)
    method = get_method(name)
    served = method.scope != STREAM and all(preparation.served for preparation in method.preparations)
    assert answer.status_code == (200 if served else 422), answer.text
    if served:
        assert answer.json()["results"][0]["label"] in ANIMALS
    else:
        assert repr(name) in answer.json()["error"]["message"]


@pytest.mark.parametrize("name", [*INITS, *SYSTEMS])
def test_requests_name_no_files(local: Local, name: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret {}.", encoding="utf-8")
    settings = (SYSTEMS.get(name) or INITS[name]).settings()
    for setting, declared in settings.items():
        if names_file(declared.kind):
            method = f"{name}[{setting.replace('_', '-')}={secret}]"
            answer = ask(local, "predict", {**ONE, "method": method}, form=False, single=True)
            assert answer.status_code == 422, answer.text
            assert "secret {}" not in answer.text


def is_served(name: str) -> bool:
    with suppress(OtptError):
        return served_method(name).name == name
    return False


EXTREME = ("0", "1", "1e-300", "1e308", "1000000000", "1" + "0" * 30)
"""Values of settings, of which each setting takes those in its range."""


def numeric_settings() -> list[tuple[str, str]]:
    """All settings of all registered parts that are numbers: (method, setting)."""
    names = []
    for part in known_parts():
        method = get_method(method_with(part))
        settings = {**method.defaults, **{key: value.default for key, value in method.input_settings.items()}}
        names += [(method.name, name) for name, value in settings.items() if isinstance(value, (int, float))]
    steps = [("tpt", step.name) for step in fields(Steps)]
    return sorted({*names, *steps, ("tpt+ts", "temperature")})


@pytest.mark.parametrize(("name", "setting"), [case for case in numeric_settings() if is_served(case[0])])
def test_extreme_settings_are_answered_or_refused(local: Local, name: str, setting: str) -> None:
    """One without a mark may take any value of its range; the work of the others is refused before it begins."""
    statuses = {}
    for value in EXTREME:
        method = f"{name}[{setting.replace('_', '-')}={value}]"
        answer = ask(local, "predict", {**ONE, "method": method, "views": 4}, form=False, single=True)
        assert answer.status_code in (200, 422), (method, answer.text)
        statuses[value] = answer.status_code
    multiplies = {s.name for function in get_method(name).functions for s in function.settings.values() if s.multiplies}
    if setting in multiplies | {"steps"}:
        assert statuses["1000000000"] == statuses["1" + "0" * 30] == 422


def test_whole_numbers_that_bound_a_loop_say_so() -> None:
    """``range(SETTING)`` is a loop whose work a request decides: the setting has a mark, and the loop can end."""
    sources = Path(otpt.__file__).parent
    marked, looped = set(), set()
    for registry in (ADAPTATIONS, CALIBRATIONS, AGGREGATIONS, GATES, OBJECTIVES):
        for component in registry.values():
            marked |= {setting.name for setting in component.settings.values() if setting.multiplies}
    for init in INITS.values():
        marked |= {setting.name for setting in init.settings().values() if setting.multiplies}
    settings = {setting for _, setting in numeric_settings()}
    for path in [*sources.glob("methods/*.py"), *sources.glob("calibration/*.py"), sources / "objectives.py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.For):
                loop = ast.unparse(node.iter)
                words = re.findall(r"\w+", loop) if "range(" in loop else []
                names = {*words} & settings
                looped |= names
                assert not names or "cancellable_loop" in loop, f"{path.name}: {loop}"
    assert {"bias_steps", "lsa_passes", "steps"} <= looped
    assert looped - {"steps"} <= marked


# ---- prepared texts -------------------------------------------------------------------------------------------------


def test_the_key_of_prepared_texts_follows_from_the_records(local: Local) -> None:
    """Only the seed of the protocol is no part of it."""
    catalogue, limits = local.service.catalogue, local.service.limits
    request = PredictRequest(image="", labels=["cat", "dog"], method="tpt")
    (query,) = catalogue.queries(request, 1, limits)
    for part in ("task", "protocol"):
        record = getattr(query, part)
        for name, field in type(record).model_fields.items():
            for value in other_values(field)[:1]:  # none for objects
                changed = replace(query, **{part: record.replace(**{name: value})})
                assert (changed.key == query.key) is (name == "seed"), name
    again = catalogue.queries(request.model_copy(update={"top": 1}), 1, limits)
    assert {again[0].key: 1} == {query.key: 1}
