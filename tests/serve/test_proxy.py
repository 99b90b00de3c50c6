"""The proxy in front of replicas, with replicas of this process: same answers, same refusals, all counters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest
from oracles.pages.servers import image_file, text_of
from prometheus_client.parser import text_string_to_metric_families

from otpt.backbones import load_backbone
from otpt.serve import Limits, Service, create_app
from otpt.serve.errors import RequestError
from otpt.serve.proxy import Received, Sent, answer_sent, create_proxy

pytestmark = pytest.mark.long

TOKEN = "0123456789abcdef"
QUESTION: dict[str, Any] = {"image": text_of(image_file(1)), "labels": ["cat", "dog"], "method": "tpt", "views": 4}


class InProcess:
    """Two replicas; the first ``dying`` requests find one that dies."""

    def __init__(self, service: Service, dying: int = 0) -> None:
        self._app, self._service, self.dying = create_app(service, guarded=False), service, dying

    async def ask(self, sent: Sent, again: Callable[[], None]) -> Received:
        while self.dying:
            self.dying -= 1
            again()
        return await answer_sent(self._app, sent)

    async def metrics(self) -> Mapping[str, bytes]:
        return {"one": self._service.metrics.text(), "two": self._service.metrics.text()}


@pytest.fixture(scope="module")
def service() -> Any:
    found = Service({"pocket": load_backbone("pocket", device="cpu")}, limits=Limits(body=1 << 16))
    found.start()
    yield found
    found.close()


def talk(app: Any, *requests: tuple[str, str, dict[str, Any]]) -> list[httpx.Response]:
    async def all_of_them() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://proxy", timeout=300) as client:
            return [await client.request(method, path, **options) for method, path, options in requests]

    return asyncio.run(all_of_them())


def test_answers_are_those_of_the_application(service: Service) -> None:
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "/v1/predict", {"json": QUESTION}),
        (
            "POST",
            "/v1/predict/form",
            {"files": {"image": image_file(1)}, "data": {"labels": "cat,dog", "method": "zero-shot"}},
        ),
        ("POST", "/v1/predict", {"json": {**QUESTION, "labels": ["cat"]}}),
        ("POST", "/v1/predict", {"content": b"x" * (1 << 17), "headers": {"Content-Type": "application/json"}}),
        ("GET", "/v1/models", {}),
        ("GET", "/", {}),
        ("GET", "/page/main.js", {}),
        ("GET", "/absent?x=%20y", {}),
        ("DELETE", "/v1/predict", {}),
        ("GET", "/readyz", {}),
        ("GET", "/healthz", {}),
    ]
    proxy = create_proxy(InProcess(service), service.limits)
    for here, there in zip(talk(create_app(service), *requests), talk(proxy, *requests), strict=True):
        assert there.status_code == here.status_code
        assert _headers(there) == _headers(here)
        if here.headers["content-type"] == "application/json":
            assert {**there.json(), "seconds": 0} == {**here.json(), "seconds": 0}
        else:
            assert there.content == here.content


def _headers(answer: httpx.Response) -> list[tuple[str, str]]:
    """Without the length, which the seconds in an answer change."""
    return sorted((name, value) for name, value in answer.headers.multi_items() if name != "content-length")


def test_the_proxy_checks_the_token(service: Service) -> None:
    proxy = create_proxy(InProcess(service), service.limits, token=TOKEN)
    right = {"Authorization": f"Bearer {TOKEN}"}
    asked = [("GET", "/v1/models", {}), ("GET", "/v1/models", {"headers": right}), ("GET", "/", {})]
    assert [each.status_code for each in talk(proxy, *asked)] == [401, 200, 200]


def test_counters_of_proxy_and_replicas(service: Service) -> None:
    replicas = InProcess(service, dying=2)
    proxy = create_proxy(replicas, service.limits)
    asked = ("POST", "/v1/predict", {"json": QUESTION})
    *_, last = talk(proxy, asked, asked, ("GET", "/metrics", {}))
    assert replicas.dying == 0
    found = {family.name: family.samples for family in text_string_to_metric_families(last.text)}
    assert [each.value for each in found["otpt_retries"] if each.name.endswith("_total")] == [2]
    assert [each.value for each in found["otpt_replicas"]] == [2]
    assert {each.labels["replica"] for each in found["otpt_images"]} == {"one", "two"}
    # the replicas here have answered without a proxy in another test, too
    counted = [each for each in found["otpt_requests"] if each.name.endswith("_total") and "replica" not in each.labels]
    assert [(each.labels, each.value) for each in counted] == [({"route": "/v1/predict", "status": "200"}, 2)]


def test_a_failure_in_a_replica_is_json(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otpt.serve.engine.Predictor", lambda *_: 1 / 0)
    proxy = create_proxy(InProcess(service), service.limits)
    (failed,) = talk(proxy, ("POST", "/v1/predict", {"json": {**QUESTION, "labels": ["new", "list"]}}))
    assert (failed.status_code, failed.json()["error"]["type"]) == (500, "internal")


def test_replicas_that_do_not_answer() -> None:
    class Silent:
        async def ask(self, sent: Sent, again: Callable[[], None]) -> Received:
            if sent.scope["path"] == "/none":
                raise RequestError(503, "no-replica", "No replica answered.", headers={"Retry-After": "10"})
            await asyncio.Event().wait()
            raise AssertionError

        async def metrics(self) -> Mapping[str, bytes]:
            return {}

    none, silent = talk(create_proxy(Silent(), Limits(seconds=0.2)), ("GET", "/none", {}), ("GET", "/silent", {}))
    assert (none.status_code, none.json()["error"]["type"], none.headers["retry-after"]) == (503, "no-replica", "10")
    assert (silent.status_code, silent.json()["error"]["type"]) == (503, "time-out")
