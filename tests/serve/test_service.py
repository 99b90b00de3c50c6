"""The service within this process: its queue, its cache, its guard, its end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from oracles.pages.servers import PATIENCE, image_file, text_of

import otpt
import otpt.methods.multi_label
from otpt.errors import OtptError
from otpt.serve import Limits, Service, create_app
from otpt.serve.engine import Unit
from otpt.serve.images import ImageFile
from otpt.serve.schemas import PIXEL, PredictRequest

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
    while not asyncio.run(service.ready()):
        time.sleep(0.02)
    yield service
    service.close()


def waiting(service: Service, images: int, client: str = "") -> list[Unit]:
    """Images that are accepted."""
    request = PredictRequest(image=PIXEL, labels=["cat", "dog"], method="zero-shot")
    (query,) = service.catalogue.queries(request, 1, service.limits)
    predictor = service.texts.prepare_now(query)
    files = [ImageFile.read(image_file(i), service.decoders) for i in range(images)]
    units = [Unit(query, file, client) for file in files]
    service.engine.submit(units, predictor)
    return units


def test_a_full_queue_answers_429(classifier: otpt.Classifier) -> None:
    service = make(classifier, limits={"queue": 3, "seconds": 20})
    with service.admission.admit("another", 3, service.limits):
        (full,) = send(create_app(service), {"json": GOOD})
    assert full.status_code == 429
    assert int(full.headers["retry-after"]) >= 1
    assert full.json()["error"]["type"] == "busy"
    service.start()
    (served,) = send(create_app(service), {"json": GOOD})
    assert served.status_code == 200
    service.close()


def test_images_that_would_wait_too_long_are_refused(started: Service) -> None:
    started.admission.seconds_per_image = 1.0
    with started.admission.admit("another", 8, started.limits):
        assert send(create_app(started), {"json": GOOD})[0].status_code == 200
    started.admission.seconds_per_image = started.limits.seconds
    with started.admission.admit("another", 9, started.limits):
        (late,) = send(create_app(started), {"json": GOOD})
    assert (late.status_code, late.json()["error"]["type"]) == (429, "busy")


def test_one_client_holds_its_share_of_the_queue(started: Service) -> None:
    app, limits = create_app(started), started.limits
    with started.admission.admit("127.0.0.1", limits.queue // 2, started.limits):
        own, others = send(app, {"json": GOOD})[0], started.admission.images
        with started.admission.admit("another", limits.queue // 2, started.limits):
            pass
    assert (own.status_code, own.json()["error"]["type"]) == (429, "busy")
    assert others == limits.queue // 2


def test_clients_take_turns(classifier: otpt.Classifier) -> None:
    service = make(classifier)
    first, second = waiting(service, 3, "a"), waiting(service, 2, "b")
    order = [task.key.client for task in service.engine.tasks("pocket")]
    assert order == ["a", "b", "a", "b", "a"]
    for unit in (*first, *second):
        unit.settle(OtptError("never computed"))
    service.close()


def test_readiness_tells_the_truth(classifier: otpt.Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(service := make(classifier, limits={"seconds": 0.2}))
    ready = {"method": "GET", "url": "/readyz"}
    assert send(app, ready)[0].status_code == 503  # not started
    service._warm = True
    assert send(app, ready)[0].status_code == 200
    (unit,) = waiting(service, 1)  # nothing computes it
    time.sleep(0.25)
    assert send(app, ready)[0].status_code == 503
    unit.settle(OtptError("gone"))
    service.close()

    monkeypatch.setattr("otpt.serve.texts.Predictor", lambda *_: 1 / 0)
    broken = make(classifier)
    broken.start()
    broken.texts.few.submit(int).result(PATIENCE)  # after the warm-up
    assert not asyncio.run(broken.ready())
    broken.close()


def test_texts_are_not_prepared_for_longer_than_the_request(started: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that takes too long is given up between two templates; others are answered meanwhile."""
    limits = started.limits
    started.limits = Limits(seconds=1.0, texts=1_000_000)
    labels, templates = [f"class {i}" for i in range(400)], [f"a {i} of a {{}}." for i in range(100)]
    slow, quick = send(
        create_app(started),
        {"json": {**GOOD, "labels": labels, "templates": templates}},
        {"json": {**GOOD, "labels": ["another", "list"]}},
    )
    assert (slow.status_code, slow.json()["error"]["type"]) == (503, "time-out")
    assert quick.status_code == 200
    begun = time.perf_counter()
    started.texts.many.submit(int).result(PATIENCE)  # its thread is free
    assert time.perf_counter() - begun < 20
    started.limits = limits


