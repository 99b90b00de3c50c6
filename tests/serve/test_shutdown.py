"""SIGTERM: what was accepted is answered, then the process ends with code 0."""

from __future__ import annotations

import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from oracles.pages.servers import PATIENCE, Server, image_file, serving, text_of

pytestmark = pytest.mark.slow

IMAGES, CLIENTS = 3, 6


def _accepted(server: Server) -> float:
    """Images that wait or were answered."""
    with server.client() as client:
        text = client.get("/metrics").text
    found = re.findall(r"^otpt_(?:queue_images|images_total\S*) (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


def test_sigterm_answers_what_was_accepted() -> None:
    with serving("--method", "tpt", "--views", "16") as server:

        def ask(number: int) -> httpx.Response:
            images = [text_of(image_file(IMAGES * number + i)) for i in range(IMAGES)]
            with server.client() as client:
                return client.post("/v1/predict", json={"images": images, "labels": ["cat", "dog", "owl"]})

        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = [pool.submit(ask, number) for number in range(CLIENTS)]
            end = time.monotonic() + PATIENCE
            while _accepted(server) < IMAGES * CLIENTS and time.monotonic() < end:
                time.sleep(0.01)
            server.process.send_signal(signal.SIGTERM)
            found = [each.result(PATIENCE) for each in answers]
        assert [each.status_code for each in found] == [200] * CLIENTS, [each.text[:300] for each in found]
        assert all(len(each.json()["results"]) == IMAGES for each in found)
        assert server.process.wait(PATIENCE) == 0
