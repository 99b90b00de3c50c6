"""Image files in class folders, listed without the data layer."""

from __future__ import annotations

from pathlib import Path

import pytest
from oracles.data.data_files import put_images

from otpt.data import load_dataset
from otpt.errors import OtptError
from otpt.folders import class_folders, class_images, images_below


def test_class_images_are_those_of_the_data_set(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    files = ["red panda/b.jpg", "red panda/a/9.PNG", "cat/10.jpg", "cat/9.jpg", "cat/notes.txt", "Emu/x.webp"]
    put_images(folder, [*files, ".hidden/1.jpg", "__MACOSX/1.jpg"])
    (folder / "empty").mkdir()
    (folder / "readme.txt").write_text("no class")
    (folder / "linked").symlink_to(folder / "cat", target_is_directory=True)
    images = class_images(folder)
    data = load_dataset(str(folder))
    assert tuple(images) == data.class_names == ("Emu", "cat", "empty", "linked", "red panda")
    assert [path for paths in images.values() for path in paths] == [sample.source for sample in data]
    assert images["cat"] == [folder / "cat/10.jpg", folder / "cat/9.jpg"]
    assert images["empty"] == []
    below = [file for file in files if not file.endswith(".txt")]
    assert sorted(images_below(folder)) == sorted(["__MACOSX/1.jpg", *below]), "links are not followed"


def test_folders_without_classes(tmp_path: Path) -> None:
    (tmp_path / "hollow/cat").mkdir(parents=True)
    put_images(tmp_path / "flat", ["1.jpg"])
    for name in ("flat", "hollow", "missing"):
        with pytest.raises(OtptError) as caught:
            class_images(tmp_path / name)
        if name != "missing":
            with pytest.raises(OtptError) as expected:
                load_dataset(str(tmp_path / name))
            assert str(caught.value) == str(expected.value)
        assert name in str(caught.value)


def test_links_to_themselves_and_to_folders_above(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.png").touch()
    (tmp_path / "cat" / "loop.png").symlink_to("loop.png")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "cat" / "again").symlink_to(tmp_path)
    assert list(images_below(tmp_path)) == ["cat/a.png"]
    assert list(images_below(tmp_path / "cat", follow_links=True)) == ["a.png"]
    assert class_folders(tmp_path) == ["cat"]
