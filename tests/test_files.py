"""Files that are whole or not there, when the file system or the clock does not play along."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from otpt.errors import OtptError
from otpt.files import is_there, remove_leftovers, write_atomically


def test_a_temporary_file_that_somebody_took_for_abandoned_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine's clock is hours ahead: it deletes the file before it is renamed."""
    real, taken = os.replace, []

    def replace(source: Path, target: Path) -> None:
        if not taken:
            taken.append(source)
            os.unlink(source)
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    assert write_atomically(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"
    assert taken
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_it_does_not_try_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(source: Path, target: Path) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OtptError, match=r"Cannot write .*: No such file or directory"):
        write_atomically(tmp_path / "file", b"content")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_does_not_answer_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    assert not is_there(tmp_path / "file")
    monkeypatch.setattr(Path, "stat", broken)
    with pytest.raises(OtptError, match=r"Cannot read .*: Input/output error"):
        is_there(tmp_path / "file")
    monkeypatch.setattr(Path, "rglob", broken)
    remove_leftovers(tmp_path)  # another time
