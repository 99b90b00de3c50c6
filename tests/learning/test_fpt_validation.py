"""Validation images of FPT's training: whose they are, and how wrong ones are reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from oracles.command import run
from oracles.data.data_files import put_images
from oracles.data.medical_bench import dataset, folder

from otpt import learning
from otpt.data import Dataset
from otpt.data.classes import builtin_class_list
from otpt.errors import OtptError
from otpt.learning import FptRecipe
from otpt.learning.fpt import FptTrainer
from otpt.methods.fpt import FrozenViT

pytestmark = pytest.mark.slow

NAMES = ("covid", "normal", "dog")


def isic(root: Path, *splits: str) -> Path:
    for split in splits:
        put_images(root / "ISIC2018" / split, [f"{name}/1.png" for name in builtin_class_list("isic2018").folders])
    return root


@pytest.fixture
def validated(monkeypatch: pytest.MonkeyPatch) -> list[Dataset | None]:
    """The validation sets that the command has trained with; it stops there."""
    found: list[Dataset | None] = []

    def train(*_: object, validation: Dataset | None, **__: object) -> None:
        found.append(validation)
        raise OtptError("enough")

    monkeypatch.setattr(learning, "train_fpt", train)
    return found


def test_validation_images_are_those_of_the_validation_split(
    vit: Path, tmp_path: Path, validated: list[Dataset | None], capsys: pytest.CaptureFixture[str]
) -> None:
    own = folder(tmp_path / "own", each=1)
    root = isic(tmp_path / "data", "test", "train")
    command = ["--data", root, "--backbone", vit, "--frozen-size", 48, "--device", "cpu"]
    for given in (own, "isic2018"):  # no validation split, and none yet
        _, _, err = run(capsys, "train", "fpt", given, *command)
        assert "there are no validation images: the last epoch will be kept" in err
    _, _, err = run(capsys, "train", "fpt", own, "--val", "isic2018", *command)
    assert "its 'val' split was not found" in err
    isic(root, "val")
    run(capsys, "train", "fpt", "isic2018", *command)
    run(capsys, "train", "fpt", own, "--val", "isic2018", *command)
    run(capsys, "train", "fpt", "isic2018", "--val", own, *command)
    assert validated[:2] == [None, None]
    sources = [each[0].source for each in validated[2:] if each is not None]
    beginnings = [root / "ISIC2018/val", root / "ISIC2018/val", own]
    assert [source.resolve().parent.parent for source in sources] == beginnings  # type: ignore[union-attr]


def test_what_is_wrong_with_the_validation_split_is_told(
    vit: Path, tmp_path: Path, validated: list[Dataset | None], capsys: pytest.CaptureFixture[str]
) -> None:
    for split, word in (("Training", "NV"), ("Validation", "UNK")):
        put_images(tmp_path / f"ISIC2018_Task3_{split}_Input", ["a.jpg"])
        head = ["image", *builtin_class_list("isic2018").folders, "UNK"]
        row = ["a", *(str(int(name == word)) for name in head[1:])]
        text = f"{','.join(head)}\n{','.join(row)}\n"
        (tmp_path / f"ISIC2018_Task3_{split}_GroundTruth.csv").write_text(text, encoding="utf-8")
    put_images(tmp_path / "ISIC2018_Task3_Test_Input", ["a.jpg"])
    code, _, err = run(capsys, "train", "fpt", "isic2018", "--data", tmp_path, "--backbone", vit)
    assert (code, "unknown class 'UNK'" in err, validated) == (2, True, []), err


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("covid", "dog", "normal"), "class 1 is 'dog' there and 'normal' here"),
        (("covid", "normal"), "class 2 is missing there and 'dog' here"),
    ],
)
def test_other_classes_of_the_validation_set(names: tuple[str, ...], words: str, frozen: FrozenViT) -> None:
    with pytest.raises(OtptError, match=words):
        FptTrainer(frozen, dataset(NAMES, each=1), FptRecipe(), validation=dataset(names, each=1))
