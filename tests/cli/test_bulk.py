"""Bulk prediction: features in place of images, several processes, and an S3 server for input and output."""

from __future__ import annotations

import errno
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pandas as pd
import pytest
import torch

import otpt as package
from otpt.bulk import store

from .conftest import Run


@pytest.fixture
def words(model: str) -> tuple[str, ...]:
    return ("--classes", "cat", "dog", "--backbone", model, "--methods", "zero-shot")


def test_features_are_classified_like_their_images(
    otpt: Run, images: Path, words: tuple[str, ...], model: str, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    assert otpt("embed", images, bad, "--backbone", model, "-o", "f.parquet")[0] == 2
    assert otpt("predict", "f.parquet", *words, "-o", "features.parquet")[0] == 2
    assert otpt("predict", images, bad, *words, "-o", "images.parquet")[0] == 2
    found, expected = pd.read_parquet("features.parquet"), pd.read_parquet("images.parquet")
    pd.testing.assert_frame_equal(found.drop(columns="error"), expected.drop(columns="error"), rtol=1e-5)
    stored = pd.read_parquet("f.parquet")
    classifier = package.load(model)
    embedded = classifier.embed(sorted(images.rglob("*.png")))
    np.testing.assert_array_equal(np.stack(stored["feature"][:8]), embedded.numpy())
    torch.testing.assert_close(classifier.embed(images / "cat" / "0.png"), embedded[0], rtol=1e-5, atol=1e-6)
    assert otpt("embed", images, "--backbone", model, "-o", "h", "--views", "4", "--dtype", "float16")[0] == 0
    means = np.stack(pd.read_parquet("h")["feature"])
    assert means.dtype == np.float16
    views = classifier.encode_views(images / "cat" / "0.png")[:4].mean(dim=0)
    np.testing.assert_allclose(means[0], views / views.norm(), atol=1e-3)


def test_features_that_do_not_fit(otpt: Run, images: Path, words: tuple[str, ...], model: str) -> None:
    assert otpt("embed", images, "--backbone", model, "-o", "f.parquet")[0] == 0
    code, _, err = otpt("predict", "f.parquet", *words[:-1], "tpt")
    assert code == 2
    assert "tpt" in err
    code, _, err = otpt("predict", "f.parquet", "--classes", "cat", "dog", "--backbone", "pocket")
    assert code == 2
    assert "pocket" in err
    code, _, err = otpt("predict", "f.parquet", images, *words)
    assert code == 2
    assert str(images) in err
    code, _, err = otpt("embed", images, "--backbone", model, "-o", "f.csv")
    assert code == 2
    assert "f.csv" in err


def test_a_damaged_shard_keeps_what_is_finished(
    otpt: Run, images: Path, words: tuple[str, ...], tmp_path: Path
) -> None:
    with tarfile.open("x.tar", "w") as archive:
        archive.add(images, "x")
    whole = Path("x.tar").read_bytes()
    Path("x.tar").write_bytes(whole[: len(whole.rstrip(b"\0")) - 600])
    code, _, err = otpt("predict", "x.tar", *words, "-o", "p.csv")
    assert code == 2
    assert "x.tar" in err
    assert len(pd.read_csv("p.csv")) == 7
    Path("x.tar").write_bytes(whole)
    assert otpt("predict", "x.tar", *words, "-o", "p.csv")[0] == 0
    assert pd.read_csv("p.csv")["image"].is_unique
    assert len(pd.read_csv("p.csv")) == 8


@pytest.mark.parametrize("out", ["p.csv", "p.parquet"])
def test_a_full_disk_and_another_job_keep_what_is_finished(
    otpt: Run, images: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    def sentence(*more: str) -> str:
        code, _, err = otpt("predict", images, *words, "-o", out, *more)
        assert code == 2
        (line,) = [line for line in err.splitlines() if not line.startswith("otpt: note: ")]
        return line

    monkeypatch.setattr(store, "FLUSH_SECONDS", 0)
    written, real = [], os.fsync

    def fsync(file: int) -> None:
        written.append(file)
        if len(written) > 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file)

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", fsync)
        assert "No space left" in sentence()
    done = json.loads(Path(f"{out}.job.json").read_text())["done"]
    assert done > 0
    assert "seed" in sentence("--seed", "3")
    code, _, err = otpt("predict", images, *words, "-o", out)
    assert code == 0
    assert f"{done} image" in err
    found = pd.read_csv(out) if out == "p.csv" else pd.read_parquet(out)
    assert found["image"].is_unique
    assert len(found) == 8


@pytest.mark.slow
def test_two_processes_give_the_rows_of_one(otpt: Run, images: Path, words: tuple[str, ...]) -> None:
    assert otpt("predict", images, *words, "-o", "one.parquet")[0] == 0
    assert otpt("predict", images, *words, "-o", "two.parquet", "--workers", "2")[0] == 0
    pd.testing.assert_frame_equal(pd.read_parquet("two.parquet"), pd.read_parquet("one.parquet"))
    code, _, err = otpt("predict", "-", *words, "--workers", "2")
    assert code == 2
    assert "Standard input" in err


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, images: Path) -> Iterator[Any]:
    """The images, and a shard of them, in a bucket of a local server."""
    moto = pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()
    store = s3fs.S3FileSystem(use_listings_cache=False)
    store.mkdir("photos")
    store.put(f"{images}/", "photos/all/", recursive=True)
    with store.open("photos/x.tar", "wb") as file, tarfile.open(fileobj=file, mode="w|") as archive:
        archive.add(images, "x")
    yield store
    s3fs.S3FileSystem.clear_instance_cache()
    urlopen(f"http://{host}:{port}/moto-api/reset", data=b"").close()  # else the next server has the same buckets
    server.stop()