def test_work_of_clients_that_have_gone_is_dropped(classifier: otpt.Classifier) -> None:
    service = make(classifier)
    app = create_app(service)

    async def ask() -> None:
        body = json.dumps(GOOD).encode()
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            while not service.engine.waiting:
                await asyncio.sleep(0.01)
            return {"type": "http.disconnect"}

        async def note(message: Any) -> None:
            raise AssertionError(message)

        headers = [(b"host", b"testserver"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/v1/predict", "raw_path": b"/v1/predict"}
        more = {"query_string": b"", "http_version": "1.1", "scheme": "http", "headers": headers}
        await asyncio.wait_for(app({**scope, **more}, receive, note), PATIENCE)

    asyncio.run(ask())  # nothing computes, but the request ends
    assert service.admission.images == 0
    assert list(service.engine.tasks("pocket")) == []
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
    assert service.admission.images == 0


@pytest.mark.parametrize("host", ["[", "[::1", "[nonsense]", "a b", "", "x]y"])
def test_a_host_that_is_none(started: Service, host: str) -> None:
    asked = {"json": GOOD, "headers": {"Host": host}}
    assert send(create_app(started, names=["localhost"]), asked)[0].status_code == 400
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
    units = waiting(service, 5)
    service.engine.start()
    service.close()
    assert all(unit.future.result(0).outputs for unit in units)
    assert service.engine.oldest() == 0
    (late,) = send(create_app(service), {"json": GOOD})
    assert late.status_code == 503
    assert late.json()["error"]["type"] == "closing"
    assert send(create_app(service), {"method": "GET", "url": "/readyz"})[0].status_code == 503


def test_an_unexpected_failure_is_json_and_the_next_request_is_answered(
    started: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(started)
    with monkeypatch.context() as broken:
        broken.setattr("otpt.serve.texts.Predictor", lambda *_: 1 / 0)
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


def test_lists_of_a_request_do_not_wait_for_each_other(classifier: otpt.Classifier) -> None:
    """Each list is larger than the budget: the next one is prepared when the engine has released it."""
    service = make(classifier, text_cache=1, limits={"seconds": 60.0})
    service.start()
    lists = [[f"{word} {i}" for word in ("cat", "dog")] for i in range(4)]
    asked = {"images": [GOOD["image"]] * 4, "labels": lists, "method": "tpt"}
    (answer,) = send(create_app(service), {"json": asked})
    assert answer.status_code == 200, answer.text
    service.close()


def test_images_that_a_method_opens_again_count_as_pixels(
    classifier: otpt.Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images above 4 megapixels are not kept; several labels are predicted from the image itself."""
    side, opened, most = 2100, 0, 0
    grid_views = otpt.methods.multi_label.grid_views

    def slow(*arguments: Any) -> Any:
        nonlocal opened, most
        opened += 1
        most = max(most, opened)
        time.sleep(0.1)
        opened -= 1
        return grid_views(*arguments)

    monkeypatch.setattr("otpt.methods.multi_label.grid_views", slow)
    service = make(classifier, limits={"pixels": side * side}, threads=2)
    service.start()
    images = [text_of(image_file(i, size=(side, side), form="JPEG")) for i in range(3)]
    (answer,) = send(create_app(service), {"json": {"images": images, "labels": ["cat", "dog"], "multi_label": True}})
    service.close()
    assert answer.status_code == 200, answer.text
    assert most == 1


def test_limits_that_make_no_sense() -> None:
    for given in ({"queue": 0}, {"seconds": -1.0}, {"labels": 1}, {"body": 10, "memory": 5}):
        with pytest.raises(OtptError, match=r"limit|queue|seconds|labels"):
            Limits(**given)  # type: ignore[arg-type]
