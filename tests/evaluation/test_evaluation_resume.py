"""Runs that are killed, disturbed, shared, damaged or out of room: the same bytes in the end, or one clear sentence."""

from __future__ import annotations

import errno
import json
import os
import queue
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from evaluation_bench import backbone, dataset, files, settings
from oracles.models import tiny_backbone

from otpt import OtptError
from otpt.data import Dataset
from otpt.evaluation import Evaluator, Run, evaluate, score_run
from otpt.evaluation import engines as engines_module
from otpt.evaluation.claims import Claims
from otpt.evaluation.files import process_space
from otpt.evaluation.parts import CorruptPartError, decode_part

SMALL = {"methods": ["zero-shot", "o-tpt"], "part_size": 2}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    evaluate(dataset(5), backbone(), settings(**SMALL), out=folder)
    return folder


def start(folder: Path, **changes: object) -> None:
    evaluate(dataset(5), backbone(), settings(**{**SMALL, **changes}), out=folder)


@pytest.mark.equality
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that can be forked")
def test_killed_anywhere_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    script = Path(__file__).with_name("killing.py")
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["killed_step"] + found["killed_single"] + found["killed_moments"] >= 20
    # what was finished when a process was killed was not done again
    assert found["grown"] == sorted(found["grown"])
    assert found["killed_step"] <= found["parts"] + 3
    assert (found["survivor"], found["both"]) == (0, [0, 0])
    # features, gradients and parts that were there: of three pictures some, with and without the gradient
    assert found["half_cached"] == [[1, 0, 0], [2, 1, 0], [3, 2, 0]]
    for way in ("step", "single", "moments", "cached", "pair", "both"):
        assert found[f"same_{way}"], way


