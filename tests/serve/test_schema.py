"""Fuzzing of every route from its own description: no 5xx, and every error is JSON."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from oracles.pages.servers import PATIENCE, Server

pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore")  # of the generators, about formats that they do not know
@pytest.mark.parametrize("examples", [2, pytest.param(30, marks=pytest.mark.long)])
def test_no_request_that_the_description_allows_or_forbids_fails_the_service(examples: int, server: Server) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    seen = []
    for found in schema.get_all_operations():
        operation = found.ok()
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            if operation.method.upper() == "GET" and mode is schemathesis.GenerationMode.NEGATIVE:
                continue  # nothing to get wrong

            @given(case=operation.as_strategy(generation_mode=mode))
            @settings(
                max_examples=examples,
                derandomize=True,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            def no_server_error(case: Any) -> None:
                answer = case.call(timeout=PATIENCE)
                assert answer.status_code < 500, answer.text
                if answer.status_code >= 400:
                    assert {"type", "message"} <= set(answer.json()["error"])
                seen.append((case.path, answer.status_code))

            no_server_error()
    assert {path for path, _ in seen} >= {
        "/v1/predict",
        "/v1/predict/form",
        "/v1/compare",
        "/models/{model}",
        "/",
        "/v1/models",
        "/metrics",
    }
    assert any(status == 200 for _, status in seen)
