"""Training of FPT: one step against a literal one, the epoch that is taken, validation images, stopped and resumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from oracles.command import run
from oracles.data.data_files import put_images
from oracles.data.medical_bench import dataset, folder
from oracles.methods.householder import literal_householder
from sklearn.metrics import roc_auc_score
from torch.nn import functional as F

from otpt.data import Dataset, find_entry
from otpt.errors import OtptError
from otpt.medical import training
from otpt.medical.fpt import FptNetwork
from otpt.medical.frozen_vit import FrozenViT
from otpt.medical.training import FptRecipe, FptTrainer, augmented_side_pixels, macro_auc, train_fpt

pytestmark = pytest.mark.slow

NAMES = ("covid", "normal", "dog")
SMALL = FptRecipe(epochs=2, batch=4, variant="fpt-plus")


@pytest.mark.parametrize("rows", ["classifier", "prompts"])
def test_a_step_is_the_literal_one(rows: str, frozen: FrozenViT) -> None:
    """torch's AdamW with the gradient cut at norm one; the loss is cross-entropy and 18 times the term."""
    recipe = replace(SMALL, weight=18.0, rows=rows)
    trainer = FptTrainer(frozen, dataset(NAMES, each=1), recipe)
    for fusion in trainer.network.fusions:
        fusion.dropout.p = 0.0
    twin = FptNetwork(trainer.sizes)
    twin.load_state_dict(trainer.network.state_dict())
    twin.eval()
    pixels, labels = torch.randn(2, 3, 128, 128), torch.tensor([0, 2])
    keys_values = frozen.keys_and_values(torch.randn(2, 3, 48, 48), trainer.sizes.blocks)
    units = [twin.classifier.weight] if rows == "classifier" else [fusion.prompts for fusion in twin.fusions]
    term = sum(literal_householder(F.normalize(unit, dim=-1)) for unit in units) / len(units)
    loss = F.cross_entropy(twin(pixels, keys_values), labels) + 18.0 * term
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in twin.parameters()]).norm()
    optimiser = torch.optim.AdamW(twin.parameters(), lr=1e-4, weight_decay=0.1)
    for parameter in twin.parameters():
        parameter.grad *= min(1.0, 1.0 / (float(norm) + 1e-6))
    optimiser.step()
    assert trainer.step(pixels, keys_values, labels) == pytest.approx(float(loss.detach()), rel=1e-5)
    before = trainer.network.state_dict()
    for name, expected in twin.state_dict().items():
        torch.testing.assert_close(before[name], expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("classes", [2, 4])
def test_auc_is_that_of_scikit_learn(classes: int) -> None:
    generator = np.random.default_rng(0)
    scores = generator.integers(1, 8, (40, classes)).astype(float)  # with ties
    shares = scores / scores.sum(axis=1, keepdims=True)
    labels = generator.integers(0, classes, 40)
    each = [roc_auc_score(labels == label, shares[:, label]) for label in range(classes)]
    assert macro_auc(shares, labels) == pytest.approx(np.mean(each))
    assert macro_auc(shares, np.zeros(40, np.int64)) == 0.5


@pytest.mark.equality
def test_training_is_the_same_again_and_after_a_stop(frozen: FrozenViT, tmp_path: Path) -> None:
    data, validation = dataset(NAMES, each=2), dataset(NAMES, each=1, first=50, name="val")
    lines: list[str] = []
    whole = train_fpt(frozen, data, SMALL, validation=validation, keep=tmp_path / "keep", say=lines.append)
    assert [line.split(":")[0] for line in lines] == ["epoch 1 of 2", "epoch 2 of 2"]
    assert all("validation AUC" in line for line in lines)

    class Stop(Exception):
        pass

    def stop(line: str) -> None:
        raise Stop

    checkpoint = tmp_path / "unfinished.pt"
    with pytest.raises(Stop):
        train_fpt(frozen, data, SMALL, validation=validation, checkpoint=checkpoint, say=stop)
    resumed = train_fpt(frozen, data, SMALL, validation=validation, checkpoint=checkpoint)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


def test_the_best_epoch_by_validation_is_kept(frozen: FrozenViT, monkeypatch: pytest.MonkeyPatch) -> None:
    data = dataset(NAMES, each=1)
    areas = iter([0.9, 0.4])
    trainer = FptTrainer(frozen, data, SMALL, validation=data)
    monkeypatch.setattr("otpt.medical.training.macro_auc", lambda *_: next(areas))
    trainer.epoch(0)
    first = {name: tensor.clone() for name, tensor in trainer.network.state_dict().items()}
    trainer.epoch(1)
    assert any(not torch.equal(first[n], t) for n, t in trainer.network.state_dict().items())
    assert all(torch.equal(first[n], t) for n, t in trainer.best().state_dict().items())


def test_augmentation_is_keyed_by_image_and_epoch() -> None:
    image = dataset()[0].source
    make = lambda epoch, name="p": augmented_side_pixels(image, 32, seed=1, image_id=name, epoch=epoch)  # type: ignore[arg-type]  # noqa: E731
    assert torch.equal(make(0), make(0))
    assert not torch.equal(make(0), make(1))
    assert not torch.equal(make(0), make(0, "q"))


def test_bad_input(frozen: FrozenViT) -> None:
    with pytest.raises(OtptError, match="diverged in epoch 1"):
        train_fpt(frozen, dataset(NAMES, each=2), replace(SMALL, learning_rate=1e30))
    for names, words in ((("covid", "dog", "normal"), "Class 1"), (("covid", "normal"), "Class 2")):
        with pytest.raises(OtptError, match=words):
            FptTrainer(frozen, dataset(NAMES, each=1), FptRecipe(), validation=dataset(names, each=1))
    with pytest.raises(OtptError, match="batch is 0"):
        FptRecipe(batch=0)
    with pytest.raises(OtptError, match="seed is -3"):
        FptRecipe(seed=-3)


def isic(root: Path, *splits: str) -> Path:
    for split in splits:
        put_images(root / "ISIC2018" / split, [f"{name}/1.png" for name in find_entry("isic2018").class_list().folders])
    return root


@pytest.fixture
def validated(monkeypatch: pytest.MonkeyPatch) -> list[Dataset | None]:
    """The validation sets that the command has trained with; it stops there."""
    found: list[Dataset | None] = []

    def train(*_: object, validation: Dataset | None, **__: object) -> None:
        found.append(validation)
        raise OtptError("enough")

    monkeypatch.setattr(training, "train_fpt", train)
    return found


def test_validation_images_are_those_of_the_validation_split(
    vit: Path, tmp_path: Path, validated: list[Dataset | None], capsys: pytest.CaptureFixture[str]
) -> None:
    own = folder(tmp_path / "own", each=1)
    root = isic(tmp_path / "data", "test", "train")
    command = ["--data", root, "--backbone", vit, "--frozen-size", 48, "--device", "cpu"]
    for given in (own, "isic2018"):  # no validation split, and none yet
        _, _, err = run(capsys, "train", "fpt", given, *command)
        assert "no validation images" in err
    _, _, err = run(capsys, "train", "fpt", own, "--val", "isic2018", *command)
    assert "'val' split was not found" in err
    isic(root, "val")
    run(capsys, "train", "fpt", "isic2018", *command)
    run(capsys, "train", "fpt", own, "--val", "isic2018", *command)
    run(capsys, "train", "fpt", "isic2018", "--val", own, *command)
    assert validated[:2] == [None, None]
    sources = [each[0].source for each in validated[2:] if each is not None]
    beginnings = [root / "ISIC2018/val", root / "ISIC2018/val", own]
    assert [source.resolve().parent.parent for source in sources] == beginnings  # type: ignore[union-attr]
