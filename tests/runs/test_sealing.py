"""The configuration of a run on disk: a changed digit is found; runs without a checksum are still read."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from random import Random

import pytest
from oracles.runs.runs_bench import config, files, fill

from otpt.errors import OtptError
from otpt.runs import Run
from otpt.runs.run import CONFIG


def test_no_changed_bit_of_the_configuration_becomes_another_number(tmp_path: Path) -> None:
    """Flipped bits of ``"bins": 20`` were read as other bins, and other calibration errors, by ``otpt metrics``."""
    fill(tmp_path / "run", config())
    path = tmp_path / "run" / CONFIG
    data = path.read_bytes()
    random = Random(0)
    for _ in range(300):
        at, bit = random.randrange(len(data)), 1 << random.randrange(8)
        path.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
        with pytest.raises(OtptError):
            Run(tmp_path / "run")
    path.write_bytes(data.replace(b'"bins": 20', b'"bins": 60'))
    with pytest.raises(OtptError, match=r"config\.json' is damaged: its checksum is wrong; take it from a backup"):
        Run(tmp_path / "run")


def test_a_run_without_a_checksum_is_read_and_gets_one(tmp_path: Path) -> None:
    run = fill(tmp_path / "run", config())
    path = tmp_path / "run" / CONFIG
    stored = json.loads(path.read_bytes())
    del stored["checksum"]
    path.write_text(json.dumps(stored), encoding="utf-8")
    assert Run(tmp_path / "run").config == run.config
    fill(tmp_path / "run", config(images=20))
    assert "checksum" in json.loads(path.read_bytes())


def test_two_that_begin_at_once_without_hard_links_both_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one's configuration replaced the first one's, and with it the methods that it had asked for."""

    def no_links(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    both = [config(["tpt"]), config(["o-tpt"])]
    for attempt in range(5):
        folder = tmp_path / str(attempt)
        ready = threading.Barrier(2)

        def begin(own: dict[str, object], folder: Path = folder, ready: threading.Barrier = ready) -> None:
            ready.wait()
            Run.create(folder, own)

        threads = [threading.Thread(target=begin, args=(own,)) for own in both]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(Run(folder).config["methods"]) == {"tpt", "o-tpt"}


def test_a_folder_with_nothing_but_locks_may_become_a_run(tmp_path: Path) -> None:
    """What one leaves that was killed before it had written the configuration."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/locks").touch()
    fill(tmp_path / "run", config())
    fill(tmp_path / "other", config())
    assert files(tmp_path / "run") == files(tmp_path / "other")
