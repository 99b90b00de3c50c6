"""``otpt serve`` as a real process on a port that the system chooses, for tests with real clients."""

from __future__ import annotations

import base64
import io
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
from PIL import Image

PATIENCE = 240.0
"""Seconds that anything may take on a busy machine before a test fails."""


@dataclass(frozen=True)
class Server:
    """A running service."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    def client(self, **options: object) -> httpx.Client:
        """A client of it; the environment's proxies are left aside."""
        return httpx.Client(base_url=self.url, timeout=PATIENCE, trust_env=False, **options)  # type: ignore[arg-type]


@contextmanager
def serving(*arguments: str, before: str = "") -> Iterator[Server]:
    """``otpt serve --port 0 …`` until the end of the block, once it is ready.

    ``before``: Python that each of its processes runs first, apart from those that decode.
    """
    # a slow machine gives no other answers
    patient = [word for name in ("--arrival", "--seconds") if name not in arguments for word in (name, f"{PATIENCE:g}")]
    command = [sys.executable, "-m", "otpt", "serve", "--port", "0", "--device", "cpu", *patient, *arguments]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
        if before:
            lines = before.replace("\n", "\n    ")
            code = f"import sys\nif not any('otpt.decoders' in word for word in sys.orig_argv):\n    {lines}\n"
            (Path(folder) / "sitecustomize.py").write_text(code, encoding="utf-8")
            environment["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
        with log.open("w") as errors:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        try:
            server = Server(_address(process, log), process, log)
            _wait_until_ready(server)
            yield server
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _address(process: subprocess.Popen[str], log: Path) -> str:
    """From the line that the command prints; read by a thread, so that a silent process fails the test."""
    lines: queue.Queue[str] = queue.Queue()
    assert process.stdout is not None
    threading.Thread(target=lambda stream: lines.put(stream.readline()), args=(process.stdout,), daemon=True).start()
    line = lines.get(timeout=PATIENCE)
    assert " at http://" in line, f"{line!r}\n{log.read_text()}"
    return line.rsplit(" ", 1)[1].strip()


def _wait_until_ready(server: Server) -> None:
    end = time.monotonic() + PATIENCE
    with server.client() as client:
        while client.get("/readyz").status_code != 200:
            assert server.process.poll() is None, server.log.read_text()
            assert time.monotonic() < end, server.log.read_text()
            time.sleep(0.1)


def image_file(seed: int, *, size: tuple[int, int] = (48, 40), form: str = "PNG") -> bytes:
    """The file of an image of coarse random colours."""
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 5, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).save(file, form)
    return file.getvalue()


def text_of(data: bytes) -> str:
    """A file in base64."""
    return base64.b64encode(data).decode("ascii")
