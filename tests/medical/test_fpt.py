"""FPT: the frozen ViT against transformers, network and training against literal ones, evaluation end to end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracles.command import run
from oracles.data.data_files import put_images
from oracles.data.medical_bench import dataset, folder, tiny
from oracles.methods.householder import literal_householder
from oracles.models.medical import write_vit
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn import functional as F

from otpt.backbones import Backbone
from otpt.data import Dataset, find_entry
from otpt.errors import OtptError
from otpt.evaluation import EvaluationSystem, evaluate
from otpt.methods import get_method, preparer_of
from otpt_medical import FROZEN_SIZE
from otpt_medical.fpt import FptNetwork, fpt_network, write_fpt
from otpt_medical.frozen_vit import (
    ISIC_MEAN,
    ISIC_STD,
    SELECTED,
    FrozenViT,
    KeysAndValues,
    load_frozen_vit,
)
from otpt_medical.trained import Notes, read_trained, write_trained
from otpt_medical.training import (
    CROP_RATIO,
    CROP_SCALE,
    JITTER,
    FptRecipe,
    augmented_side_pixels,
    fpt_step,
    macro_auc,
    train_fpt,
)

pytestmark = pytest.mark.slow


METHODS = ("fpt", "fpt+o-tpt")
NAMES = ("covid", "normal", "dog")


def test_published_constants() -> None:
    recipe = FptRecipe()
    assert (recipe.learning_rate, recipe.weight_decay, recipe.epochs, recipe.batch, recipe.clip) == (
        1e-4,
        0.1,
        20,
        16,
        1,
    )
    assert [recipe.rate(epoch) for epoch in (0, 10)] == [1e-4, pytest.approx(5e-5)]
    assert (ISIC_MEAN, ISIC_STD) == ((0.76356, 0.54661, 0.57075), (0.14041, 0.15191, 0.16923))
    assert (FROZEN_SIZE, SELECTED, CROP_SCALE, CROP_RATIO, JITTER) == (512, 0.2, (0.8, 1.0), (0.7, 1.3), 0.2)
    network = FptNetwork("fpt", 7, 768, 12, 12)
    block, fusion = network.blocks[0], network.fusions[0]
    assert (block.num_heads, block.fc1.in_features, block.fc1.out_features) == (12, 96, 384)
    assert (network.size, network.frozen_blocks, network.patches.stride) == (224, tuple(range(12)), (16, 16))
    assert (fusion.prompts.shape, fusion.dropout.p) == ((16, 96), 0.5)
    plus = FptNetwork("fpt-plus", 7, 768, 12, 12)
    assert (plus.size, plus.frozen_blocks, plus.fusions[0].prompts.shape) == (128, (6, 7, 8, 9, 10, 11), (16, 768))


def test_frozen_vit_is_that_of_transformers(vit: Path, frozen: FrozenViT, tmp_path: Path) -> None:
    """Keys and values of the most attended tokens, head by head, from transformers' own attention and layers."""
    model = write_vit(tmp_path, hidden_size=32)
    pixels = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    output = model(pixels, output_attentions=True, output_hidden_states=True, interpolate_pos_encoding=True)
    found = frozen.keys_values(pixels, (0, 2))
    tokens = 1 + 6 * 6
    kept = int(0.2 * tokens)
    assert found.shape == (2, 2, 2, 2, kept, 16)
    for position, number in enumerate((0, 2)):
        layer = model.layers[number]
        normed = layer.layernorm_before(output.hidden_states[number])
        keys, values = layer.attention.k_proj(normed), layer.attention.v_proj(normed)
        for image in range(2):
            for head in range(2):
                received = output.attentions[number][image, head].mean(dim=0)
                top = received.topk(kept).indices
                part = slice(16 * head, 16 * head + 16)
                for which, rows in enumerate((keys, values)):
                    torch.testing.assert_close(
                        found[image, position, which, head], rows[image, top][:, part], rtol=1e-4, atol=1e-4
                    )


