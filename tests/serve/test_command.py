"""``otpt serve`` on the command line: what cannot be used is told in a sentence, before a model is read."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from otpt.cli import main
from otpt.serve.config import read_token

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("arguments", "offending"),
    [
        (["--port", "99999"], "65535"),
        (["--queue", "0"], "queue"),
        (["--token-file", "absent"], "absent"),
        (["--classes", "@absent"], "absent"),
        (["--calibration", "absent"], "absent"),
        (["--backbone", "a=pocket", "a=pocket"], "'a=pocket'"),
        (["--backbone", "absent-model"], "absent-model"),
        (["--method", "tda"], "tda"),
    ],
)
def test_bad_input(
    arguments: list[str],
    offending: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    port = [] if "--port" in arguments else ["--port", "0"]
    assert main(["serve", *port, *arguments]) == 2
    assert offending in capsys.readouterr().err


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "--port", str(taken.getsockname()[1])]) == 2
    assert "--port" in capsys.readouterr().err


def test_tokens_in_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "token"
    for text in ("", "short", "two words that are long", "ümläut-is-no-ascii"):
        path.write_text(text, encoding="utf-8")
        assert main(["serve", "--port", "0", "--token-file", str(path)]) == 2
        assert "16" in capsys.readouterr().err
    path.write_text("0123456789abcdef\n", encoding="utf-8")
    assert read_token(path) == "0123456789abcdef"
