"""The service within this process: its queue, its cache, its guard, its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from oracles.pages.servers import PATIENCE, image_file, text_of

import otpt
from otpt.errors import OtptError
from otpt.serve import Limits, Service, create_app
from otpt.serve.http.schemas import Asked
from otpt.serve.jobs import Job

pytestmark = pytest.mark.slow

GOOD = {"image": text_of(image_file(1)), "labels": ["cat", "dog"], "method": "zero-shot"}
TOKEN = "correct-horse-battery"


def send(app: Any, *requests: dict[str, Any]) -> list[httpx.Response]:
    """The requests at the same time, without a socket."""

    async def all_of_them() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://testserver", timeout=PATIENCE) as client:
            given = [{"method": "POST", "url": "/v1/predict", **each} for each in requests]
            return list(await asyncio.gather(*(client.request(**each) for each in given)))

    return asyncio.run(all_of_them())


def make(classifier: otpt.Classifier, **options: Any) -> Service:
    """A service that is not started."""
    limits = {"seconds": PATIENCE, **options.pop("limits", {})}
    return Service({"pocket": classifier.backbone}, views=2, limits=Limits(**limits), **options)


@pytest.fixture
def started(classifier: otpt.Classifier) -> Iterator[Service]:
    service = make(classifier, method="zero-shot")
    service.start()
    yield service
    service.close()


def waiting(service: Service, images: int) -> Job:
    """A job that takes room in the queue."""
    query = service.catalogue.query(Asked(labels=["cat", "dog"]), ["zero-shot"], service.limits)
    job = Job(query, [image_file(i) for i in range(images)], service.limits.pixels)
    service._engine.submit(job)
    return job


def test_a_full_queue_answers_429(classifier: otpt.Classifier) -> None:
    service = make(classifier, limits={"queue": 3})
    job = waiting(service, 3)
    (full,) = send(create_app(service), {"json": GOOD})
    assert full.status_code == 429
    assert int(full.headers["retry-after"]) >= 1
    assert full.json()["error"]["type"] == "busy"
    service._engine.start()
    assert len(job.future.result(PATIENCE)) == 3
    (served,) = send(create_app(service), {"json": GOOD})
    assert served.status_code == 200
    service.close()


def test_bodies_have_a_common_limit_of_memory(classifier: otpt.Classifier) -> None:
    service = make(classifier, limits={"body": 1000, "memory": 1000})
    busy, large = send(create_app(service), {"content": bytes(900), "headers": {"Content-Type": "x"}}, {"json": GOOD})
    assert {busy.status_code, large.status_code} <= {413, 415, 429}


def test_what_takes_too_long_is_given_up(classifier: otpt.Classifier) -> None:
    service = make(classifier, limits={"seconds": 0.05})
    (slow,) = send(create_app(service), {"json": GOOD})  # nobody computes
    assert slow.status_code == 503
    assert slow.json()["error"]["type"] == "time-out"
    assert slow.headers["retry-after"]
    assert service._engine.length == 0


@pytest.mark.parametrize("host", ["[", "[::1", "[nonsense]", "a b", "", "x]y"])
def test_a_host_that_is_none(started: Service, host: str) -> None:
    asked = {"json": GOOD, "headers": {"Host": host}}
    assert send(create_app(started, names=["localhost"]), asked)[0].status_code == 403
    assert send(create_app(started), asked)[0].status_code == 200


def test_a_body_that_does_not_come(classifier: otpt.Classifier) -> None:
    app = create_app(make(classifier, limits={"arrival": 0.05}))
    sent: list[dict[str, Any]] = []

    async def ask() -> None:
        headers = [(b"host", b"testserver"), (b"content-length", b"1000")]
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/predict",
            "raw_path": b"/v1/predict",
            "headers": headers,
        }
        never = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await never.wait()
            return {}

        async def note(message: Any) -> None:
            sent.append(message)

        await app({**scope, "query_string": b"", "http_version": "1.1", "scheme": "http"}, receive, note)

    asyncio.run(ask())
    assert sent[0]["status"] == 408


def test_tokens(started: Service) -> None:
    app = create_app(started, token=TOKEN)
    given = [{}, {"Authorization": "Bearer wrong-token-here"}, {"Authorization": f"Basic {TOKEN}"}]
    right = {"Authorization": f"Bearer {TOKEN}"}
    answers = send(app, *({"json": GOOD, "headers": each} for each in (*given, right)))
    assert [each.status_code for each in answers] == [401, 401, 401, 200]
    assert answers[0].headers["www-authenticate"] == "Bearer"
    opened = [
        {"method": "GET", "url": url} for url in ("/healthz", "/readyz", "/metrics", "/v1/models", "/openapi.json")
    ]
    assert [each.status_code for each in send(app, *opened)][2:] == [401, 401, 401]
    assert send(app, opened[0])[0].status_code == 200


def test_it_answers_what_it_accepted_and_nothing_more(classifier: otpt.Classifier) -> None:
    service = make(classifier, method="zero-shot")
    job = waiting(service, 5)
    service._engine.start()
    service.close()
    assert len(job.future.result(0)) == 5
    (late,) = send(create_app(service), {"json": GOOD})
    assert late.status_code == 503
    assert late.json()["error"]["type"] == "closing"
    assert send(create_app(service), {"method": "GET", "url": "/readyz"})[0].status_code == 503


def test_an_unexpected_failure_is_json_and_the_next_request_is_answered(
    started: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(started)
    with monkeypatch.context() as broken:
        broken.setattr("otpt.serve.engine.Predictor", lambda *_: 1 / 0)
        (failed,) = send(app, {"json": {**GOOD, "labels": ["new", "list"]}})
    assert failed.status_code == 500
    assert failed.json()["error"]["type"] == "internal"
    assert "ZeroDivision" not in failed.text
    assert send(app, {"json": GOOD})[0].status_code == 200


def test_all_addresses_of_a_request_share_its_time(
    classifier: otpt.Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed: list[float] = []

    def slow(*_: Any, seconds: float, **__: Any) -> bytes:
        allowed.append(seconds)
        time.sleep(seconds / 2)
        return image_file(1)

    monkeypatch.setattr("otpt.serve.service.fetch", slow)
    service = make(classifier, hosts=["images.example"], limits={"seconds": 0.4})
    images = ["https://images.example/1.png"] * 6
    (late,) = send(create_app(service), {"json": {"images": images, "labels": ["cat", "dog"]}})  # nobody computes
    assert late.status_code == 503
    assert allowed[0] <= 0.2
    assert sum(allowed) <= 2 * allowed[0]


def test_limits_that_make_no_sense() -> None:
    for given in ({"queue": 0}, {"seconds": -1.0}, {"labels": 1}, {"body": 10, "memory": 5}):
        with pytest.raises(OtptError, match=r"expected|raise it"):
            Limits(**given)  # type: ignore[arg-type]