def literal_logits(network: FptNetwork, pixels: Tensor, keys_values: Tensor) -> Tensor:
    """One image, prompt by prompt and head by head."""
    state, frozen_width, width, heads_of_both = dict(network.named_parameters()), 32, 4, 2
    patches = F.conv2d(pixels[None], state["patches.weight"], state["patches.bias"], stride=16)[0].flatten(1).t()
    x = torch.cat([state["class_token"][0], patches]) + state["positions"][0]
    for b in range(len(network.blocks)):
        fusion = network.fusions[b]
        queries = fusion.enter(fusion.prompts)
        wide = frozen_width // heads_of_both
        rows = []
        for query in queries:
            heads = []
            for h in range(heads_of_both):
                weights = (keys_values[b, 0, h] @ query[wide * h : wide * (h + 1)] / wide**0.5).softmax(0)
                heads.append(weights @ keys_values[b, 1, h])
            rows.append(fusion.leave(torch.cat(heads)))
        both = torch.cat([x, torch.stack(rows)])
        block = network.blocks[b]
        normed = block.norm1(both)
        narrow = width // heads_of_both
        heads = []
        for h in range(heads_of_both):
            q, k, v = (
                layer(normed)[:, narrow * h : narrow * (h + 1)] for layer in (block.query, block.key, block.value)
            )
            heads.append((q @ k.t() / narrow**0.5).softmax(dim=-1) @ v)
        attended = block.out(torch.cat(heads, dim=-1))
        both = both + attended
        both = both + block.fc2(F.gelu(block.fc1(block.norm2(both))))
        x = both[: len(x)]
    return network.classifier(network.norm(x[0]))


@pytest.mark.parametrize("variant", ["fpt", "fpt-plus"])
def test_side_network_is_the_literal_one(variant: str, frozen: FrozenViT) -> None:
    torch.manual_seed(0)
    network = FptNetwork(variant, 3, 32, 2, 3).double().eval()
    pixels = torch.randn(2, 3, network.size, network.size, dtype=torch.float64)
    keys_values = frozen.keys_values(torch.randn(2, 3, 48, 48), network.frozen_blocks).double()
    found = network(pixels, keys_values)
    expected = torch.stack([literal_logits(network, *pair) for pair in zip(pixels, keys_values, strict=True)])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_what_is_made_orthogonal(frozen: FrozenViT) -> None:
    network = FptNetwork("fpt", 3, 32, 2, 3)
    expected = literal_householder(F.normalize(network.classifier.weight, dim=-1).detach())
    assert float(network.orthogonality().detach()) == pytest.approx(float(expected), abs=1e-5)
    blocks = [literal_householder(F.normalize(f.prompts, dim=-1).detach()) for f in network.fusions]
    assert float(network.orthogonality("prompts").detach()) == pytest.approx(float(sum(blocks)) / 3, abs=1e-5)
    with pytest.raises(OtptError, match="Available: classifier, prompts"):
        network.orthogonality("tokens")


@pytest.mark.equality
def test_kept_keys_and_values_are_the_same_and_damaged_ones_made_again(frozen: FrozenViT, tmp_path: Path) -> None:
    image = dataset()[0].source
    find = KeysAndValues(frozen, (1, 2), tmp_path)
    found = find(image, "abc")  # type: ignore[arg-type]
    (file,) = tmp_path.rglob("*.safetensors")
    assert torch.equal(find(image, "abc"), found)  # type: ignore[arg-type]
    file.write_bytes(b"damaged")
    assert torch.equal(find(image, "abc"), found)  # type: ignore[arg-type]
    assert file.stat().st_size > 100
    assert torch.equal(KeysAndValues(frozen, (1, 2))(image, "abc"), found)  # type: ignore[arg-type]


