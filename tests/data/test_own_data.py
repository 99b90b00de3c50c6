"""User-supplied data: folders, tables, shards, the hub."""

from __future__ import annotations

import csv
import pickle
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torchvision
from oracles.data.data_files import JPEG, jpeg, put_images

from otpt.data import as_dataset, check_dataset, load_dataset
from otpt.data.classes import parse_class_list
from otpt.data.own import expand_braces
from otpt.errors import OtptError
from otpt.images import open_image

from .test_bad_input import write_shard


def test_image_folder_as_torchvision_reads_it(tmp_path: Path) -> None:
    put_images(tmp_path, ["dog/b.jpg", "dog/a.JPG", "cat/deep/c.png", "Zebra/1.jpeg", "Zebra/10.jpeg", "cat/d.webp"])
    (tmp_path / "dog/notes.txt").write_text("no image")
    data = load_dataset(str(tmp_path))
    oracle = torchvision.datasets.ImageFolder(tmp_path)
    assert {(str(s.source), s.label) for s in data} == set(oracle.samples)
    assert list(data.class_names) == oracle.classes == ["Zebra", "cat", "dog"]
    wanted = ["Zebra/1.jpeg", "Zebra/10.jpeg", "cat/d.webp", "cat/deep/c.png", "dog/a.JPG", "dog/b.jpg"]
    assert list(data.ids) == wanted
    assert (data.name, data.family, data.augmix, data.prompt) == (tmp_path.name, "fine-grained", True, "a photo of a")


def test_image_folder_with_a_class_list(tmp_path: Path) -> None:
    put_images(tmp_path / "pets", ["a/1.jpg", "b/2.jpg"])
    (tmp_path / "pets/classes.txt").write_text(
        "# our own pets\n# prompt: a blurred photo of a\n\nb\tred panda\na\nnone\n"
    )
    data = load_dataset(str(tmp_path / "pets"))
    assert data.class_names == ("red panda", "a", "none")
    assert [(s.id, s.label) for s in data] == [("b/2.jpg", 0), ("a/1.jpg", 1)]
    assert data.prompt == "a blurred photo of a"
    listed = tmp_path / "other.txt"
    listed.write_text("# family: shift\n# augmix: off\na\nb\n")
    data = load_dataset(str(tmp_path / "pets"), classes=listed)
    assert (data.class_names, data.family, data.augmix) == (("a", "b"), "shift", False)


def test_a_relative_path_may_lie_under_the_root_and_a_name_needs_a_dot(tmp_path: Path, monkeypatch) -> None:
    put_images(tmp_path / "mine", ["a/1.jpg", "b/2.jpg"])
    assert len(load_dataset("mine", root=tmp_path)) == 2
    put_images(tmp_path / "dtd", ["a/1.jpg", "b/2.jpg"])
    monkeypatch.chdir(tmp_path)
    assert load_dataset("./dtd").class_names == ("a", "b")
    with pytest.raises(OtptError, match="needs a data root"):
        load_dataset("dtd")


def write_table(path: Path, rows: list[dict[str, object]]) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_tables(tmp_path: Path, suffix: str) -> None:
    put_images(tmp_path, ["x/1.jpg", "x/2.jpg", "y, z/3.jpg"])
    table = tmp_path / f"mine{suffix}"
    rows = [{"path": "y, z/3.jpg", "label": "red panda", "other": 1}, {"path": "x/1.jpg", "label": "cat", "other": 2}]
    write_table(table, rows)
    data = load_dataset(str(table))
    assert (data.name, data.class_names) == ("mine", ("cat", "red panda"))
    assert [(s.id, s.label) for s in data] == [("y, z/3.jpg", 1), ("x/1.jpg", 0)]
    assert data[0].source == tmp_path / "y, z/3.jpg"

    names = tmp_path / "names.txt"
    names.write_text("p\tred panda\nc\tcat\nd\tdog\n")
    assert load_dataset(str(table), classes=names).labels == (0, 1), "labels by name"
    write_table(table, [{"path": "x/1.jpg", "label": 2, "id": "one"}, {"path": "x/2.jpg", "label": 0, "id": "two"}])
    data = load_dataset(str(table), classes=names)
    assert (data.labels, data.ids, data.class_names[2]) == ((2, 0), ("one", "two"), "dog"), "labels by number"
    write_table(table, [{"path": str(tmp_path / "x/1.jpg"), "label": "c"}])
    data = load_dataset(str(table), classes=names)
    assert (data.labels, data.ids) == ((1,), ("x/1.jpg",)), "labels by folder; an absolute path inside, made relative"


