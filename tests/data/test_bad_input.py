"""Data that cannot be used: one sentence each, which names the value at fault."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from oracles.data.data_files import JPEG, put_images, split_text, touch

from otpt.data import Conventions, Dataset, check_dataset, find_entry, load_dataset
from otpt.data.classes import builtin_class_list, parse_class_list
from otpt.errors import OtptError

DTD = "split_zhou_DescribableTextures.json"
NAMES = builtin_class_list("dtd").names
ROWS = [[f"{name}/{name}_{i}.jpg", label, name] for label, name in enumerate(NAMES) for i in range(36)]
FOLDERS = builtin_class_list("imagenet-a").folders


def dtd(root: Path, rows: Any = ROWS) -> Path:
    """DTD with a split file of these rows and its first image."""
    put_images(root / "dtd/images", [ROWS[0][0]])
    (root / DTD).write_text(rows if isinstance(rows, str) else json.dumps({"test": rows}), encoding="utf-8")
    return root


def sentence(spec: str, **given: Any) -> str:
    with pytest.raises(OtptError) as caught:
        load_dataset(spec, **given)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


@pytest.mark.parametrize(
    ("rows", "value"),
    [
        ([*ROWS, ["x.jpg", 47, "x"]], "label 47"),
        ([*ROWS, ["x.jpg", -1, "x"]], "label -1"),
        ([[path, (label + 1) % 47, name] for path, label, name in ROWS], "'banded', but 'blotchy'"),
        ([["/etc/passwd", 0, "banded"]], "/etc/passwd"),
        ([["../x.jpg", 0, "banded"]], "../x.jpg"),
        ([], "no images"),
        *(
            (text, DTD)
            for text in ("{", "[]", '{"train": []}', '{"test": [["a", "b"]]}', '{"test": [["a", "b", "c"]]}')
        ),
    ],
)
def test_split_files(tmp_path: Path, rows: Any, value: str) -> None:
    assert value in sentence("dtd", root=dtd(tmp_path, rows))


def test_registered_sets(tmp_path: Path) -> None:
    assert len(load_dataset("dtd", root=dtd(tmp_path))) == 1692
    assert "'val'" in sentence("dtd", root=tmp_path, split="val")
    assert "test, val, train" in sentence("dtd", root=tmp_path, split="tset")
    assert "nowhere" in sentence("dtd", root=tmp_path / "nowhere")
    (tmp_path / "names.txt").write_text("one\ntwo\n")
    assert "names 2" in sentence("dtd", root=tmp_path, classes=tmp_path / "names.txt")
    with pytest.warns(UserWarning, match="1693"):
        assert "banded/banded_5.jpg" in sentence("dtd", root=dtd(tmp_path, [*ROWS, ROWS[5]]))
    (tmp_path / "dtd/images" / ROWS[0][0]).unlink()
    assert ROWS[0][0] in sentence("dtd", root=tmp_path)  # half downloaded
    (tmp_path / DTD).unlink()
    text = sentence("dtd", root=tmp_path)
    assert all(str(tmp_path / place) in text for place in ("dtd/images", "dtd", "data_splits"))
    text = sentence("pets", root=tmp_path)
    assert all(place in text for place in ("oxford_pets/images (CoOp)", "OxfordPets (TPT)", str(tmp_path)))
    assert "caltech101" in sentence("caltch101", root=tmp_path)
    assert "emoji/animals" in sentence("emoji/animal")


def test_class_folders(tmp_path: Path) -> None:
    base = tmp_path / "imagenet-a"
    touch(base, [f"{folder}/1.jpg" for folder in FOLDERS[2:]])
    assert "2 missing (n01498041, n01531178)" in sentence("imagenet-a", root=tmp_path)
    touch(base, [f"{folder}/1.jpg" for folder in FOLDERS])
    with pytest.warns(UserWarning, match=r"200 test images .*, 7500"):
        assert load_dataset("imagenet-a", root=tmp_path).class_names[-1] == "acorn"
    touch(base, ["OTHER/1.jpg"])
    assert "OTHER" in sentence("imagenet-a", root=tmp_path)
    touch(tmp_path / "imagenet/images/val", ["ILSVRC2012_val_00000001.JPEG"])
    assert "n01440764" in sentence("imagenet", root=tmp_path)
    for folder in FOLDERS:
        (tmp_path / "hollow/imagenet-a" / folder).mkdir(parents=True)
    assert "no images" in sentence("imagenet-a", root=tmp_path / "hollow")


def test_official_lists(tmp_path: Path) -> None:
    base = tmp_path / "fgvc_aircraft"
    put_images(base / "images", ["0000001.jpg"])
    assert "images_variant_test.txt" in sentence("aircraft", root=tmp_path)
    (base / "images_variant_test.txt").write_text("0000001 Zeppelin\n")
    assert "images_variant_test.txt: '0000001 Zeppelin'" in sentence("aircraft", root=tmp_path)


def test_own_names_for_a_registered_set(tmp_path: Path) -> None:
    dtd(tmp_path)
    names = tmp_path / "names.txt"
    names.write_text("# prompt: a texture of\n" + "".join(f"my {name}\n" for name in NAMES))
    data = load_dataset("dtd", root=tmp_path, classes=names)
    assert (data.class_names[3], data.prompt, data.augmix) == ("my bubbly", "a texture of", True)
    names.write_text("".join(f"{name}\t{name.upper()}\n" for name in reversed(NAMES)))
    assert load_dataset("dtd", root=tmp_path, classes=names).class_names == tuple(name.upper() for name in NAMES)


def test_own_folders(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "hollow/cat").mkdir(parents=True)
    put_images(tmp_path / "full", ["cat/1.jpg", "dog/1.jpg", "emu/1.jpg"])
    (tmp_path / "x.json").write_text("{}")
    for name in ("empty", "hollow", "no/where", "x.json", "none.csv"):
        assert name in sentence(str(tmp_path / name))
    (tmp_path / "full/classes.txt").write_text("cat\n")
    assert "dog, emu" in sentence(str(tmp_path / "full"))
    (tmp_path / "full/classes.txt").write_bytes(b"\xff\xfe\x00c")
    assert "classes.txt" in sentence(str(tmp_path / "full"))
    assert "none.txt" in sentence(str(tmp_path / "full"), classes=tmp_path / "none.txt")
    assert "'train'" in sentence(str(tmp_path / "full"), split="train")
    assert "emoji/animals" in sentence("emoji/animals", classes=tmp_path / "names.txt")


@pytest.mark.parametrize(
    ("text", "classes", "value"),
    [
        ("", None, "t.csv"),
        (b"\xff\xfe", None, "t.csv"),
        ("name,label\na.jpg,cat\n", None, "'name', 'label'"),
        ("path,label\n", None, "t.csv"),
        ("path,label\na.jpg,\n", None, "label in data row 1"),
        ("path,label\na.jpg,cat\nb.jpg\n", None, "data row 2"),
        ("path,label\na.jpg,0\nb.jpg,1\n", None, "(0, 1)"),
        ("path,label\na.jpg,cat\na.jpg,dog\n", None, "'a.jpg'"),
        ("path,label\na.jpg,cat\nb.jpg,emu\n", ["cat", "dog"], "'emu'"),
        ("path,label\na.jpg,0\nb.jpg,2\n", ["cat", "dog"], "'b.jpg' has label 2"),
    ],
)
def test_tables(tmp_path: Path, text: str | bytes, classes: list[str] | None, value: str) -> None:
    (tmp_path / "t.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert value in sentence(str(tmp_path / "t.csv"), classes=classes)
    (tmp_path / "t.parquet").write_text("no parquet")
    assert "t.parquet" in sentence(str(tmp_path / "t.parquet"))


def write_shard(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize(
    ("members", "value"),
    [
        ({"1.jpg": JPEG}, "'1' has no label"),
        ({"1.jpg": JPEG, "1.cls": b"0"}, "(0)"),
        ({"1.jpg": JPEG, "1.json": b"[1]"}, "1.json"),
        ({"1.jpg": JPEG, "1.txt": b" "}, "1.txt"),
        ({"1.jpg": JPEG, "1.png": JPEG, "1.txt": b"a"}, "two images"),
        ({"1.txt": b"a"}, "no images"),
    ],
)
def test_shards(tmp_path: Path, members: dict[str, bytes], value: str) -> None:
    write_shard(tmp_path / "a.tar", members)
    assert value in sentence(str(tmp_path / "a.tar"))


def test_shards_that_are_missing_cut_or_compressed(tmp_path: Path) -> None:
    write_shard(tmp_path / "a-0.tar", {"1.jpg": JPEG, "1.txt": b"a"})
    (tmp_path / "cut.tar").write_bytes((tmp_path / "a-0.tar").read_bytes()[:700])
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "a-0.tar", "1.jpg")
    for name, value in {
        "a-{0..1}.tar": "a-1.tar",
        "cut.tar": "cut.tar",
        "b.tar.gz": ".gz",
        "x-{5..1}.tar": "x-",
    }.items():
        assert value in sentence(str(tmp_path / name))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", "list.txt"),
        ("# only a remark\n", "list.txt"),
        ("cat\ndog\ncat\n", "'cat'"),
        ("cat\t\n", "line 1"),
        ("\tcat\n", "line 1"),
        ("# augmix: maybe\ncat\n", "'maybe'"),
    ],
)
def test_class_lists(text: str, value: str) -> None:
    with pytest.raises(OtptError, match=value):
        parse_class_list(text, "list.txt")


def test_a_dataset_checks_itself() -> None:
    for given, value in (
        ((["a"], [], []), "empty"),
        ((["a"], ["1"], [0, 0]), "1 images and 2 labels"),
        ((["a"], ["1"], [0.5]), "float"),
        ((["a"], ["1"], [1]), "label 1"),
    ):
        with pytest.raises(OtptError, match=value):
            Dataset("x", *given, lambda i: b"")
    with pytest.raises(OtptError, match="odd"):
        Dataset("x", ["a"], ["1"], [0], lambda i: b"", conventions=Conventions(family="odd"))
    data = Dataset("x", ["a"], ["1"], [0], lambda i: b"")
    for index in (1, -1):
        with pytest.raises(IndexError):
            data[index]


def test_missing_images_are_found_by_check_not_by_load(tmp_path: Path) -> None:
    report = check_dataset(load_dataset("dtd", root=dtd(tmp_path)), find_entry("dtd"))
    assert (report.ok, len(report.missing), report.opened, report.images) == (False, 1691, 1, 1692)
    (tmp_path / DTD).write_text(split_text("dtd"))
    put_images(tmp_path / "dtd/images", ["banded/banded_0060.jpg", "banded/banded_0021.jpg"])
    report = check_dataset(load_dataset("dtd", root=tmp_path), find_entry("dtd"))
    real = [path for path, _, _ in json.loads(split_text("dtd"))["test"]]
    assert set(real) - set(report.missing) <= {"banded/banded_0060.jpg", "banded/banded_0021.jpg"}
