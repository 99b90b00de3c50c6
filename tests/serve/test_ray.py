"""``otpt serve --engine ray`` with two replicas, of which one is killed under requests: all are answered, and alike."""

from __future__ import annotations

import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from oracles.pages.servers import PATIENCE, Server, image_file, serving, text_of

import otpt

pytestmark = pytest.mark.long

IMAGES, CLIENTS, VIEWS = 24, 6, 8
LABELS = ["cat", "dog", "red panda"]


def replicas(server: Server) -> list[psutil.Process]:
    """Processes of Ray that hold the models."""
    return [
        each
        for each in psutil.Process(server.process.pid).children(recursive=True)
        if "ServeReplica" in " ".join([each.name(), *each.cmdline()[:1]])
    ]


def test_a_killed_replica_loses_no_request() -> None:
    pytest.importorskip("ray.serve")
    options = [
        "--engine",
        "ray",
        "--ray-actors",
        "2",
        "2",
        "--method",
        "tpt",
        "--views",
        str(VIEWS),
        "--seconds",
        "300",
    ]
    try:
        running = serving(*options)
        server = running.__enter__()
    except AssertionError as error:
        if "Cannot start Ray" in str(error):
            pytest.skip("Ray does not start here in the time that it gives itself")
        raise
    try:
        found = _ask_and_kill(server)
    finally:
        running.__exit__(None, None, None)
    classifier = otpt.load("pocket", "tpt", device="cpu", views=VIEWS).set_classes(LABELS)
    expected = classifier.predict([image_file(seed) for seed in range(IMAGES)])
    for answer, prediction in zip(found, expected, strict=True):
        (result,) = answer["results"]
        assert [(each["label"], each["score"]) for each in result["top"]] == prediction.top(len(LABELS))


def _ask_and_kill(server: Server) -> list[dict[str, Any]]:
    """Answers to all images; one replica is killed when the first answer has come and others are under way."""
    before = replicas(server)
    assert len(before) == 2
    once = threading.Lock()

    def ask(seed: int) -> dict[str, Any]:
        with server.client() as client:
            answer = client.post("/v1/predict", json={"image": text_of(image_file(seed)), "labels": LABELS})
        if once.acquire(blocking=False):
            os.kill(before[0].pid, signal.SIGKILL)
        assert answer.status_code == 200, answer.text
        return answer.json()

    with ThreadPoolExecutor(CLIENTS) as pool:
        found = list(pool.map(ask, range(IMAGES), timeout=PATIENCE))
    assert not before[0].is_running() or before[0].status() == psutil.STATUS_ZOMBIE
    with server.client() as client:
        text = client.get("/metrics").text
    assert re.search(r"^otpt_requests_total\{.*status=\"200\"\} 24\.0$", text, re.MULTILINE), text
    return found