def test_a_table_may_lie_apart_from_its_images(tmp_path: Path) -> None:
    put_images(tmp_path / "data", ["x/1.jpg"])
    (tmp_path / "lists").mkdir()
    write_table(tmp_path / "lists/mine.csv", [{"path": "x/1.jpg", "label": "cat"}])
    data = load_dataset(str(tmp_path / "lists/mine.csv"), root=tmp_path / "data")
    assert data[0].source == tmp_path / "data/x/1.jpg"
    assert not data.is_file_missing(0)


def test_shards(tmp_path: Path) -> None:
    colours = [(250, 0, 0), (0, 250, 0), (0, 0, 250), (250, 250, 0)]
    for shard in range(2):
        members: dict[str, bytes] = {}
        for i in range(2):
            members[f"some/{i:04d}.jpg"] = jpeg(colours[2 * shard + i])
            members[f"some/{i:04d}.cls"] = b"%d\n" % ((i + shard) % 2)
            members[f"some/{i:04d}.seg.png"] = b"a mask, not the image"
        write_shard(tmp_path / f"mine-{shard:03d}.tar", members)
    (tmp_path / "classnames.txt").write_text("cat\nred panda\n")
    data = load_dataset(str(tmp_path / "mine-{000..001}.tar"))
    assert (data.name, data.class_names, data.labels) == ("mine", ("cat", "red panda"), (0, 1, 1, 0))
    assert data.ids[2] == "mine-001.tar/some/0000"
    for i in (3, 0, 2, 1):
        assert data[i].source == jpeg(colours[i]), "random access gives the very bytes"
    assert load_dataset("mine-{000,001}.tar", root=tmp_path).fingerprint == data.fingerprint
    assert pickle.loads(pickle.dumps(data))[3].source == jpeg(colours[3])


@pytest.mark.parametrize(
    ("ending", "content"), [("txt", b"cat"), ("json", b'{"label": "cat"}'), ("json", b'{"cls": "cat"}')]
)
def test_shards_labelled_by_name(tmp_path: Path, ending: str, content: bytes) -> None:
    write_shard(tmp_path / "a.tar", {"1.jpg": JPEG, f"1.{ending}": content, "2.jpg": JPEG, "2.txt": b"dog"})
    data = load_dataset(str(tmp_path / "a.tar"))
    assert (data.class_names, data.labels, data.name) == (("cat", "dog"), (0, 1), "a")


def test_braces() -> None:
    assert expand_braces("x-{08..11}.tar") == ["x-08.tar", "x-09.tar", "x-10.tar", "x-11.tar"]
    assert expand_braces("{a,b}-{1..2}.tar") == ["a-1.tar", "a-2.tar", "b-1.tar", "b-2.tar"]
    assert expand_braces("plain.tar") == ["plain.tar"]


def test_hub_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(OtptError, match="needs the package datasets"):
        load_dataset("hf:somebody/pets")


def test_hub_with_a_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    put_images(tmp_path / "data", ["test/dog/1.jpg", "test/cat/2.jpg", "train/cat/3.jpg"])
    data = load_dataset(f"hf:{tmp_path / 'data'}")
    assert data.class_names == ("cat", "dog")
    assert sorted(data.labels) == [0, 1]
    assert open_image(data[0].source).size == (8, 8)
    with pytest.raises(OtptError, match="cannot be loaded"):
        load_dataset(f"hf:{tmp_path / 'data'}", split="val")


def hub(monkeypatch: pytest.MonkeyPatch, label: object, labels: list[int], images: list[object]) -> None:
    """Makes ``hf:x`` a table of these images and labels."""
    library = pytest.importorskip("datasets")
    features = library.Features({"image": library.Image(), "label": label})
    table = library.Dataset.from_dict({"image": images, "label": labels}, features=features)
    monkeypatch.setattr(library, "load_dataset", lambda *_, **__: table)


def test_hub_images_are_not_decoded_by_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = pytest.importorskip("datasets")
    (tmp_path / "good.jpg").write_bytes(JPEG)
    rows = [{"bytes": JPEG, "path": "a.jpg"}, {"bytes": b"junk", "path": "b.jpg"}, None]
    rows.append({"bytes": None, "path": str(tmp_path / "good.jpg")})
    hub(monkeypatch, library.ClassLabel(names=["cat", "dog"]), [0, 1, 0, 1], rows)
    data = load_dataset("hf:x")
    assert (data[0].source, data[3].source) == (JPEG, str(tmp_path / "good.jpg"))
    report = check_dataset(data)
    assert [name for name, _ in report.unreadable] == ["test/1", "test/2"]
    assert report.unreadable[1][1] == "Row 2 has no image in the column 'image'."


