"""One grammar of images: what ``predict`` and ``embed`` read, ``evaluate`` and ``calibrate`` read with labels."""

from __future__ import annotations

import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image

import otpt
from otpt.data import load_dataset, open_source
from otpt.errors import OtptError
from otpt.images import NamedImage, open_image

CLASSES = ("cat", "dog")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two images of each of two classes, in class folders."""
    folder = tmp_path_factory.mktemp("grammar") / "photos"
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for i in range(2):
            values = np.random.default_rng(10 * label + i).integers(0, 256, (12, 10, 3), dtype=np.uint8)
            Image.fromarray(values).save(folder / name / f"{i}.png")
    return folder


def paths(photos: Path) -> list[Path]:
    return [photos / name / f"{i}.png" for name in CLASSES for i in range(2)]


def of_lines(photos: Path, folder: Path) -> str:
    (folder / "list.txt").write_text("\n".join(map(str, paths(photos))))
    return f"@{folder}/list.txt"


def of_table(suffix: str, *, contents: bool) -> Callable[[Path, Path], str]:
    def make(photos: Path, folder: Path) -> str:
        files = paths(photos)
        cells: list[Any] = [path.read_bytes() for path in files] if contents else [str(path) for path in files]
        columns = {"image" if contents else "path": cells, "label": [path.parent.name for path in files]}
        columns["id"] = [f"{path.parent.name}/{path.name}" for path in files]
        file = folder / f"table{suffix}"
        if suffix == ".arrow":
            table = pa.table(columns)
            with pa.ipc.new_file(str(file), table.schema) as writer:
                writer.write_table(table)
        elif suffix == ".parquet":
            pd.DataFrame(columns).to_parquet(file)
        else:
            pd.DataFrame(columns).to_csv(file, index=False, sep="\t" if suffix == ".tsv" else ",")
        return str(file)

    return make


def of_shard(name: str, mode: str) -> Callable[[Path, Path], str]:
    def make(photos: Path, folder: Path) -> str:
        with tarfile.open(folder / name, mode) as archive:
            for number, path in enumerate(paths(photos)):
                label = folder / "label.txt"
                label.write_text(path.parent.name)
                archive.add(path, f"{number:04d}.png")
                archive.add(label, f"{number:04d}.txt")
        return str(folder / name)

    return make


def of_memory(photos: Path, folder: Path) -> str:
    """A folder of fsspec's in-memory storage, as a remote one."""
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for path in paths(photos):
        memory.pipe_file(f"/{folder.name}/{path.parent.name}/{path.name}", path.read_bytes())
    return f"memory://{folder.name}"


def of_remote_table(photos: Path, folder: Path) -> str:
    fsspec = pytest.importorskip("fsspec")
    file = Path(of_table(".parquet", contents=True)(photos, folder))
    fsspec.filesystem("memory").pipe_file(f"/{folder.name}/table.parquet", file.read_bytes())
    return f"memory://{folder.name}/table.parquet"


def of_remote_shard(photos: Path, folder: Path) -> str:
    fsspec = pytest.importorskip("fsspec")
    file = Path(of_shard("x.tar", "w")(photos, folder))
    fsspec.filesystem("memory").pipe_file(f"/{folder.name}/x.tar", file.read_bytes())
    return f"memory://{folder.name}/x.tar"


def of_hub(photos: Path, folder: Path) -> str:
    datasets = pytest.importorskip("datasets")
    files = paths(photos)
    columns = {"image": [str(path) for path in files], "label": [CLASSES.index(path.parent.name) for path in files]}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))})
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(str(folder / "hub"))
    return f"hf:{folder}/hub"


