"""Disks that fail: no room, an input/output error, files that may not grow, damaged files of a run."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
from pathlib import Path

import pytest
from faults.conftest import CASES, Evaluation
from faults.processes import at_write, run

from otpt.cli import main

pytestmark = [pytest.mark.long, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]


@pytest.mark.parametrize("case", range(CASES))
def test_an_error_of_the_disk(case: int, evaluation: Evaluation, tmp_path: Path) -> None:
    """One sentence, or the evaluation goes on without what it could not write (its cache)."""
    code = (errno.ENOSPC, errno.EIO, errno.EDQUOT)[case % 3]

    def fail() -> None:
        raise OSError(code, os.strerror(code))

    def work() -> int:
        at_write(tmp_path, 1 + 3 * case, fail)
        return main(evaluation.command(tmp_path))

    ended = run(work, tmp_path / "printed.txt")
    assert ended.code == 0 or ended.one_sentence, ended.printed
    evaluation.check(tmp_path)


@pytest.mark.parametrize("size", [0, 100, 1000, 5000])
def test_files_may_not_grow(size: int, evaluation: Evaluation, tmp_path: Path) -> None:
    """Also for libraries that write without Python, as on a full disk."""

    def work() -> int:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)  # the limit holds for its output, too
        os.dup2(null, 2)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        return main(evaluation.command(tmp_path))

    ended = run(work, tmp_path / "printed.txt")
    assert ended.code in (0, 2), ended.printed
    evaluation.check(tmp_path)


@pytest.mark.parametrize("case", range(CASES))
def test_damaged_files_of_a_run(case: int, evaluation: Evaluation, tmp_path: Path) -> None:
    """Damaged shards and cache entries are computed again; a damaged configuration is one sentence."""
    chosen = random.Random(case)
    assert main(evaluation.command(tmp_path)) == 0
    places = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix in (".parquet", ".safetensors")]
    places += [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    for path in chosen.sample(sorted(set(places)), 2):
        data = bytearray(path.read_bytes())
        if chosen.random() < 0.5 or not data:
            data = data[: chosen.randrange(max(len(data), 1))]
        else:
            data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
        path.write_bytes(data)
    ended = run(lambda: main(evaluation.command(tmp_path)), tmp_path / "printed.txt")
    assert ended.code in (0, 3) or ended.one_sentence, ended.printed
    evaluation.check(tmp_path)


@pytest.mark.parametrize("case", range(CASES))
def test_damaged_configuration(case: int, evaluation: Evaluation, tmp_path: Path) -> None:
    chosen = random.Random(case)
    assert main(evaluation.command(tmp_path, ["zero-shot"])) == 0
    path = tmp_path / "run" / "config.json"
    data = bytearray(path.read_bytes())
    for _ in range(chosen.randint(1, 3)):
        start = chosen.randrange(len(data))
        data[start : start + chosen.randint(0, 8)] = chosen.choice([b"", b"0", b"null", b'"', b"[", b"..", b"-1"])
    path.write_bytes(data)
    for command in (evaluation.command(tmp_path, ["zero-shot"]), ["table", str(tmp_path / "run")]):
        ended = run(lambda command=command: main(command), tmp_path / "printed.txt")
        assert ended.code in (0, 3) or ended.one_sentence, ended.printed
