"""Hostile requests by the thousand: memory stays within what is documented, and neighbours are answered."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest
from oracles.pages.hostile import Hostile, requests
from oracles.pages.servers import PATIENCE, Server, image_file, serving, text_of

pytestmark = pytest.mark.slow

MIB = 1 << 20
TEXT_CACHE, MEMORY, MEGAPIXELS, DECODERS = 64, 64, 4, 2
SECONDS = 30.0
SMALL: dict[str, Any] = {"image": text_of(image_file(1)), "labels": ["cat", "dog"], "method": "zero-shot", "views": 1}


def documented(idle: int) -> int:
    """Bytes of docs/service.md: idle size, the two options, what decoders may take, and 2 GiB for a list of labels."""
    of_decoders = (DECODERS + 1) * 256 * MIB + 32 * MEGAPIXELS * 1_000_000
    return idle + (TEXT_CACHE + 3 * MEMORY) * MIB + of_decoders + 2048 * MIB


def memory_of(server: Server) -> int:
    """Bytes of the processes of a service; a page that several share counts once, as for a container."""
    total = 0
    for process in [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]:
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total


def send(client: httpx.Client, hostile: Hostile) -> httpx.Response:
    if hostile.form is not None:
        return client.post(hostile.route, data=hostile.form, files={"image": hostile.file})
    return client.post(hostile.route, content=hostile.content, headers={"Content-Type": "application/json"})


def attack(count: int, seed: int, at_once: int) -> None:
    """Send the requests from several threads, and watch memory and a neighbour."""
    limits = ["--text-cache", str(TEXT_CACHE), "--max-memory", str(MEMORY), "--max-pixels", str(MEGAPIXELS)]
    options = ["--method", "zero-shot", "--views", "2", "--threads", str(DECODERS), "--seconds", str(SECONDS)]
    with serving(*options, *limits) as server, server.client() as client:
        idle = memory_of(server)
        statuses: Counter[int] = Counter()
        wrong: list[str] = []
        waits: list[float] = []
        largest = [idle]
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.2):
                largest[0] = max(largest[0], memory_of(server))

        def neighbour() -> None:
            with server.client(headers={"X-Forwarded-For": "192.0.2.7"}) as other:
                while not done.wait(0.2):
                    begun = time.monotonic()
                    answer = other.post("/v1/predict", json=SMALL)
                    waits.append(time.monotonic() - begun)
                    if answer.status_code != 200:
                        wrong.append(f"neighbour: {answer.status_code} {answer.text[:200]}")

        def one(hostile: Hostile) -> None:
            answer = send(client, hostile)
            statuses[answer.status_code] += 1
            has_ended = answer.status_code == 503 and "retry-after" in answer.headers
            if answer.status_code >= 500 and not has_ended:
                wrong.append(f"{hostile.route} {hostile.content[:300]!r}: {answer.status_code} {answer.text[:200]}")

        watchers = [threading.Thread(target=work) for work in (watch, neighbour)]
        for thread in watchers:
            thread.start()
        begun = time.monotonic()
        try:
            with ThreadPoolExecutor(at_once) as pool:
                list(pool.map(one, requests(seed, count)))
        finally:
            done.set()
            for thread in watchers:
                thread.join()
        took = time.monotonic() - begun
        while (ready := client.get("/readyz").status_code) != 200 and time.monotonic() - begun - took < PATIENCE:
            time.sleep(0.2)  # work that was not in time ends
        restarts = [line for line in client.get("/metrics").text.splitlines() if line.startswith("otpt_restarts_total")]
        log = server.log.read_text(encoding="utf-8")
    waits.sort()
    middle, late = waits[len(waits) // 2], waits[int(0.99 * len(waits))]
    print(
        f"\n{count} requests in {took:.0f} s: {dict(statuses)}; {restarts}; memory {idle / MIB:.0f} MiB, at most "
        f"{largest[0] / MIB:.0f} of {documented(idle) / MIB:.0f}; {len(waits)} neighbours: median {middle:.2f} s, "
        f"99 % {late:.2f} s, longest {waits[-1]:.2f} s"
    )
    assert wrong == []
    assert '"level": "error"' not in log, log[-3000:]
    assert sum(statuses.values()) == count
    assert ready == 200
    assert largest[0] < documented(idle)
    assert len(statuses) > 2


def test_forty_hostile_requests() -> None:
    attack(40, seed=0, at_once=3)


@pytest.mark.long
def test_ten_thousand_hostile_requests() -> None:
    attack(10_000, seed=1, at_once=4)
