"""``otpt serve`` on the command line: what cannot be used is told in a sentence, before a model is read."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from otpt.cli import doctor, main
from otpt.serve.settings import read_token

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--port", "99999"], "expected 0 to 65535"),
        (["--queue", "0"], "queue is 0; expected a number above 0"),
        (["--max-labels", "1"], "expected 2 or more"),
        (["--token-file", "absent"], "Cannot read the token file 'absent'"),
        (["--classes", "@absent"], "Cannot read the class list 'absent'"),
        (["--calibration", "."], "holds no calibration files"),
        (["--backbone", "a=pocket", "a=pocket"], "'a' twice"),
        (["--backbone", "=pocket"], "expected a backbone, or NAME=BACKBONE"),
        (["--backbone", "absent-model"], "absent-model"),
        (["--seed", "-1"], "The seed is -1; expected a whole number from 0"),
        (["--method", "tda"], "depends on the images before"),
    ],
)
def test_what_cannot_be_used(
    arguments: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["serve", "--port", "0", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "--port", str(taken.getsockname()[1])]) == 2
    assert "choose another --host or --port" in capsys.readouterr().err


def test_tokens_in_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "token"
    for text in ("", "short", "two words that are long", "ümläut-is-no-ascii"):
        path.write_text(text, encoding="utf-8")
        assert main(["serve", "--port", "0", "--token-file", str(path)]) == 2
        assert "at least 16 letters and digits" in capsys.readouterr().err
    path.write_text("0123456789abcdef\n", encoding="utf-8")
    assert read_token(path) == "0123456789abcdef"


def test_a_missing_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "uvicorn" else "1")
    assert main(["serve"]) == 2
    assert capsys.readouterr().err == "otpt: otpt serve needs uvicorn; install it with: pip install 'otpt[serve]'\n"
