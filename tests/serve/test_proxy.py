"""The application in front of replicas, with replicas of this process in the place of Ray's."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import httpx
import pytest
from oracles.pages.servers import image_file, text_of
from prometheus_client.parser import text_string_to_metric_families

from otpt.backbones import load_backbone
from otpt.serve import Limits, Service, create_app

pytest.importorskip("ray.serve")

from ray.exceptions import RayActorError

from otpt_ray.serve import RayService, Replica

pytestmark = pytest.mark.long

TOKEN = "0123456789abcdef"
QUESTION: dict[str, Any] = {"image": text_of(image_file(1)), "labels": ["cat", "dog"], "method": "tpt", "views": 4}


class Handle:
    """Ray's handle, with a replica of this process; the first ``dying`` requests find one that dies."""

    def __init__(self, service: Service, dying: int = 0) -> None:
        self.dying, self.ask = dying, self
        self._replica = Replica.__new__(Replica)
        self._replica._service = service

    async def remote(self, *arguments: Any) -> Any:
        if self.dying:
            self.dying -= 1
            raise RayActorError
        return pickle.loads(pickle.dumps(await self._replica.ask(*pickle.loads(pickle.dumps(arguments)))))


@pytest.fixture(scope="module")
def service() -> Any:
    found = Service({"pocket": load_backbone("pocket", device="cpu")}, limits=Limits(body=1 << 16))
    found.start()
    yield found
    found.close()


def talk(app: Any, *requests: tuple[str, str, dict[str, Any]]) -> list[httpx.Response]:
    async def all_of_them() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://proxy", timeout=300) as client:
            return [await client.request(method, path, **options) for method, path, options in requests]

    return asyncio.run(all_of_them())


def test_answers_are_those_of_the_application(service: Service) -> None:
    form = {"files": {"image": image_file(1)}, "data": {"labels": "cat,dog", "method": "zero-shot"}}
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "/v1/predict", {"json": QUESTION}),
        ("POST", "/v1/predict/form", form),
        ("POST", "/v1/predict", {"json": {**QUESTION, "labels": ["cat"]}}),
        ("POST", "/v1/predict", {"json": {**QUESTION, "image": text_of(b"none")}}),
        ("GET", "/v1/models", {}),
        ("GET", "/readyz", {}),
    ]
    proxy = create_app(RayService(Handle(service), service.limits))
    for here, there in zip(talk(create_app(service), *requests), talk(proxy, *requests), strict=True):
        assert there.status_code == here.status_code
        assert {**there.json(), "seconds": 0} == {**here.json(), "seconds": 0}


def test_counters_of_proxy_and_replicas(service: Service) -> None:
    handle = Handle(service, dying=2)
    proxy = create_app(RayService(handle, service.limits))
    asked = ("POST", "/v1/predict", {"json": QUESTION})
    *_, last = talk(proxy, asked, asked, ("GET", "/metrics", {}))
    assert handle.dying == 0
    found = {family.name: family.samples for family in text_string_to_metric_families(last.text)}
    assert [each.value for each in found["otpt_retries"] if each.name.endswith("_total")] == [2]
    (images,) = (each for each in found["otpt_images"] if each.name.endswith("_total"))
    assert (images.labels, images.value) == ({"model": "pocket", "outcome": "answered"}, 2)
    counted = [each for each in found["otpt_requests"] if each.name.endswith("_total")]
    assert [(each.labels, each.value) for each in counted] == [({"route": "/v1/predict", "status": "200"}, 2)]


def test_replicas_that_do_not_answer(service: Service) -> None:
    class Silent(Handle):
        async def remote(self, *_: Any) -> Any:
            await asyncio.Event().wait()

    for handle, kind in ((Handle(service, dying=99), "no-replica"), (Silent(service), "time-out")):
        (late,) = talk(create_app(RayService(handle, Limits(seconds=0.2))), ("POST", "/v1/predict", {"json": QUESTION}))
        assert (late.status_code, late.json()["error"]["type"]) == (503, kind)
        assert late.headers["retry-after"]
