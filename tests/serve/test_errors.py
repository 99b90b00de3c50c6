"""Every refusal says what was given, what is expected and what to do; of a field, with its value."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from otpt.errors import OtptError, unknown
from otpt.serve.http.errors import RequestError, sentence_parts, unusable, unusable_image
from otpt.serve.http.reading import parse_json
from otpt.serve.http.schemas import CompareRequest, HubRequest, PredictRequest

pytestmark = pytest.mark.slow

FIELDS: list[tuple[type[BaseModel], Any, str, str]] = [
    (PredictRequest, {"coverage": 1.5}, "The field 'coverage' is 1.5.", "less than 1"),
    (PredictRequest, {"top": True}, "The field 'top' is true.", "a valid integer"),
    (PredictRequest, {"labels": "cat"}, "The field 'labels' is 'cat'.", "a valid array"),
    (PredictRequest, {"labels": ["cat", 3]}, "The field 'labels.1' is 3.", "a valid string"),
    (PredictRequest, {"image": 7}, "The field 'image' is 7.", "a valid string"),
    (PredictRequest, {"top": "x" * 1000}, f"The field 'top' is '{'x' * 60}'….", "a valid integer"),
    (PredictRequest, {"images": []}, "The field 'images' is an empty list.", "one at least"),
    (PredictRequest, {"seed": 10**500}, "The field 'seed' is a number of very many digits.", "less than"),
    (PredictRequest, [1, 2], "The request is a list of 2.", "a JSON object"),
    (PredictRequest, 3, "The request is 3.", "a JSON object"),
    (PredictRequest, {"reject": 3}, "The field 'reject' is 3.", "a valid boolean or a valid string"),
    (PredictRequest, {"calibration": 3}, "The field 'calibration' is 3.", "a valid string or a valid array"),
    (CompareRequest, {"labels": ["a", "b"]}, "The field 'methods' is missing.", "names of methods"),
    (HubRequest, {"inputs": "a"}, "The field 'parameters' is missing.", "candidate_labels"),
    (HubRequest, {"inputs": "a", "parameters": {}}, "'parameters.candidate_labels' is missing.", "class names"),
    (HubRequest, {"inputs": {}, "parameters": {}}, "The field 'inputs' is an object.", "an object with 'image'"),
]


@pytest.mark.parametrize(("model", "given", "what", "expected"), FIELDS, ids=lambda value: str(value)[:40])
def test_a_field_is_named_with_its_value(model: type[BaseModel], given: Any, what: str, expected: str) -> None:
    with pytest.raises(RequestError) as told:
        parse_json(json.dumps(given).encode(), model)
    assert told.value.status == 422
    assert told.value.what.endswith(what)
    assert expected in told.value.expected
    assert told.value.do


def test_a_field_that_does_not_exist_gets_the_nearest() -> None:
    with pytest.raises(RequestError) as told:
        parse_json(b'{"label": ["cat", "dog"]}', PredictRequest)
    assert told.value.what == "There is no field 'label'."
    assert "labels, classes, model" in told.value.expected
    assert told.value.do == "Write 'labels', or leave it out."
    with pytest.raises(RequestError, match="no field 'zzz'") as other:
        parse_json(b'{"zzz": 1}', PredictRequest)
    assert other.value.do == "Leave it out."


def test_what_is_no_json() -> None:
    with pytest.raises(RequestError, match="Invalid JSON") as told:
        parse_json(b"{", PredictRequest)
    assert told.value.status == 400


def test_sentences_of_the_library_are_taken_apart() -> None:
    assert sentence_parts(str(unknown("list", "cra", ["cars", "pets"]))) == (
        "Unknown list 'cra'.",
        "one of: cars, pets",
        "Did you mean: cars?",
    )
    assert sentence_parts(str(unknown("list", "xyz", ["cars"]))) == ("Unknown list 'xyz'.", "one of: cars", "")
    assert sentence_parts("One label; expected two.") == ("One label.", "two", "")
    assert sentence_parts("One label; expected two; add one.") == ("One label.", "two", "Add one.")
    assert sentence_parts("It tunes; take another.") == ("It tunes.", "", "Take another.")
    assert sentence_parts("It is damaged.") == ("It is damaged.", "", "")


def test_no_part_is_empty() -> None:
    for message in ("It is damaged.", "It tunes; take another.", "One label; expected two."):
        for make in (unusable, unusable_image):
            assert all(make(OtptError(message)).content()["error"].values())