def test_end_to_end(vit: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, test = folder(tmp_path / "train", NAMES, each=2), folder(tmp_path / "test", NAMES, each=2, first=40)
    model = ["--backbone", vit, "--device", "cpu"]
    files = [tmp_path / f"{name}.safetensors" for name in METHODS]
    for method, file in zip(METHODS, files, strict=True):
        code, out, err = run(capsys, "train", "fpt", train, "--val", test, "--method", method, "--epochs", 1,
                             "--variant", "fpt-plus", "--frozen-size", 48, "--out", file, *model)  # fmt: skip
        assert code == 0, err
        assert "side network for 3 classes" in out
    settings = "trained=" + ";".join(map(str, files))
    command = ["evaluate", test, "--methods", *METHODS, "--no-cache", *model]
    code, out, err = run(capsys, *command, "--set", settings, "frozen-size=48", "--out", tmp_path / "run")
    assert code == 0, err
    assert all(name in out for name in METHODS)
    recipes = [read_trained(file).notes.recipe["weight"] for file in files]
    assert recipes == [0.0, 18.0]
    frozen = load_frozen_vit(str(vit), device="cpu", size=48)
    methods = [get_method(name).override({"trained": files}) for name in METHODS]
    with pytest.raises(OtptError, match="for the classes covid, dog, normal; this data set has covid, normal"):
        evaluate(dataset(), frozen, methods=methods, out=tmp_path / "other")
    with pytest.raises(OtptError, match="frozen-size is 64, but the ViT was loaded for 48 pixels"):
        evaluate(dataset(), frozen, methods=[methods[0].override({"frozen-size": 64})], out=tmp_path / "other")
    with pytest.raises(OtptError, match="Method 'o-tpt' needs"):
        evaluate(dataset(), frozen, methods=["o-tpt"], out=tmp_path / "other")
    with pytest.raises(OtptError, match="Method 'fpt' needs"):
        evaluate(dataset(), tiny(), methods=methods, out=tmp_path / "other")
    code, _, err = run(capsys, *command, "--out", tmp_path / "none")
    assert (code, "make it with 'otpt train fpt'" in err) == (2, True)
    code, _, err = run(capsys, *command, "--set", settings, "frozen-size=64", "--out", tmp_path / "none")
    assert (code, "sees 48 pixels, not 64; give --set frozen-size=48" in err) == (2, True)


def test_the_system_loads_the_frozen_vit(vit: Path, frozen: FrozenViT) -> None:
    system = preparer_of(get_method("fpt[frozen-size=48]"))
    assert isinstance(system, EvaluationSystem)
    model = system.load_model(str(vit), "cpu", "float32")
    assert isinstance(model, Backbone)
    assert (model.fingerprint, model.preprocessing, model.text) == (frozen.fingerprint, frozen.preprocessing, None)
    pixels = torch.randn(3, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model.encode_pixels(pixels, chunk=1)[1:], frozen.encode_pixels(pixels, chunk=1)[1:])
    assert preparer_of(get_method("baple")).load_model(None, "cpu", "float32") is None  # type: ignore[attr-defined]


def test_files(frozen: FrozenViT, tmp_path: Path) -> None:
    network = FptNetwork("fpt", 3, 32, 2, 3)
    write_fpt(tmp_path / "a.safetensors", network, Notes(method="fpt"))
    again = fpt_network(read_trained(tmp_path / "a.safetensors"))
    assert again.arguments == network.arguments
    assert all(torch.equal(t, again.state_dict()[n]) for n, t in network.state_dict().items())
    torch.save({"classifier.weight": torch.zeros(3, 4)}, tmp_path / "best_validation_weights.pt")
    with pytest.raises(OtptError, match="not written by 'otpt train fpt'"):
        fpt_network(read_trained(tmp_path / "best_validation_weights.pt"))
    tensors = {name: tensor[..., :1] for name, tensor in network.state_dict().items()}
    write_trained(tmp_path / "b.safetensors", tensors, Notes(method="fpt", network=network.arguments))
    with pytest.raises(OtptError, match=r"b\.safetensors' do not fit its network: size mismatch"):
        fpt_network(read_trained(tmp_path / "b.safetensors"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"spec": "ViT-B-16/openai"}, "ViT-B-16/openai"),
        ({"size": 50}, "50 pixels"),
        ({"size": 0}, "0 pixels"),
        ({"precision": "bf16"}, "bf16"),
        ({"config": {"model_type": "clip"}}, "can freeze"),
        ({"config": {"model_type": "vit", "patch_size": 0}}, "can freeze"),
        ({"config": {"model_type": "vit", "image_size": [32, 32]}}, "can freeze"),
        ({"config": {"model_type": "vit", "hidden_act": "relu"}}, "can freeze"),
        ({"lost": "vit.encoder.layer.0.attention.attention.key.bias"}, r"blocks\.0\.key\.bias"),
    ],
)
def test_bad_models(changes: dict[str, Any], words: str, vit: Path, tmp_path: Path) -> None:
    config, lost = changes.pop("config", None), changes.pop("lost", None)
    state = torch.load(vit / "pytorch_model.bin", weights_only=True)
    state.pop(lost, None)
    torch.save(state, tmp_path / "pytorch_model.bin")
    text = (vit / "config.json").read_text() if config is None else json.dumps(config)
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(OtptError, match=words):
        load_frozen_vit(**{"spec": str(tmp_path), "device": "cpu", "size": 48, **changes})


