"""What only a process shows: imports at the start, signals, a closed pipe."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import Run

OTPT = [sys.executable, "-m", "otpt"]
WITHOUT_TORCH = """
import sys
from otpt.cli import main
calls = {"--version": 0, "--help": 0, "train --help": 0, "evaluate --help-all": 0, "serve --help": 0, "predit": 2}
for words, code in calls.items():
    assert main(words.split()) == code, words
    assert "torch" not in sys.modules, words
"""

LOSES_A_SIGNAL = """
import os, signal, sys, time
import otpt.cli


class Loser:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)  # an exception in a destructor is printed and dropped
        for _ in range(1000):
            pass


def command(words):
    Loser()
    print("still here", flush=True)
    time.sleep(120)
    return 0


otpt.cli.run = command
sys.argv = ["otpt", "evaluate"]
sys.exit(otpt.cli.main())
"""


def test_starts_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_signal_ends_with_one_line_and_keeps_finished_rows(model: str, images: Path, tmp_path: Path) -> None:
    words = ["evaluate", str(images), "--backbone", model, "--methods", "zero-shot", "--no-cache"]
    more = ["--seeds", *map(str, range(200)), "--shard-size", "2", "--out", "run"]
    process = subprocess.Popen([*OTPT, *words, *more], stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "run").rglob("*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert err.splitlines()[-1].startswith("otpt: stopped; ")
    assert "Traceback" not in err
    assert list((tmp_path / "run").rglob("*.parquet"))


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the signal is repeated by a timer of Unix")
def test_a_signal_in_a_destructor_is_not_lost() -> None:
    done = subprocess.run([sys.executable, "-c", LOSES_A_SIGNAL], capture_output=True, text=True, timeout=100)
    assert done.stdout == "still here\n"
    assert done.returncode == 143
    assert done.stderr.splitlines()[-1] == "otpt: stopped"


def test_ctrl_c_ends_with_one_line(
    otpt: Run, run_folder: Path, model: str, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("otpt.evaluation.evaluate", interrupted)
    code, out, err = otpt("evaluate", images, "--backbone", model, "--methods", "zero-shot", "--out", run_folder)
    assert (code, out) == (130, "")
    assert f"16 of 16 images are finished in {str(run_folder)!r}" in err


def test_a_reader_that_goes_away_is_no_error() -> None:
    process = subprocess.Popen([*OTPT, "datasets"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