def test_a_finished_run_holds_nothing_of_killed_helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that shared the work was killed while it wrote, after this run had begun."""
    with subprocess.Popen([sys.executable, "-c", ""]) as helper:
        pass
    left = tmp_path / "run" / f".part.parquet.{process_space()}.{helper.pid}.0.tmp"
    judge = Evaluator._judge

    def judging(self: Evaluator, *arguments: object, **options: object) -> object:
        left.touch()
        return judge(self, *arguments, **options)

    monkeypatch.setattr(Evaluator, "_judge", judging)
    start(tmp_path / "run")
    assert not left.exists()
    assert not list((tmp_path / "run").rglob("*.tmp"))


def test_workers_end_with_the_process_that_began_them(tmp_path: Path) -> None:
    script = Path(__file__).with_name("orphans.py")
    with subprocess.Popen([sys.executable, str(script), str(tmp_path)]) as first:
        while len(numbers := [path.name for path in tmp_path.iterdir() if path.name.isdigit()]) < 2:
            assert first.poll() is None
            time.sleep(0.05)
        first.kill()
    workers = [psutil.Process(int(number)) for number in numbers if psutil.pid_exists(int(number))]
    _, alive = psutil.wait_procs(workers, timeout=60)
    for worker in alive:
        worker.kill()
    assert not alive, "a worker went on alone"


def test_a_finished_run_is_not_computed_again(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}
    monkeypatch.setattr(Evaluator, "_judge", None)
    start(finished)
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()} == before


@pytest.mark.equality
def test_only_what_is_missing_is_done(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(tmp_path / "run")
    (tmp_path / "run/tiny/seed-0/part-00001.parquet").unlink()
    (tmp_path / "run/metrics.json").unlink()
    judged: list[int] = []
    real = Evaluator._judge
    monkeypatch.setattr(
        Evaluator,
        "_judge",
        lambda self, item, views: judged.append(len(views)) or real(self, item, views),
    )
    start(tmp_path / "run")
    assert sum(judged) == 2
    assert files(tmp_path / "run") == files(finished)


@pytest.mark.equality
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "text", "other part"])
def test_a_damaged_part_is_set_aside_and_done_again(finished: Path, tmp_path: Path, damage: str) -> None:
    start(tmp_path / "run")
    part = tmp_path / "run/tiny/seed-0/part-00001.parquet"
    data = part.read_bytes()
    middle = len(data) // 2
    broken = {
        "flip": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "cut": data[:middle],
        "empty": b"",
        "text": b"not Parquet",
        "other part": part.with_name("part-00000.parquet").read_bytes(),
    }[damage]
    part.write_bytes(broken)
    with pytest.warns(UserWarning, match=r"part-00001.parquet' was damaged .* set aside as '_part-00001"):
        start(tmp_path / "run")
    aside = part.with_name("_part-00001.parquet.corrupt")
    assert aside.read_bytes() == broken
    aside.unlink()
    assert files(tmp_path / "run") == files(finished)


def test_damage_is_told_by_whoever_reads_and_a_folder_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(tmp_path / "run")
    part = tmp_path / "run/tiny/seed-0/part-00001.parquet"
    part.write_bytes(b"not Parquet")

    def refuse(*paths: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(OtptError, match=r"is damaged .* cannot be set aside: Permission denied; make its folder"):
            score_run(Run(tmp_path / "run"))
    with pytest.warns(UserWarning, match="was damaged"):
        score_run(Run(tmp_path / "run"))
    assert not part.exists()


def test_no_single_wrong_byte_goes_unnoticed(finished: Path) -> None:
    run = Run(finished)
    data = run.path(run.items[0]).read_bytes()
    owner = run._owner(run.items[0])
    assert decode_part(data, owner=owner, rows=4).table.num_rows == 4
    for at in range(0, len(data), 7):
        with pytest.raises(CorruptPartError):
            decode_part(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :], owner=owner, rows=4)
    with pytest.raises(CorruptPartError, match="another run"):
        decode_part(data, owner="somebody else", rows=4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"part_size": 3}, "part_size is 2 there and 3 now"),
        ({"methods": ["zero-shot", "tpt"]}, r"methods\[1\].name is 'o-tpt' there and 'tpt' now"),
        ({"methods": ["zero-shot"]}, r"methods is \['zero-shot', 'o-tpt'\] there and \['zero-shot'\] now"),
        ({"seeds": [0, 1]}, r"seeds is \[0\] there and \[0, 1\] now"),
        ({"prompts": ["an example of"]}, "is 'a photo of a' there and 'an example of' now"),
        ({"official_precision": True}, "official_precision is False there and True now"),
    ],
)
def test_a_run_of_another_configuration_is_never_mixed(finished: Path, changes: dict[str, object], words: str) -> None:
    before = files(finished)
    with pytest.raises(OtptError, match=f"another configuration: .*{words}.*Choose another folder"):
        start(finished, **changes)
    assert files(finished) == before


def test_other_data_and_other_weights_are_another_configuration(finished: Path) -> None:
    with pytest.raises(OtptError, match="fingerprint"):
        evaluate(dataset(6), backbone(), settings(**SMALL), out=finished)
    with pytest.raises(OtptError, match=r"backbone\.fingerprint is .* there and .* now"):
        evaluate(dataset(5), tiny_backbone("vit", seed=1), settings(**SMALL), out=finished)


@pytest.mark.parametrize(
    ("names", "prompt", "words"),
    [
        (("pet", "Pet"), "a photo of a", "Class name 'Pet' is given twice"),
        (("cat", "dog"), "an unphotographable", "is not a single token"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_made(
    tmp_path: Path, names: tuple[str, str], prompt: str, words: str
) -> None:
    data = Dataset("two", names, ["a", "b"], [0, 1], [b"", b""].__getitem__)
    with pytest.raises(OtptError, match=words):
        evaluate(data, backbone(), settings(prompts=[prompt]), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_folders_that_cannot_be_a_run(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep me")
    with pytest.raises(OtptError, match="holds other files and no run"):
        start(tmp_path / "mine")
    with pytest.raises(OtptError, match="it is a file; expected a folder"):
        start(tmp_path / "mine/notes.txt")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.json").write_text("{")
    with pytest.raises(OtptError, match="is damaged: it is not JSON"):
        start(tmp_path / "broken")
    with pytest.raises(OtptError, match="There is no run configuration"):
        Run(tmp_path / "nowhere")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_is_one_sentence_and_leaves_nothing_half_written(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real = getattr(os, call)
    calls = []

    def full(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OtptError, match=r"Cannot write .*: No space left on device; make room .* same command again"):
        start(tmp_path / "run")
    left = files(tmp_path / "run")
    assert not [name for name in left if ".tmp" in name]
    assert all(left[name] == files(finished)[name] for name in left)
    start(tmp_path / "run")
    assert files(tmp_path / "run") == files(finished)


def test_temporary_files_of_killed_writers_are_removed(finished: Path, tmp_path: Path) -> None:
    start(tmp_path / "run")
    folder = tmp_path / "run/tiny/seed-0"
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    dead = folder / f".part-00000.parquet.{process_space()}.{done.stdout.strip()}.0.tmp"
    alive = folder / f".part-00000.parquet.{process_space()}.{os.getpid()}.999.tmp"
    # numbers of processes in another container say nothing here; but nobody writes for hours
    elsewhere = folder / f".part-00000.parquet.0123456789abcdef.{done.stdout.strip()}.0.tmp"
    long_ago = folder / f".part-00001.parquet.0123456789abcdef.{done.stdout.strip()}.0.tmp"
    for path in (dead, alive, elsewhere, long_ago):
        path.write_bytes(b"half")
    os.utime(elsewhere, (time.time() - 600, time.time() - 600))
    os.utime(long_ago, (time.time() - 7200, time.time() - 7200))
    start(tmp_path / "run")
    assert [path.exists() for path in (dead, alive, elsewhere, long_ago)] == [False, True, True, False]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that can be forked")
def test_claims_of_a_dead_process_are_free(tmp_path: Path) -> None:
    path = tmp_path / "claims.lock"
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking beside the test runner's threads: the copy only takes a lock
        other = os.fork()
    if other == 0:
        taken = Claims(path).take(3)
        os.write(writing, b"y" if taken else b"n")
        time.sleep(60)
        os._exit(0)
    assert os.read(reading, 1) == b"y"
    with Claims(path) as claims:
        assert claims.take(2)
        assert not claims.take(3)
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
        assert claims.take(3)
        claims.release(3)
    os.close(reading)
    os.close(writing)


def test_a_worker_that_cannot_go_on_is_told(tmp_path: Path) -> None:
    news: queue.Queue[object] = queue.Queue()
    news.put("a note")
    news.put(OtptError("what is wrong"))
    dead = SimpleNamespace(is_alive=lambda: False)
    with pytest.warns(UserWarning, match="a note"), pytest.raises(OtptError, match="what is wrong"):
        engines_module._listen([dead], news, lambda _: None)
    engines_module._listen([dead], news, lambda _: None)
    with pytest.raises(OtptError, match="number of workers is 0"):
        engines_module.ProcessEngine(0)


def test_scores_of_an_unfinished_run_are_of_what_is_there(finished: Path, tmp_path: Path) -> None:
    start(tmp_path / "run")
    (tmp_path / "run/tiny/seed-0/part-00002.parquet").unlink()
    scores = score_run(Run(tmp_path / "run"))
    assert [score.metrics.pictures for score in scores if score.metrics] == [4, 4]
