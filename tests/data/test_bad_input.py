"""Data that cannot be used: one clear sentence each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from oracles.data.data_files import put_images, split_text, touch

from otpt.data import Dataset, check_dataset, find_entry, load_dataset
from otpt.data.classes import builtin_class_list
from otpt.errors import OtptError

DTD = "split_zhou_DescribableTextures.json"
NAMES = builtin_class_list("dtd").names
ROWS = [[f"{name}/{name}_{i}.jpg", label, name] for label, name in enumerate(NAMES) for i in range(36)]


def dtd(root: Path, rows: list[list[object]] | str = ROWS) -> Path:  # type: ignore[assignment]
    """DTD with a split file of these rows and its first image."""
    put_images(root / "dtd/images", [ROWS[0][0]])  # type: ignore[list-item]
    (root / DTD).write_text(rows if isinstance(rows, str) else json.dumps({"test": rows}), encoding="utf-8")
    return root


def sentence(spec: str, **given: object) -> str:
    with pytest.raises(OtptError) as caught:
        load_dataset(spec, **given)  # type: ignore[arg-type]
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def test_the_made_split_is_good(tmp_path: Path) -> None:
    assert len(load_dataset("dtd", root=dtd(tmp_path))) == 1692


def test_root_missing(tmp_path: Path) -> None:
    assert "is not a folder" in sentence("dtd", root=tmp_path / "nowhere")


def test_nothing_there_says_where_it_was_looked_for(tmp_path: Path) -> None:
    text = sentence("dtd", root=tmp_path)
    for place in ("dtd/images (CoOp)", "DTD/images (TPT)", "dtd/dtd/images (torchvision)", str(tmp_path)):
        assert place in text


def test_images_without_the_split_file(tmp_path: Path) -> None:
    put_images(tmp_path / "dtd/images", ["banded/banded_0060.jpg"])
    text = sentence("dtd", root=tmp_path)
    assert f"its split file {DTD} was not found in" in text
    for place in ("dtd/images", "dtd", "data_splits"):
        assert str(tmp_path / place) in text


def test_half_downloaded(tmp_path: Path) -> None:
    (tmp_path / "dtd/images/banded").mkdir(parents=True)
    (tmp_path / DTD).write_text(json.dumps({"test": ROWS}))
    text = sentence("dtd", root=tmp_path)
    assert "an incomplete download" in text
    assert "banded/banded_0.jpg" in text


def test_missing_images_are_found_by_check_not_by_load(tmp_path: Path) -> None:
    data = load_dataset("dtd", root=dtd(tmp_path))
    report = check_dataset(data, find_entry("dtd"))
    assert (report.ok, len(report.missing), report.opened, report.images) == (False, 1691, 1, 1692)
    assert report.problems == ("1691 images are missing",)


@pytest.mark.parametrize("label", [47, -1])
def test_label_without_a_class_name(tmp_path: Path, label: int) -> None:
    text = sentence("dtd", root=dtd(tmp_path, [*ROWS, ["x.jpg", label, "x"]]))
    assert f"'x.jpg' has label {label}, which has no class name" in text


def test_permuted_labels(tmp_path: Path) -> None:
    rows = [[path, (label + 1) % 47, name] for path, label, name in ROWS]
    assert "label 1 is called 'banded', but 'blotchy'" in sentence("dtd", root=dtd(tmp_path, rows))


def test_duplicated_ids(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="1693 test images"):
        text = sentence("dtd", root=dtd(tmp_path, [*ROWS, ROWS[5]]))
    assert "has the duplicate id 'banded/banded_5.jpg'" in text


@pytest.mark.parametrize("text", ["{", "[]", '{"train": []}', '{"test": [["a", "b"]]}', '{"test": [["a", "b", "c"]]}'])
def test_damaged_split_file(tmp_path: Path, text: str) -> None:
    assert "is damaged or has no 'test' split" in sentence("dtd", root=dtd(tmp_path, text))


def test_split_file_that_leads_outside(tmp_path: Path) -> None:
    for path in ("/etc/passwd", "../x.jpg"):
        assert "outside the data" in sentence("dtd", root=dtd(tmp_path, [[path, 0, "banded"]]))


def test_empty_split(tmp_path: Path) -> None:
    assert "names no images" in sentence("dtd", root=dtd(tmp_path, []))


def test_another_split_than_there_is(tmp_path: Path) -> None:
    assert "has no 'val' split" in sentence("dtd", root=dtd(tmp_path), split="val")
    assert "expected one of test, val, train" in sentence("dtd", root=tmp_path, split="tset")


def test_folders_missing_and_too_many(tmp_path: Path) -> None:
    folders = find_entry("kather").class_list().folders
    touch(tmp_path / "CRC-VAL-HE-7K", [f"{folder}/1.tif" for folder in folders[2:]])
    assert "2 of 9 class folders are missing: ADI, BACK" in sentence("kather", root=tmp_path)
    touch(tmp_path / "CRC-VAL-HE-7K", [f"{folder}/1.tif" for folder in (*folders, "OTHER")])
    assert "more folders than the 9 classes: OTHER" in sentence("kather", root=tmp_path)


def test_flat_folder_and_empty_class_folders(tmp_path: Path) -> None:
    touch(tmp_path / "imagenet/images/val", ["ILSVRC2012_val_00000001.JPEG"])
    assert "holds none of the 1000 class folders (n01440764, " in sentence("imagenet", root=tmp_path)
    for folder in find_entry("kather").class_list().folders:
        (tmp_path / "CRC-VAL-HE-7K" / folder).mkdir(parents=True)
    assert "hold no images" in sentence("kather", root=tmp_path)


def test_other_number_of_images_than_published_is_noted(tmp_path: Path) -> None:
    touch(tmp_path / "CRC-VAL-HE-7K", [f"{folder}/1.tif" for folder in find_entry("kather").class_list().folders])
    with pytest.warns(UserWarning, match="kather has 9 test images .*, 7180 were published"):
        data = load_dataset("kather", root=tmp_path)
    assert data.class_names[-1] == "colorectal adenocarcinoma epithelium"


def test_aircraft_lists(tmp_path: Path) -> None:
    base = tmp_path / "fgvc_aircraft"
    put_images(base / "images", ["0000001.jpg"])
    assert "images_variant_test.txt was not found" in sentence("aircraft", root=tmp_path)
    (base / "images_variant_test.txt").write_text("0000001 Zeppelin\n")
    assert "line 1: the class 'Zeppelin' is not in the published class list" in sentence("aircraft", root=tmp_path)
    (base / "variants.txt").write_text("707-320\n")
    assert "differ from the published list" in sentence("aircraft", root=tmp_path)


def test_isic_ground_truth(tmp_path: Path) -> None:
    put_images(tmp_path / "ISIC2018_Task3_Test_Input", ["ISIC_1.jpg"])
    truth = tmp_path / "ISIC2018_Task3_Test_GroundTruth.csv"
    truth.write_text("image,MEL,NV,BCC,AKIEC,BKL,DF,VASC\nISIC_1,1,1,0,0,0,0,0\n")
    assert "line 2: expected exactly one class with 1" in sentence("isic2018", root=tmp_path)
    truth.write_text("image,MEL\nISIC_1,1\n")
    assert "expected the columns image, MEL, NV" in sentence("isic2018", root=tmp_path)


def test_own_names_for_a_registered_set(tmp_path: Path) -> None:
    dtd(tmp_path)
    names = tmp_path / "names.txt"
    names.write_text("one\ntwo\n")
    assert "has 47 classes, but the class list names 2" in sentence("dtd", root=tmp_path, classes=names)
    names.write_text("# prompt: a texture of\n" + "".join(f"my {name}\n" for name in NAMES))
    data = load_dataset("dtd", root=tmp_path, classes=names)
    assert (data.class_names[3], data.prompt, data.augmix) == ("my bubbly", "a texture of", True)
    names.write_text("".join(f"{name}\t{name.upper()}\n" for name in reversed(NAMES)))
    assert load_dataset("dtd", root=tmp_path, classes=names).class_names == tuple(name.upper() for name in NAMES)


def test_unknown_names_and_paths(tmp_path: Path) -> None:
    assert "Unknown data set 'caltch101'. Did you mean: caltech101" in sentence("caltch101", root=tmp_path)
    assert "There is no data set at" in sentence(str(tmp_path / "no/where"))
    assert "Unknown data set 'emoji/animal'. Did you mean: emoji/animals" in sentence("emoji/animal")


def test_own_folder_problems(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "has no sub-folders" in sentence(str(tmp_path / "empty"))
    (tmp_path / "hollow/cat").mkdir(parents=True)
    assert "hold no images" in sentence(str(tmp_path / "hollow"))
    put_images(tmp_path / "full", ["cat/1.jpg", "dog/1.jpg", "emu/1.jpg"])
    (tmp_path / "full/classes.txt").write_text("cat\n")
    assert "holds classes that the class list of 1 does not name: dog, emu" in sentence(str(tmp_path / "full"))
    (tmp_path / "full/classes.txt").write_bytes(b"\xff\xfe\x00c")
    assert "is not UTF-8 text" in sentence(str(tmp_path / "full"))
    assert "Cannot read the class list" in sentence(str(tmp_path / "full"), classes=tmp_path / "none.txt")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "t.csv"),
        ("name,label\na.jpg,cat\n", "'name', 'label'"),
        ("path,label\n", "is empty"),
        ("path,label\na.jpg,\n", "has no label in data row 1"),
        ("path,label\na.jpg,cat\nb.jpg\n", "data row 2"),
        ("path,label\na.jpg,0\nb.jpg,1\n", "the labels are numbers (0, 1) without class names"),
        ("path,label\na.jpg,cat\na.jpg,dog\n", "has the duplicate id 'a.jpg'"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    assert says in sentence(str(tmp_path / "t.csv"))


def test_tables_against_a_class_list(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,label\na.jpg,cat\nb.jpg,emu\n")
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    assert "does not name 'emu'" in sentence(str(tmp_path / "t.csv"), classes=tmp_path / "names.txt")
    (tmp_path / "t.csv").write_text("path,label\na.jpg,0\nb.jpg,2\n")
    text = sentence(str(tmp_path / "t.csv"), classes=tmp_path / "names.txt")
    assert "'b.jpg' has label 2, which has no class name; expected 0 to 1" in text


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_text("no parquet")
    assert "t.parquet" in sentence(str(tmp_path / "t.parquet"))
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe")
    assert "t.csv" in sentence(str(tmp_path / "t.csv"))
    assert "none.csv" in sentence(str(tmp_path / "none.csv"))


def test_a_dataset_checks_itself() -> None:
    with pytest.raises(OtptError, match="is empty"):
        Dataset("x", ["a"], [], [], lambda i: b"")
    with pytest.raises(OtptError, match="1 images and 2 labels"):
        Dataset("x", ["a"], ["1"], [0, 0], lambda i: b"")
    with pytest.raises(OtptError, match="Unknown family"):
        Dataset("x", ["a"], ["1"], [0], lambda i: b"", family="odd")
    data = Dataset("x", ["a"], ["1"], [0], lambda i: b"")
    for index in (1, -1):
        with pytest.raises(IndexError):
            data[index]


def test_the_real_split_file_names_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / DTD).write_text(split_text("dtd"))
    put_images(tmp_path / "dtd/images", ["banded/banded_0060.jpg", "banded/banded_0021.jpg"])
    report = check_dataset(load_dataset("dtd", root=tmp_path), find_entry("dtd"))
    real = [path for path, _, _ in json.loads(split_text("dtd"))["test"]]
    assert set(real) - set(report.missing) <= {"banded/banded_0060.jpg", "banded/banded_0021.jpg"}
