"""``otpt datasets`` and ``check``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from oracles.command import run
from oracles.data.data_files import put_images, write_dtd

from otpt.data import find_entry


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DTD, whole; Caltech101 without its split file."""
    root = tmp_path_factory.mktemp("data")
    write_dtd(root)
    put_images(root / "Caltech101", ["Faces/image_0426.jpg"])
    return root


def test_list_with_a_root(capsys, root: Path) -> None:
    code, out, _ = run(capsys, "datasets", "--data", root, "--json")
    assert code == 0
    rows = {row["name"]: row for row in json.loads(out)}
    assert (rows["dtd"]["images"], rows["dtd"]["layout"]) == (1692, "CoOp")
    assert rows["dtd"]["folder"] == str(root / "dtd/images")
    assert rows["caltech101"]["state"] == "incomplete"
    assert "split_zhou_Caltech101.json was not found in" in rows["caltech101"]["missing"]
    assert rows["pets"]["state"] == "not found"
    assert "looked for in oxford_pets/images (CoOp), " in rows["pets"]["missing"]
    assert [name for name, row in rows.items() if row["state"] == "found"] == ["dtd"]
    code, out, _ = run(capsys, "datasets", "--data", root)
    assert code == 0
    lines = out.splitlines()
    (line,) = [line for line in lines if line.startswith("dtd ")]
    assert line.split()[:7] == ["dtd", "47", "1692", "625.8", "MB", "dtd/images", "(CoOp)"]
    assert rows["pets"]["missing"] in lines
    code, _, err = run(capsys, "datasets", "--data", root / "none")
    assert (code, err.count("\n")) == (2, 1)


def test_check_a_whole_set(capsys, root: Path) -> None:
    code, out, _ = run(capsys, "datasets", "check", "dtd", "--data", root)
    assert code == 0
    assert "47 classes, 1692 images, 100 of them opened" in out
    assert "all good" in out
    code, out, _ = run(capsys, "datasets", "check", "DTD", "--data", root, "--sample=-1", "--json")
    report = json.loads(out)
    assert (code, report["ok"], report["opened"], report["missing"]) == (0, True, 1692, [])


def test_check_a_spoilt_set(capsys, tmp_path: Path) -> None:
    first, *rest = find_entry("imagenet-a").class_list().folders
    put_images(tmp_path / "imagenet-a", [f"{folder}/1.jpg" for folder in rest])
    (tmp_path / f"imagenet-a/{first}").mkdir()
    (tmp_path / f"imagenet-a/{first}/1.jpg").write_bytes(b"no image")
    code, out, err = run(capsys, "datasets", "check", "imagenet-a", "--data", tmp_path)
    assert (code, err) == (2, "")
    assert "200 test images, 7500 published" in out
    assert "1 of 100 opened images cannot be read" in out
    assert f"unreadable: {first}/1.jpg: Cannot use" in out
    assert "not good" in out


def test_check_own_data_lists_only_some_missing(capsys, tmp_path: Path) -> None:
    rows = "".join(f"{i}.jpg,cat\n" for i in range(22))
    (tmp_path / "mine.csv").write_text("path,label\n" + rows)
    code, out, _ = run(capsys, "datasets", "check", tmp_path / "mine.csv")
    assert code == 2
    assert "22 images are missing" in out
    assert out.count("missing: ") == 20
    assert "and 2 more" in out
    put_images(tmp_path, [f"{i}.jpg" for i in range(22)])
    names = tmp_path / "names.txt"
    names.write_text("cat\nan unused class\n")
    code, out, _ = run(capsys, "datasets", "check", tmp_path / "mine.csv", "--classes", f"@{names}")
    assert code == 0, "a class without images is no fault of own data"
    assert "2 classes, 22 images, 22 of them opened" in out


def test_the_list_says_where_sets_come_from(capsys) -> None:
    code, out, _ = run(capsys, "datasets", "--json")
    assert code == 0
    rows = {row["name"]: row for row in json.loads(out)}
    assert (rows["dtd"]["download"], rows["dtd"]["bytes"], rows["dtd"]["account"]) == ("get", 625803514, "")
    assert (rows["imagenet"]["download"], rows["imagenet"]["account"]) == ("by hand", "image-net.org")
    assert "prepare imagenet" in rows["imagenet"]["next"]
    assert rows["kather"]["licence"] == "CC BY 4.0"
    code, out, _ = run(capsys, "datasets")
    (line,) = [line for line in out.splitlines() if line.startswith("dtd ")]
    assert "625.8 MB" in line
