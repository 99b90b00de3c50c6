"""A process of the service that hangs, dies or is silent is replaced, and nobody gets anything but an answer or 503."""

from __future__ import annotations

import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import psutil
import pytest
from oracles.pages.servers import PATIENCE, Server, image_file, serving, text_of

pytestmark = pytest.mark.slow

GOOD: dict[str, Any] = {"image": text_of(image_file(1)), "labels": ["cat", "dog"], "method": "zero-shot"}
HOSTILE = """
import os, signal, time
import otpt
import otpt.serve.supervisor
otpt.serve.supervisor.GRACE = 1.0
otpt.serve.supervisor.SILENCE = 8.0

@otpt.adaptation
def never_ends(logits):
    while True:
        time.sleep(0.01)

@otpt.adaptation
def crashes(logits):
    os.kill(os.getpid(), signal.SIGSEGV)

@otpt.adaptation
def stops(logits):
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture(scope="module")
def hostile() -> Any:
    options = ["--method", "zero-shot", "--views", "2", "--threads", "1"]
    with serving(*options, before=HOSTILE.replace("\n\n", "\n")) as server:
        yield server


def worker_of(server: Server) -> psutil.Process:
    """The process of the service that computes: the one with most memory."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    return max(children, key=lambda process: process.memory_info().rss)


def restarts(client: httpx.Client) -> float:
    (found,) = re.findall(r"^otpt_restarts_total (\S+)$", client.get("/metrics").text, re.MULTILINE)
    return float(found)


def answers(server: Server) -> httpx.Response:
    with server.client(headers={"X-Forwarded-For": "192.0.2.7"}) as client:
        return client.post("/v1/predict", json=GOOD)


@pytest.mark.parametrize(
    "method",
    ["crashes", pytest.param("never-ends", marks=pytest.mark.long), pytest.param("stops", marks=pytest.mark.long)],
)
def test_the_process_is_replaced(hostile: Server, method: str) -> None:
    with hostile.client() as client:
        before = restarts(client)
        begun = time.monotonic()
        with ThreadPoolExecutor(2) as pool:
            if method == "never-ends":  # who hangs up does not want an answer: the work should stop
                with suppress(httpx.TimeoutException):
                    client.post("/v1/predict", json={**GOOD, "method": method}, timeout=0.5)
            else:
                attack = pool.submit(client.post, "/v1/predict", json={**GOOD, "method": method})
            seen = []
            while restarts(client) == before or client.get("/readyz").status_code != 200:
                seen.append(client.get("/readyz").status_code)
                assert client.get("/healthz").status_code == 200
                assert time.monotonic() - begun < PATIENCE
                time.sleep(0.1)
            took = time.monotonic() - begun
            neighbour = answers(hostile)
            if method != "never-ends":
                refused = attack.result()
                assert refused.status_code == 503
                assert int(refused.headers["retry-after"]) > 0
        assert 503 in seen, "readyz tells the truth meanwhile"
        assert neighbour.status_code == 200, neighbour.text
    print(f"{method}: ready again after {took:.1f} s")


def test_a_request_meanwhile_waits_for_the_new_process(hostile: Server) -> None:
    worker_of(hostile).kill()
    time.sleep(0.6)
    assert answers(hostile).status_code == 200


def test_the_end_of_a_service_that_hangs() -> None:
    with serving("--method", "zero-shot", "--views", "2", "--threads", "1", before=HOSTILE) as server:
        with server.client() as client, suppress(httpx.TimeoutException):
            client.post("/v1/predict", json={**GOOD, "method": "never-ends"}, timeout=0.5)
        worker = worker_of(server).pid
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        log = server.log.read_text(encoding="utf-8")
    assert "terminate called" not in log
    assert not psutil.pid_exists(worker)


def test_nothing_is_left_of_a_front_that_is_killed() -> None:
    with serving("--method", "zero-shot", "--views", "2", "--threads", "1") as server:
        assert answers(server).status_code == 200
        processes = psutil.Process(server.process.pid).children(recursive=True)
        assert len(processes) >= 2
        os.kill(server.process.pid, signal.SIGKILL)
        _, left = psutil.wait_procs(processes, timeout=30)
        assert [process.cmdline() for process in left if "resource_tracker" not in str(process.cmdline())] == []
