"""Evaluations that are killed, disturbed, shared, damaged or out of room: the same bytes in the end, or one clear
sentence."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from multiprocessing import Pipe
from pathlib import Path

import psutil
import pytest
from oracles.models.tiny import tiny_backbone
from oracles.runs.evaluation_bench import backbone, computed, dataset, files, settings, shard

from otpt import OtptError
from otpt.data import Dataset
from otpt.evaluation import ProcessEngine, evaluate
from otpt.evaluation import engines as engines_module
from otpt.evaluation.progress import ImageDone
from otpt.files import process_space
from otpt.runs import Run, score_run

pytestmark = pytest.mark.slow

SMALL = {"methods": ["zero-shot", "o-tpt"], "shard_size": 2}


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
    command = [sys.executable, str(script), str(tmp_path), "interrupted"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["killed_step"] + found["killed_single"] + found["killed_moments"] >= 20
    # what was finished when a process was killed was not repeated
    assert found["counts"] == sorted(found["counts"])
    assert found["killed_step"] <= found["shards"] + 3
    assert (found["survivor"], found["both"]) == (0, [0, 0])
    # features, gradients and shards that were there, of three images: the features of a chunk come before its gradients
    assert found["half_cached"] == [[1, 0, 0], [3, 0, 0], [3, 2, 0]]
    for way in ("step", "single", "moments", "cached", "pair", "both"):
        assert found[f"same_{way}"], way


def test_a_finished_run_holds_nothing_of_killed_helpers(tmp_path: Path) -> None:
    """One that shared the work was killed while it wrote, after this run had begun."""
    with subprocess.Popen([sys.executable, "-c", ""]) as helper:
        pass
    left = tmp_path / "run" / f".shard.parquet.{process_space()}.{helper.pid}.0.tmp"
    with computed(left.touch):
        start(tmp_path / "run")
    assert not left.exists()
    assert not list((tmp_path / "run").rglob("*.tmp"))


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
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


def test_a_finished_run_is_not_computed_again(finished: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}
    with computed() as images:
        start(finished)
    assert images == []
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()} == before


@pytest.mark.equality
def test_only_what_is_missing_is_computed(finished: Path, tmp_path: Path) -> None:
    start(tmp_path / "run")
    shard(tmp_path / "run", "o-tpt", 2, 4).unlink()
    (tmp_path / "run/metrics.json").unlink()
    untouched = shard(tmp_path / "run", "zero-shot", 2, 4).stat().st_mtime_ns
    with computed() as images:
        start(tmp_path / "run")
    assert sum(images) == 2
    assert shard(tmp_path / "run", "zero-shot", 2, 4).stat().st_mtime_ns == untouched
    assert files(tmp_path / "run") == files(finished)


@pytest.mark.equality
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "text", "other shard", "other method"])
def test_a_damaged_shard_is_quarantined_and_recomputed(finished: Path, tmp_path: Path, damage: str) -> None:
    start(tmp_path / "run")
    path = shard(tmp_path / "run", "o-tpt", 2, 4)
    data = path.read_bytes()
    middle = len(data) // 2
    broken = {
        "flip": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "cut": data[:middle],
        "empty": b"",
        "text": b"not Parquet",
        "other shard": shard(tmp_path / "run", "o-tpt", 0, 2).read_bytes(),
        "other method": shard(tmp_path / "run", "zero-shot", 2, 4).read_bytes(),
    }[damage]
    path.write_bytes(broken)
    with pytest.warns(UserWarning, match=r"2-00000004.parquet' was damaged .* quarantined as '_00000002-00000004"):
        start(tmp_path / "run")
    aside = path.with_name("_00000002-00000004.parquet.corrupt")
    assert aside.read_bytes() == broken
    aside.unlink()
    assert files(tmp_path / "run") == files(finished)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shard_size": 3}, "numbers.shard_size is 2 there and 3 now"),
        ({"official_precision": True}, "numbers.official_precision is False there and True now"),
        ({"features": "float16"}, "numbers.features is 'full' there and 'float16' now"),
        ({"save_probabilities": True}, "numbers.save_probabilities is False there and True now"),
        ({"augmix": False}, "'o-tpt' on 'tiny': views is .*augmix=on.* there and .*augmix=off.* now"),
        ({"family": "shift"}, "data set 'tiny': family is 'fine-grained' there and 'shift' now"),
    ],
)
def test_settings_that_would_change_rows_are_refused(finished: Path, changes: dict[str, object], words: str) -> None:
    before = files(finished)
    with pytest.raises(OtptError, match=f"another configuration: .*{words}.*Choose another folder"):
        start(finished, **changes)
    assert files(finished) == before


def test_other_data_and_other_weights_are_refused(finished: Path) -> None:
    with pytest.raises(OtptError, match=r"data set 'tiny': fingerprint is .* there and .* now"):
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


def test_a_worker_that_cannot_go_on_is_told() -> None:
    receiver, sender = Pipe(duplex=False)
    sender.send("a note")
    sender.send(OtptError("what is wrong"))
    sender.close()
    with pytest.warns(UserWarning, match="a note"), pytest.raises(OtptError, match="what is wrong"):
        engines_module._listen([receiver], lambda _: None)
    engines_module._listen([receiver], lambda _: None)  # which has ended


def test_a_worker_that_is_killed_in_the_middle_of_a_word_holds_nobody_up() -> None:
    """With one queue for all, it took the queue's lock with it, and the others waited for ever."""
    (receiver, sender), (other_receiver, other_sender) = Pipe(duplex=False), Pipe(duplex=False)
    os.write(sender.fileno(), (100).to_bytes(4, "big") + b"the beginning")  # of a message of 100 bytes
    sender.close()
    other_sender.send("a note")
    other_sender.send(ImageDone("tiny", 0, {}))
    other_sender.close()
    heard: list[object] = []
    with pytest.warns(UserWarning, match="a note"):
        engines_module._listen([receiver, other_receiver], heard.append)
    assert heard == [ImageDone("tiny", 0, {})]


def test_the_number_of_workers_is_checked() -> None:
    with pytest.raises(OtptError, match="number of workers is 0"):
        ProcessEngine(0)


def test_scores_of_an_unfinished_run_are_of_what_is_there(tmp_path: Path) -> None:
    start(tmp_path / "run")
    shard(tmp_path / "run", "o-tpt", 4, 5).unlink()
    scores = score_run(Run(tmp_path / "run"))
    assert [score.metrics.images for score in scores if score.metrics] == [5, 4]
