"""Faults that the campaign found in data sets and class lists, each with the smallest input that showed it."""

from __future__ import annotations

import io
import json
import tarfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from otpt.cli.options.class_names import chosen_classes
from otpt.data import Dataset, load_dataset
from otpt.data.classes import parse_class_list
from otpt.data.own.shards import expand_braces
from otpt.errors import OtptError

pytestmark = pytest.mark.slow

DEEP = "[" * 200_000


def test_a_long_comma_list_of_classes_is_no_path() -> None:
    """Asking whether a name of more than 255 letters is a file raised an OSError: 60 classes could not be given."""
    found = chosen_classes(Namespace(classes=[",".join(f"class number {i}" for i in range(60))]))
    assert found is not None
    assert len(found) == 60


@pytest.mark.parametrize("spec", ["x" * 5000, "x" * 5000 + ".tar", "~nobody-of-that-name/x", "a\0.csv"])
def test_a_name_that_can_be_no_file_is_told(spec: str) -> None:
    with pytest.raises(OtptError):
        load_dataset(spec)


def test_the_duplicate_among_100_000_classes_is_found_at_once() -> None:
    names = [f"class {i}" for i in range(100_000)]
    with pytest.raises(OtptError, match="duplicate class 'class 99998'"):
        parse_class_list("\n".join([*names[:-1], names[-2]]), "x")


@pytest.mark.parametrize("spec", ["{0..99999999999}.tar", "{0..999}{0..999}{0..999}.tar", "{0..9}" * 30])
def test_braces_do_not_expand_without_end(spec: str) -> None:
    with pytest.raises(OtptError, match="check the range"):
        expand_braces(spec)


def test_braces_expand_as_before() -> None:
    assert expand_braces("{a,b}-{8..10}") == ["a-8", "a-9", "a-10", "b-8", "b-9", "b-10"]
    assert expand_braces("{" * 5000) == ["{" * 5000]


def tar(*members: tuple[str, bytes, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as file:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.size = kind, len(content)
            file.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def test_a_label_is_not_read_without_bound(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar(("a.jpg", tarfile.REGTYPE, b"x"), ("a.cls", tarfile.REGTYPE, bytes(2 << 20))))
    with pytest.raises(OtptError, match="at most"):
        load_dataset(str(path))


def test_a_label_nested_too_deeply(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar(("a.jpg", tarfile.REGTYPE, b"x"), ("a.json", tarfile.REGTYPE, DEEP.encode())))
    with pytest.raises(OtptError, match="holds no label"):
        load_dataset(str(path))


def test_a_number_of_5000_digits_is_no_label(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("cat\ndog\n", encoding="utf-8")
    (tmp_path / "a.csv").write_text(f"path,label\na.jpg,{'9' * 5000}\n", encoding="utf-8")
    with pytest.raises(OtptError, match="has no class name"):
        load_dataset(str(tmp_path / "a.csv"))


def test_one_row_again_and_again_is_no_table(tmp_path: Path) -> None:
    table = pa.table({"path": pa.repeat("a.jpg", 3_000_000), "label": pa.repeat("cat", 3_000_000)})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd")
    with pytest.raises(OtptError, match="more than different paths"):
        load_dataset(str(tmp_path / "a.parquet"))


@pytest.mark.parametrize(
    "rows", ['[["a.jpg", 1e999, "banded"]]', '[["\\ud800.jpg", 0, "banded"]]', DEEP, '[["../x.jpg", 0, "banded"]]']
)
def test_hostile_split_files(rows: str, tmp_path: Path) -> None:
    (tmp_path / "dtd" / "images").mkdir(parents=True)
    (tmp_path / "dtd" / "split_zhou_DescribableTextures.json").write_text(f'{{"test": {rows}}}', encoding="utf-8")
    with pytest.raises(OtptError):
        load_dataset("dtd", root=tmp_path)


def test_halves_of_letters_are_no_names() -> None:
    with pytest.raises(OtptError, match="not valid text"):
        Dataset("x", ["a", "b"], ["\ud800"], [0], lambda index: b"")


@pytest.mark.parametrize(
    ("names", "told"),
    [(["cat"], "has the label 1; expected 0 to 0"), (["cat", ["dog"]], "class names that are not text")],
)
def test_damaged_classes_of_a_data_set_on_disk(names: list[Any], told: str, tmp_path: Path) -> None:
    """A list of class names that was cut raised an IndexError, names of other types an AttributeError."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    rows = {"image": [Image.new("RGB", (4, 4))] * 2, "label": [0, 1]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "data")
    path = tmp_path / "data" / "dataset_info.json"
    info = json.loads(path.read_text(encoding="utf-8"))
    info["features"]["label"]["names"] = names
    path.write_text(json.dumps(info), encoding="utf-8")
    with pytest.raises(OtptError, match=told):
        load_dataset(f"hf:{tmp_path / 'data'}")


def test_a_folder_with_links_in_a_circle_is_told(tmp_path: Path) -> None:
    """Asking whether the last of forty links is a folder raised an OSError."""
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "again").symlink_to(tmp_path / "cat")
    (tmp_path / "cat" / "file").symlink_to("file")
    with pytest.raises(OtptError, match="Cannot read the folder"):
        load_dataset(str(tmp_path))
