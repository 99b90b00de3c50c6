"""``otpt.bulk.predict``: the rows of ``otpt predict -o`` from Python."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import otpt
from otpt import OtptError
from otpt.bulk import BulkResult, ClassifierJob, EmbeddingJob, Monitor, RowStore, embed, predict
from otpt.cli import main
from otpt.workers import ProcessPool


def command(classifier: otpt.Classifier, images: Path, out: Path, *words: str) -> int:
    fixed = ["--backbone", classifier.backbone.name, "--classes", "cat", "dog", "--views", "2", "--device", "cpu"]
    return main(["predict", str(images), *fixed, "--methods", "zero-shot", "-o", str(out), *words])


@pytest.mark.parametrize("name", ["p.csv", "p.jsonl", "p.parquet"])
def test_the_command_continues_a_call_and_gives_its_bytes(
    classifier: otpt.Classifier, images: Path, name: str, tmp_path: Path
) -> None:
    result = predict(classifier, images, tmp_path / "python" / name)
    assert result == BulkResult(str(tmp_path / "python" / name), images=5, failed=0, rows=5)
    assert command(classifier, images, tmp_path / "shell" / name) == 0
    whole = (tmp_path / "shell" / name).read_bytes()
    assert (tmp_path / "python" / name).read_bytes() == whole
    assert command(classifier, images, tmp_path / "python" / name) == 0
    assert (tmp_path / "python" / name).read_bytes() == whole


def test_sources_methods_and_top(classifier: otpt.Classifier, images: Path, tmp_path: Path) -> None:
    (images / "bad.png").write_bytes(b"no image")
    methods = ["zero-shot", "tpt"]
    paths = sorted(images.iterdir())
    expected = list(classifier.stream(paths, methods))
    opened = {"folder": images, "paths": paths, "lazy": iter(paths), "source": otpt.data.open_source(str(images))}
    for name, source in opened.items():
        result = predict(classifier, source, tmp_path / f"{name}.parquet", methods=methods, top=2)
        assert (result.images, result.failed, result.rows) == (6, 1, 11)
        frame = pd.read_parquet(tmp_path / f"{name}.parquet")
        assert frame["image"].tolist() == [str(path) for path in paths for _ in range(1 if path.stem == "bad" else 2)]
        confidences = [each.confidence for answer in expected if isinstance(answer, dict) for each in answer.values()]
        np.testing.assert_array_equal(frame["confidence"].dropna(), confidences)
        assert {"label_1", "probability_2"} <= set(frame.columns)
    arrays = [np.asarray(Image.open(path)) for path in paths[:2]]
    assert predict(classifier, arrays, tmp_path / "arrays.csv").images == 2
    assert pd.read_csv(tmp_path / "arrays.csv")["image"].tolist() == ["image 1", "image 2"]


def test_features(classifier: otpt.Classifier, images: Path, tmp_path: Path) -> None:
    model = classifier.backbone.name
    assert main(["embed", str(images), "--backbone", model, "--device", "cpu", "-o", str(tmp_path / "f.parquet")]) == 0
    assert predict(classifier, tmp_path / "f.parquet", tmp_path / "p.csv").images == 5
    table = pq.read_table(tmp_path / "f.parquet")
    features = table.column("feature").to_pylist()
    features[1] = [0.0] * len(features[1])
    features[2] = [float("nan")] * len(features[2])
    place = table.schema.get_field_index("feature")
    column = pa.array(features, table.schema.field(place).type)
    pq.write_table(table.set_column(place, table.schema.field(place), column), tmp_path / "zero.parquet")
    assert predict(classifier, tmp_path / "zero.parquet", tmp_path / "z.csv").failed == 2
    with pytest.raises(otpt.OtptError, match="tpt"):
        predict(classifier, tmp_path / "f.parquet", tmp_path / "q.csv", methods=["tpt"])
    with pytest.raises(otpt.OtptError, match="pool"):
        predict(classifier, tmp_path / "f.parquet", tmp_path / "q.csv", workers=2, pool="inline")


def test_mistakes(classifier: otpt.Classifier, images: Path, tmp_path: Path) -> None:
    with pytest.raises(otpt.OtptError, match=r"p\.txt"):
        predict(classifier, images, tmp_path / "p.txt")
    with pytest.raises(otpt.OtptError, match="workers is 0"):
        predict(classifier, images, tmp_path / "p.csv", workers=0)
    with pytest.raises(otpt.OtptError, match="methods"):
        predict(ClassifierJob.of(classifier), images, tmp_path / "p.csv", methods=["tpt"])
    predict(classifier, images, tmp_path / "p.csv")
    with pytest.raises(otpt.OtptError, match="methods"):
        predict(classifier, images, tmp_path / "p.csv", methods=["tpt"])
    assert not list(tmp_path.glob("*.txt*"))


def test_changed_images_are_reported_and_keep_their_rows(
    classifier: otpt.Classifier, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "p.csv"
    predict(classifier, images, out)
    before = out.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict(classifier, images, out)
    Image.new("RGB", (80, 60), "red").save(images / "1.png")
    os.utime(images / "3.png", ns=(0, 0))
    Image.new("RGB", (80, 60), "red").save(images / "9.png")
    with pytest.warns(UserWarning, match=r"2 of the 5 images in .*p\.csv.*1\.png.*overwrite=True"):
        predict(classifier, images, out)
    assert out.read_bytes().startswith(before)
    capsys.readouterr()
    assert command(classifier, images, out) == 0
    assert "note: 2 of the 6 images" in capsys.readouterr().err
    assert command(classifier, images, out, "--overwrite") == 0
    assert "changed" not in capsys.readouterr().err
    assert not out.read_bytes().startswith(before)


def test_a_stream_is_not_continued_or_split(classifier: otpt.Classifier, images: Path, tmp_path: Path) -> None:
    """Its state is lost with the process, so that other rows would follow."""
    paths = sorted(images.iterdir())
    out = tmp_path / "p.csv"
    with pytest.raises(OtptError, match="tda"):
        predict(classifier, paths, out, methods=["tda"], workers=2)
    predict(classifier, paths[:3], out, methods=["tda"])
    rows = out.read_bytes()
    predict(classifier, paths[:3], out, methods=["tda"])
    with pytest.raises(OtptError, match="tda"):
        predict(classifier, paths, out, methods=["tda"])
    assert out.read_bytes() == rows
    assert predict(classifier, paths, out, methods=["tda"], overwrite=True).images == len(paths)


def test_a_monitor_sees_the_answers(classifier: otpt.Classifier, images: Path, tmp_path: Path) -> None:
    class Names(Monitor):
        def answered(self, image: str, answer: otpt.bulk.Answer) -> None:
            names.append(Path(image).name)

    names: list[str] = []
    predict(classifier, images, tmp_path / "p.csv", progress=Names(show=False))
    assert names == [f"{i}.png" for i in range(5)]


@pytest.mark.slow
def test_two_processes_give_the_bytes_of_one(classifier: otpt.Classifier, images: Path, tmp_path: Path) -> None:
    paths = [*sorted(images.iterdir()), np.asarray(Image.open(images / "0.png"))]
    predict(classifier, paths, tmp_path / "one.csv", methods=["zero-shot", "tpt"])
    predict(classifier, paths, tmp_path / "two.csv", methods=["zero-shot", "tpt"], workers=2)
    assert (tmp_path / "two.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()


@pytest.mark.slow
def test_two_processes_embed_and_classify_features(classifier: otpt.Classifier, images: Path, tmp_path: Path) -> None:
    model = classifier.backbone.name
    words = ["--backbone", model, "--device", "cpu"]
    assert main(["embed", str(images), *words, "-o", str(tmp_path / "one.parquet")]) == 0
    with ProcessPool(2) as pool:
        job = EmbeddingJob(classifier.backbone.to, otpt.ViewRecipe(n_views=1), device="cpu")
        result = embed(job, images, tmp_path / "two.parquet", pool=pool)
        assert (result.images, result.failed) == (5, 0)
        stored = [pd.read_parquet(tmp_path / f"{name}.parquet") for name in ("one", "two")]
        np.testing.assert_array_equal(*(np.stack(frame["feature"]) for frame in stored))
        predict(classifier, tmp_path / "two.parquet", tmp_path / "two.csv", pool=pool)
    predict(classifier, tmp_path / "one.parquet", tmp_path / "one.csv")
    assert (tmp_path / "two.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()


OTHER = """
import sys
from otpt.bulk import RowStore
from otpt.errors import OtptError
try:
    RowStore(sys.argv[1], {})
except OtptError as error:
    sys.exit(str(error))
"""


@pytest.mark.slow
def test_of_two_processes_one_writes(tmp_path: Path) -> None:
    words = [sys.executable, "-c", OTHER, str(tmp_path / "p.csv")]
    with RowStore(tmp_path / "p.csv", {}) as store:
        store.write([{"image": "a"}])
        other = subprocess.run(words, capture_output=True, text=True, check=False)
        assert other.returncode == 1
        assert other.stderr.startswith("Another process writes")
        assert "p.csv" in other.stderr
    assert subprocess.run(words, check=False).returncode == 0
    assert pd.read_csv(tmp_path / "p.csv")["image"].tolist() == ["a"]