SMALL = FptRecipe(epochs=2, batch=4, variant="fpt-plus")


@pytest.mark.parametrize("rows", ["classifier", "prompts"])
def test_a_step_is_the_literal_one(rows: str, frozen: FrozenViT) -> None:
    """Cross-entropy and 18 times the term; the gradient clipped at norm one."""
    recipe = replace(SMALL, weight=18.0, rows=rows)
    network, twin = (FptNetwork("fpt-plus", 3, 32, 2, 3) for _ in range(2))
    for fusion in network.fusions:
        fusion.dropout.p = 0.0
    twin.load_state_dict(network.state_dict())
    twin.eval()
    pixels, labels = torch.randn(2, 3, 128, 128), torch.tensor([0, 2])
    keys_values = frozen.keys_values(torch.randn(2, 3, 48, 48), network.frozen_blocks)
    units = [twin.classifier.weight] if rows == "classifier" else [fusion.prompts for fusion in twin.fusions]
    term = sum(literal_householder(F.normalize(unit, dim=-1)) for unit in units) / len(units)
    logits = twin(pixels, keys_values)
    loss = F.cross_entropy(logits, labels) + 18.0 * term
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in twin.parameters()]).norm()
    found = fpt_step(network, recipe, pixels, keys_values, labels)
    torch.testing.assert_close(found.logits, logits.detach(), rtol=0, atol=1e-5)
    for gradient, parameter in zip(found.gradients, twin.parameters(), strict=True):
        expected = parameter.grad * min(1.0, 1.0 / (float(norm) + 1e-6))
        torch.testing.assert_close(gradient, expected, rtol=0, atol=2e-5)


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
def test_training_is_the_same_again_and_from_stored_keys(frozen: FrozenViT, tmp_path: Path) -> None:
    data = dataset(NAMES, each=2)
    found = [train_fpt(frozen, data, SMALL, keep=keep) for keep in (None, tmp_path, tmp_path)]
    for name, tensor in found[0].state_dict().items():
        assert torch.equal(tensor, found[1].state_dict()[name]), name
        assert torch.equal(tensor, found[2].state_dict()[name]), name


def test_the_best_epoch_by_validation_is_taken(frozen: FrozenViT, monkeypatch: pytest.MonkeyPatch) -> None:
    data, areas, seen = dataset(NAMES, each=1), iter([0.9, 0.4]), []
    monkeypatch.setattr("otpt_medical.training.macro_auc", lambda *_: next(areas))
    best = train_fpt(frozen, data, SMALL, validation=data, on_epoch=lambda epoch, auc: seen.append(auc))
    last = train_fpt(frozen, data, SMALL)
    monkeypatch.setattr(FptRecipe, "rate", lambda recipe, epoch: recipe.learning_rate if epoch == 0 else 0.0)
    first = train_fpt(frozen, data, SMALL)
    assert seen == [0.9, 0.4]
    assert not torch.equal(best.classifier.weight, last.classifier.weight)
    assert torch.equal(best.classifier.weight, first.classifier.weight)


def test_augmentation_is_keyed_by_image_and_epoch() -> None:
    image = dataset()[0].source
    make = lambda epoch, name="p": augmented_side_pixels(image, 32, seed=1, image_id=name, epoch=epoch)  # type: ignore[arg-type]  # noqa: E731
    assert torch.equal(make(0), make(0))
    assert not torch.equal(make(0), make(1))
    assert not torch.equal(make(0), make(0, "q"))


def test_bad_training(frozen: FrozenViT) -> None:
    with pytest.raises(OtptError, match="diverged in epoch 1"):
        train_fpt(frozen, dataset(NAMES, each=2), replace(SMALL, learning_rate=1e30))
    with pytest.raises(OtptError, match="'covid', 'dog', 'normal'"):
        train_fpt(frozen, dataset(NAMES, each=1), SMALL, validation=dataset(("covid", "dog", "normal"), each=1))
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

    monkeypatch.setattr("otpt_medical.commands.train_fpt", train)
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