KINDS: dict[str, Callable[[Path, Path], str]] = {
    "folder": lambda photos, _: str(photos),
    "pattern of files": lambda photos, _: f"{photos}/*/*.png",
    "pattern of folders": lambda photos, _: f"{photos}/*",
    "list": of_lines,
    "csv of paths": of_table(".csv", contents=False),
    "tsv of paths": of_table(".tsv", contents=False),
    "parquet of paths": of_table(".parquet", contents=False),
    "parquet of bytes": of_table(".parquet", contents=True),
    "arrow of paths": of_table(".arrow", contents=False),
    "arrow of bytes": of_table(".arrow", contents=True),
    "shard": of_shard("x.tar", "w"),
    "compressed shard": of_shard("x.tar.gz", "w:gz"),
    "remote folder": of_memory,
    "remote table": of_remote_table,
    "remote shard": of_remote_shard,
    "Hugging Face": of_hub,
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_every_source_can_have_labels(kind: str, photos: Path, tmp_path: Path) -> None:
    word = KINDS[kind](photos, tmp_path)
    images = []
    for item in open_source(word):
        assert isinstance(item, NamedImage)
        images.append(np.asarray(open_image(item.read())).tobytes())
    dataset = load_dataset(word)
    assert dataset.class_names == CLASSES
    assert len(dataset) == len(images) == 4
    dataset = pickle.loads(pickle.dumps(dataset))  # for other processes
    expected = {np.asarray(Image.open(path)).tobytes(): path.parent.name for path in paths(photos)}
    labelled = {np.asarray(open_image(item.source)).tobytes(): dataset.class_names[item.label] for item in dataset}
    assert labelled == expected
    assert set(images) == set(expected)
    names = {sample.id: dataset.class_names[sample.label] for sample in dataset}
    reordered = load_dataset(word, classes=["dog", "cat"])
    for data in (dataset, reordered):
        assert {sample.id: data.class_names[sample.label] for sample in data} == names


@pytest.mark.parametrize("word", ["emoji/food", "emoji/line"])
def test_a_data_set_is_a_source(word: str) -> None:
    dataset = load_dataset(word)
    source = open_source(word)
    names = [item.id for item in source]
    assert names == [f"{word}/{image_id}" for image_id in dataset.ids]
    item = next(iter(source))
    assert isinstance(item, NamedImage)
    np.testing.assert_array_equal(open_image(item.read()), open_image(dataset.source(0)))


@pytest.mark.parametrize("word", ["emoji/nothing", "no-such-set"])
def test_unknown_names(word: str) -> None:
    for open_it in (open_source, load_dataset):
        with pytest.raises(OtptError, match=word.rpartition("/")[2]):
            open_it(word)


def test_without_labels(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos / "cat")
    (tmp_path / "list.txt").write_text("0.png\n1.png\n")
    pd.DataFrame({"image": [path.read_bytes() for path in paths(photos)]}).to_parquet(tmp_path / "t.parquet")
    frame = pd.DataFrame({"image": [b"x", b"y"], "label": ["cat", None]})
    frame.to_parquet(tmp_path / "u.parquet")
    for word, part in (("*.png", "0.png"), (f"@{tmp_path}/list.txt", "0.png"), (f"{tmp_path}/t.parquet", "label")):
        with pytest.raises(OtptError, match=part):
            load_dataset(word)
    with pytest.raises(OtptError, match="Row 2"):
        load_dataset(str(tmp_path / "u.parquet"))


TABLES = {
    "capitals": ("Path,Label\n{0},cat\n{1},dog\n", None),
    "tabs": ("filepath\tpath\tlabel\n-\t{0}\tcat\n-\t{1}\tdog\n", None),
    "blanks": ("path, label\n {0} , cat\n {1} , dog \n", None),
    "another name": ("file_name,label\n{0},cat\n{1},dog\n", None),
    "chosen column": ("path,foto,label\nnone,{0},cat\nnone,{1},dog\n", "Foto"),
}


@pytest.mark.parametrize("kind", TABLES)
def test_the_same_table_with_and_without_labels(kind: str, photos: Path, tmp_path: Path) -> None:
    text, column = TABLES[kind]
    files = [photos / name / "0.png" for name in CLASSES]
    (tmp_path / "t.csv").write_text(text.format(*files))
    expected = [np.asarray(Image.open(path)).tobytes() for path in files]
    items = list(open_source(str(tmp_path / "t.csv"), column=column))
    assert [np.asarray(open_image(item.read())).tobytes() for item in items] == expected
    dataset = load_dataset(str(tmp_path / "t.csv"), column=column)
    assert [np.asarray(open_image(sample.source)).tobytes() for sample in dataset] == expected
    assert [dataset.class_names[sample.label] for sample in dataset] == list(CLASSES)


def test_backslashes_in_tables(photos: Path) -> None:
    (photos / "t.csv").write_text("path,label\ncat\\0.png,cat\ndog\\0.png,dog\n")
    for item in open_source(str(photos / "t.csv")):
        open_image(item.read())
    assert len(load_dataset(str(photos / "t.csv"))) == 2
    (photos / "t.csv").unlink()


def test_saved_data_sets_and_features_are_named(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "state.json").write_text("{}")
    for open_it in (open_source, load_dataset):
        with pytest.raises(OtptError, match="hf:"):
            open_it(str(tmp_path / "hub"))
    np.savez(tmp_path / "f.npz", features=np.eye(4, dtype=np.float32), labels=np.arange(4))
    with pytest.raises(OtptError, match=r"f\.npz.*evaluate"):
        open_source(str(tmp_path / "f.npz"))


def test_a_folder_of_features_is_a_table(tmp_path: Path) -> None:
    features = np.eye(4, dtype=np.float32)
    (tmp_path / "parts").mkdir()
    for i in range(2):
        rows = [{"id": f"{name}/{i}.png", "feature": features[i], "error": None} for name in CLASSES]
        pd.DataFrame(rows).to_parquet(tmp_path / "parts" / f"part-{i}.parquet")
    source = open_source(str(tmp_path / "parts"))
    assert source.has_features
    assert [item.id for item in source] == ["cat/0.png", "dog/0.png", "cat/1.png", "dog/1.png"]
    dataset = load_dataset(str(tmp_path / "parts"))
    assert (len(dataset), dataset.class_names) == (4, CLASSES)


def test_objects_in_place_of_words(photos: Path, tmp_path: Path) -> None:
    dataset = load_dataset(str(photos))
    clf = otpt.load("pocket", method="zero-shot", device="cpu", classes=CLASSES)
    expected = clf.predict(paths(photos)).labels
    assert clf.predict(dataset).labels == expected
    assert clf.embed(dataset).shape[0] == 4
    otpt.bulk.predict(clf, dataset, tmp_path / "p.csv")
    assert pd.read_csv(tmp_path / "p.csv")["label"].tolist() == expected
    options = {"methods": ["zero-shot"], "device": "cpu"}
    found = otpt.evaluation.evaluate(open_source(str(photos)), "pocket", out=tmp_path / "source", **options)
    named = otpt.evaluation.evaluate(str(photos), "pocket", out=tmp_path / "named", **options)
    assert found.frame["nll"].tolist() == named.frame["nll"].tolist()
