"""The page docs/serve.md: its commands run, its tables hold."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from oracles.pages.docs_pages import DOCS, blocks, code, rows, section
from oracles.pages.servers import PATIENCE, Server, image_file

from otpt.serve.http.openapi import BAD

pytestmark = pytest.mark.slow

PAGE = DOCS / "serve.md"


@pytest.mark.skipif(shutil.which("curl") is None or shutil.which("bash") is None, reason="needs curl and bash")
def test_every_curl_command_is_answered(server: Server, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(image_file(1, form="JPEG"))
    lines = [line for block in blocks(PAGE, "sh") for line in block.source.splitlines() if line.startswith("curl ")]
    assert len(lines) > 10
    for line in lines:
        assert "http://127.0.0.1:8000/" in line
        asked = line.replace("http://127.0.0.1:8000", server.url)
        own = asked.replace("curl ", "curl --silent --show-error --fail-with-body --noproxy '*' ", 1)
        done = subprocess.run(["bash", "-c", own], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        assert done.stdout


def test_statuses() -> None:
    listed = {int(number) for row in rows(section(PAGE, "Errors")) for number in re.findall(r"\b\d{3}\b", row[0])}
    assert listed == {*map(int, BAD), 404, 405}


def test_metrics(server: Server) -> None:
    with server.client() as client:
        text = client.get("/metrics").text
    described = set(re.findall(r"^# TYPE (otpt_\w+?)(?:_total|_created)? \w+$", text, re.MULTILINE))
    listed = [name for row in rows(section(PAGE, "Metrics")) for name in code(row[0])]
    named = {name.partition("{")[0].removesuffix("_total") for name in listed}
    assert named == described
