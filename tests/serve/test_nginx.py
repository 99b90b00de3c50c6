"""``deploy/nginx.conf`` with a real nginx in front of a real service."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from oracles.pages.servers import PATIENCE, Server, image_file

NGINX, OPENSSL = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/bin"), shutil.which("openssl")
CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nginx.conf"

pytestmark = [pytest.mark.long, pytest.mark.skipif(not (NGINX and OPENSSL), reason="there is no nginx here")]


@pytest.fixture
def proxy(server: Server, tmp_path: Path) -> Iterator[httpx.Client]:
    """A client of nginx, which asks the service."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    files = ["-keyout", str(key), "-out", str(certificate)]
    make = [str(OPENSSL), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*make, *files], check=True, capture_output=True)
    text = CONFIGURATION.read_text()
    for given, own in {
        "127.0.0.1:8000": urlsplit(server.url).netloc,
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "/etc/ssl/otpt.crt": str(certificate),
        "/etc/ssl/otpt.key": str(key),
    }.items():
        assert given in text
        text = text.replace(given, own)
    logs = f"pid {tmp_path}/pid; error_log {tmp_path}/errors; events {{}}"
    (tmp_path / "main.conf").write_text(f"{logs} http {{ access_log off; {text} }}")
    process = subprocess.Popen([str(NGINX), "-c", str(tmp_path / "main.conf"), "-g", "daemon off;"])
    try:
        retries = httpx.HTTPTransport(verify=False, retries=20)
        with httpx.Client(base_url=f"https://127.0.0.1:{port}", transport=retries, timeout=PATIENCE) as client:
            yield client
    finally:
        process.terminate()
        process.wait(PATIENCE)


def test_requests_pass_and_floods_do_not(proxy: httpx.Client) -> None:
    asked: Any = {"files": {"image": image_file(1)}, "data": {"labels": "cat,dog", "method": "zero-shot"}}
    assert proxy.post("/v1/predict/form", **asked).status_code == 200
    own = str(proxy.base_url).rstrip("/")
    assert proxy.post("/v1/predict/form", **asked, headers={"Origin": own}).status_code == 200
    assert proxy.post("/v1/predict/form", **asked, headers={"Origin": "https://example.org"}).status_code == 403
    assert proxy.post("/v1/predict", content=bytes(17 << 20)).status_code == 413
    assert proxy.get("/metrics").status_code == 403
    with ThreadPoolExecutor(15) as pool:  # 20 requests a second, 40 at once
        found = Counter(pool.map(lambda _: proxy.get("/healthz").status_code, range(300)))
    assert set(found) == {200, 429}