def test_other_columns_of_a_hub_table_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    library = pytest.importorskip("datasets")
    features = library.Features(
        {"image": library.Image(), "mask": library.Image(), "label": library.ClassLabel(names=["cat", "dog"])}
    )
    row = {"image": {"bytes": JPEG, "path": None}, "mask": {"bytes": b"junk", "path": None}, "label": 1}
    table = library.Dataset.from_list([row], features=features)
    monkeypatch.setattr(library, "load_dataset", lambda *_, **__: table)
    assert load_dataset("hf:x")[0].source == JPEG


def test_hub_labels_are_numbers_whatever_the_classes_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = pytest.importorskip("datasets")
    three = [{"bytes": JPEG, "path": None}] * 3
    hub(monkeypatch, library.ClassLabel(names=["1", "2", "3"]), [1, 2, 1], three)
    assert load_dataset("hf:x").labels == (1, 2, 1)
    names = tmp_path / "names.txt"
    for text, labels in {
        "3\n2\n1\n": (1, 0, 1),  # its names in another order
        "0\n1\n2\n3\n": (2, 3, 2),  # and more of them
        "b\ttwo\n3\tthree\n1\tone\n2\n": (3, 1, 3),  # by folder
        "cat\ndog\nemu\n": (1, 2, 1),  # other names in its order
    }.items():
        names.write_text(text)
        assert load_dataset("hf:x", classes=names).labels == labels, text
    for text in ("1\ncat\ndog\n", "cat\ndog\n", "1\n2\n"):
        names.write_text(text)
        with pytest.raises(OtptError, match=r"hf:x: the class list of .* does not name"):
            load_dataset("hf:x", classes=names)
    hub(monkeypatch, library.ClassLabel(names=["Crane", "crane"]), [0, 1, 0], three)
    assert load_dataset("hf:x").labels == (0, 1, 0), "names that differ in case alone are two classes"
    assert load_dataset("hf:x", classes=["crane", "Crane"]).labels == (1, 0, 1)
    hub(monkeypatch, library.Value("int64"), [1, 2, 1], three)
    names.write_text("1\n2\n3\n")
    assert load_dataset("hf:x", classes=names).labels == (1, 2, 1)
    with pytest.raises(OtptError, match=r"without class names.*--classes @FILE \(classes="):
        load_dataset("hf:x")
    hub(monkeypatch, library.ClassLabel(names=["cat", "dog"]), [0, -1, 1], three)
    with pytest.raises(OtptError, match="has no label in row 1"):
        load_dataset("hf:x")


def test_a_class_may_begin_with_a_hash_after_the_first() -> None:
    assert parse_class_list("cat\n#1 dad\n", "list.txt").names == ("cat", "#1 dad")


def test_a_flat_folder_with_a_table_of_labels(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(JPEG)
    with pytest.raises(OtptError, match=r"labels\.csv"):
        load_dataset(str(tmp_path))
    (tmp_path / "labels.csv").write_text("file,label\na.jpg,cat\nb.jpg,dog\n")
    data = load_dataset(str(tmp_path))
    assert (data.name, data.class_names, data.labels) == (tmp_path.name, ("cat", "dog"), (0, 1))
    assert data.source(1) == tmp_path / "b.jpg"


def test_data_sets_of_other_libraries(tmp_path: Path) -> None:
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder

    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jpg").write_bytes(JPEG)
    own = load_dataset(str(tmp_path))
    folder = ImageFolder(str(tmp_path))
    for given in (folder, DataLoader(folder)):
        found = as_dataset(given)
        assert (found.name, found.ids, found.labels) == (own.name, own.ids, own.labels)
        assert found.fingerprint == own.fingerprint

    class Pairs(list):
        classes = ("cat", "dog")

    pairs = as_dataset(Pairs([(JPEG, 1), (JPEG, 0)]))
    assert (pairs.class_names, pairs.labels, pairs.source(0)) == (("cat", "dog"), (1, 0), JPEG)
    library = pytest.importorskip("datasets")
    features = library.Features({"image": library.Image(), "label": library.ClassLabel(names=["cat", "dog"])})
    images = [{"bytes": JPEG, "path": None}] * 2
    table = library.Dataset.from_dict({"image": images, "label": [1, 0]}, features=features)
    hub = as_dataset(table)
    assert (hub.class_names, hub.labels, hub.source(1)) == (("cat", "dog"), (1, 0), JPEG)
    with pytest.raises(OtptError, match="int"):
        as_dataset(3)