@pytest.mark.slow
def test_a_bucket_for_input_and_output(
    otpt: Run, bucket: Any, images: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert otpt("predict", images, *words, "-o", "local.parquet")[0] == 0
    expected = pd.read_parquet("local.parquet")
    monkeypatch.setattr(store, "REMOTE_SECONDS", 0)  # a part for each image
    outputs = {"all": "one.parquet", "all/*/*.png": "parts", "x.tar": "three.parquet"}
    for source, out in outputs.items():
        path = f"s3://photos/{out}"
        assert otpt("predict", f"s3://photos/{source}", *words, "-o", path)[0] == 0
        frames = [pd.read_parquet(bucket.open(each)) for each in bucket.glob(f"{path}/part*") or [path]]
        assert list(pd.concat(frames)["confidence"]) == list(expected["confidence"])
        assert not bucket.exists(f"{path}.parts")
    code, _, err = otpt("predict", "s3://photos/all", *words, "-o", "s3://photos/one.parquet")
    assert (code, "8 images" in err) == (0, True)
    code, _, err = otpt("predict", "s3://photos/nowhere/", *words[:3], "--backbone", "local-dir:no-model")
    assert code == 2
    assert "s3://photos/nowhere" in err
    code, _, err = otpt("predict", "s3://photos/all", *words[:-1], "tpt", "-o", "s3://photos/one.parquet")
    assert code == 2
    assert "methods" in err
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    type(bucket).clear_instance_cache()
    code, _, err = otpt("predict", "s3://photos/all", *words[:3], "--backbone", "local-dir:no-model")
    assert code == 2
    assert "credentials" in err


@pytest.mark.long
def test_a_bucket_on_ray(otpt: Run, bucket: Any, images: Path, words: tuple[str, ...]) -> None:
    assert otpt("predict", images, *words, "-o", "local.parquet")[0] == 0
    ray = ("--engine", "ray", "--ray-actors", "1", "2")
    assert otpt("predict", "s3://photos/all", *words, "-o", "s3://photos/ray.parquet", *ray)[0] == 0
    found, expected = pd.read_parquet(bucket.open("photos/ray.parquet")), pd.read_parquet("local.parquet")
    assert list(found["confidence"]) == list(expected["confidence"])


def test_a_changed_function_is_another_job(otpt: Run, images: Path, model: str) -> None:
    text = "import otpt\n\n@otpt.aggregation\ndef my_mean(probabilities):\n    return probabilities.mean(dim=0)\n"
    Path("mine.py").write_text(text)
    words = ("--classes", "cat", "dog", "--backbone", model, "--views", "4", "--plugin", "mine.py")
    words += ("--methods", "zero-shot+my-mean", "-o", "p.csv")
    assert otpt("predict", images, *words)[0] == 0
    assert otpt("predict", images, *words)[0] == 0
    Path("mine.py").write_text(text.replace("mean(dim=0)", "softmax(dim=1).mean(dim=0)"))
    code, _, err = otpt("predict", images, *words)
    assert code == 2
    assert "my" in err
