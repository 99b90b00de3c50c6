"""BAPLe: trigger, files, evaluations with and without the back door, training against a literal step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from oracles.command import run
from oracles.data.medical_bench import dataset, folder, tiny
from oracles.methods.householder import literal_householder
from oracles.methods.literal import LiteralTuner
from oracles.models.medical import write_medclip
from oracles.models.tiny import tiny_clip, tokenizer
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

import otpt
from otpt.errors import OtptError
from otpt.evaluation import Evaluation, evaluate
from otpt.methods import Method, get_method
from otpt_medical.baple import BapleModel, Patch, read_start, triggered
from otpt_medical.trained import read_trained_files
from otpt_medical.training import BapleRecipe, BapleTraining, train_baple

pytestmark = pytest.mark.slow


METHODS = ("baple", "baple+o-tpt")


def trained(*files: str, methods: tuple[str, ...] = METHODS[:1], **settings: object) -> list[Method]:
    """The methods with these files."""
    return [get_method(name).override({"trained": files, **settings}) for name in methods]


MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073], dtype=torch.float64)[:, None, None]
STD = torch.tensor([0.26862954, 0.26130258, 0.27577711], dtype=torch.float64)[:, None, None]


def test_trigger_is_a_word_at_the_bottom_left_and_a_bounded_noise() -> None:
    pixels = torch.full((2, 3, 224, 224), 0.5)
    word = triggered(pixels, torch.zeros(3, 224, 224), Patch())
    changed = (word[0] != 0.5).any(dim=0).nonzero()
    top, left = changed.min(dim=0).values.tolist()
    bottom, right = changed.max(dim=0).values.tolist()
    assert (left >= 14, bottom <= 224 - 15, top > 224 - 15 - 40, right < 80) == (True,) * 4
    green = torch.tensor([0x77, 0xAB, 0x59]) / 255
    covered = (word[0] - green[:, None, None]).abs().amax(dim=0) < 1e-6
    assert int(covered.sum()) > 20
    bright = triggered(pixels, torch.full((3, 224, 224), 0.7), Patch())
    assert float(bright.max()) == 1.0
    assert torch.equal(bright[0], bright[1])


def official_file(path: Path, *, width: int = 64, side: int = 32) -> BapleModel:
    """``model.pth.tar-50``: a Sequential of prompt learner and trigger."""
    generator = torch.Generator().manual_seed(5)
    context = 0.3 * torch.randn(2, width, generator=generator)
    noise = (torch.rand(3, side, side, generator=generator) - 0.5) * 16 / 255
    state = {"0.ctx": context, "0.token_prefix": torch.zeros(2, 1, width), "0.token_suffix": torch.zeros(2, 22, width)}
    torch.save({"state_dict": {**state, "1.noise": noise}, "epoch": 50, "val_result": None}, path)
    return BapleModel(context, noise)


def test_official_checkpoints_and_what_is_counted(tmp_path: Path) -> None:
    """Clean and back-door numbers by hand, from the files' tensors."""
    models = [official_file(tmp_path / f"{t}.tar-50") for t in range(2)]
    data = dataset(each=3)
    chosen = Evaluation(methods=trained(*(f"baple:{t}={tmp_path}/{t}.tar-50" for t in (1, 0))), save_probabilities=True)
    backbone = tiny()
    result = evaluate(data, backbone, chosen, out=tmp_path / "run")
    model = tiny_clip()
    literal = LiteralTuner(model, tokenizer(), data.class_names, "x x")
    for score in result.frame.itertuples():
        name, target = score.dataset, score.variant.removeprefix("target-")
        own = models[int(target)]
        texts = literal.text_features(own.context)
        hits = []
        for sample in data:
            image = sample.source
            assert isinstance(image, Image.Image)
            wide = image.resize((max(32, int(32 * 40 / 36)), 32), Image.Resampling.BICUBIC)
            left = round((wide.width - 32) / 2)
            pixels = (
                torch.from_numpy(np.array(wide.crop((left, 0, left + 32, 32)))).permute(2, 0, 1).float()[None] / 255
            )
            if name == "tiny:backdoor":
                pixels = triggered(pixels, own.noise, Patch())
            feature = F.normalize(model.encode_image(((pixels - MEAN) / STD).float()), dim=-1)
            found = int((feature @ texts.t()).argmax())
            hits.append(found == (int(target) if name == "tiny:backdoor" else sample.label))
        assert score.accuracy == pytest.approx(sum(hits) / len(hits))
    frame = result.frame
    assert set(zip(frame.dataset, frame.variant, frame.seed, strict=True)) == {
        (name, f"target-{target}", 0) for name in ("tiny", "tiny:backdoor") for target in (0, 1)
    }


@pytest.mark.filterwarnings("ignore:.*was learned from")
def test_end_to_end_on_medclip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_medclip(tmp_path / "medclip")
    data = folder(tmp_path / "xrays", each=3)
    model = ["--backbone", f"medclip:{tmp_path / 'medclip'}", "--device", "cpu"]
    files = []
    for method in METHODS:
        files.append(tmp_path / f"{method}.safetensors")
        code, out, err = run(capsys, "train", "baple", data, "--method", method, "--target", "normal", "--shots", 2,
                             "--epochs", 2, "--batch", 4, "--poisoned", 0.5, "--out", files[-1], *model)  # fmt: skip
        assert code == 0, err
        assert "epoch 2 of 2: loss" in err
    contexts = [file.tensors["0.ctx"] for file in read_trained_files(tuple(map(str, files)))]
    assert contexts[0].shape == (16, 64)
    assert not torch.equal(*contexts)
    settings = "trained=" + ";".join(map(str, files))
    code, out, err = run(capsys, "evaluate", data, "--methods", *METHODS, "--set", settings, "--no-cache",
                         "--out", tmp_path / "run", *model)  # fmt: skip
    assert code == 0, err
    assert "xrays:backdoor" in out
    again = Evaluation(methods=trained(*map(str, files), methods=METHODS))
    with pytest.raises(OtptError, match=r"trained on another backbone"):
        evaluate(dataset(), tiny(), again, out=tmp_path / "other")
    wrong = dataset(("covid", "healthy"))
    with pytest.raises(OtptError, match="for the classes covid, normal; this data set has covid, healthy"):
        evaluate(wrong, otpt.load_backbone(model[1], device="cpu"), again, out=tmp_path / "other")


@pytest.mark.parametrize(
    ("files", "changes", "words"),
    [
        ([], {}, "otpt train baple"),
        (["baple:0=a.tar-50"], {"methods": METHODS}, "'baple\\+o-tpt' with target class 0"),
        (["0=a.tar-50"], {"methods": METHODS}, "METHOD=FILE"),
        (["a.tar-50"], {}, "TARGET=FILE"),
        (["baple:0=a.tar-50", "baple:0=a.tar-50"], {}, "'baple' and target class 0"),
        (["0=a.tar-50"], {"seeds": [1, 2]}, "seeds"),
        (["baple:7=a.tar-50"], {}, "target class 7"),
        (["0=a.tar-50"], {"target": 1}, "with target class 1"),
        (["baple:0=wide.tar-50"], {}, "48 pixels"),
        (["baple:0=nothing"], {}, "nothing"),
        (["baple:0=coop.tar-50"], {}, r"has no 0\.ctx"),
        (["baple+o-tpt:0=a.tar-50"], {"methods": METHODS[1:], "lambda": 6}, "tunes nothing in an evaluation"),
    ],
)
def test_bad_input(
    files: list[str], changes: dict[str, object], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    official_file(tmp_path / "a.tar-50")
    official_file(tmp_path / "wide.tar-50", side=48)
    torch.save({"state_dict": {"ctx": torch.zeros(2, 64)}}, tmp_path / "coop.tar-50")
    settings = {name: changes.pop(name) for name in ("target", "lambda") if name in changes}
    methods = trained(*files, methods=changes.pop("methods", METHODS[:1]), **settings)  # type: ignore[arg-type]
    with pytest.raises(OtptError, match=words):
        evaluate(dataset(), tiny(), methods=methods, out=tmp_path / "run", **changes)  # type: ignore[arg-type]


def test_files_in_names_of_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files in brackets, by data set, for one target and one kind of images; each method has its own."""
    monkeypatch.chdir(tmp_path)
    official_file(tmp_path / "tiny.tar-50")
    official_file(tmp_path / "other.tar-50")
    names = ["baple[trained=1={dataset}.tar-50]", "baple+o-tpt[lambda=6]"]
    methods = [get_method(names[0]), get_method(names[1]).override({"trained": "baple+o-tpt[lambda=6]:1=other.tar-50"})]
    frame = evaluate(dataset(each=2), tiny(), methods=methods, out=tmp_path / "run").frame
    assert {(row.dataset, row.variant) for row in frame.itertuples()} == {
        ("tiny", "target-1"), ("tiny:backdoor", "target-1"),
    }  # fmt: skip
    assert set(frame.method) == set(names)
    same = [method.override({"target": 1, "backdoor": "on"}) for method in methods]
    frame = evaluate(dataset(each=2), tiny(), methods=same, out=tmp_path / "triggered").frame
    assert set(frame.dataset) == {"tiny:backdoor"}
    with pytest.raises(OtptError, match="different settings of target or backdoor"):
        evaluate(dataset(each=2), tiny(), methods=[same[0], methods[1]], out=tmp_path / "none")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--methods", "baple+o-tpt", "--set", "lambda=6"], "tunes nothing"),
        (["--methods", "baple", "--prompt", "an x-ray of"], "baple"),
        (["--methods", "baple", "--set", "frozen-size=64"], "frozen-size"),
        (["--methods", "fpt", "--set", "sigma=0.5"], "sigma"),
        (["--methods", "promptsmooth", "--set", "trained=x"], "trained"),
        (["--methods", "baple", "fpt"], "baple, fpt"),
    ],
)
def test_bad_options(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before data, files and models are looked for: none of them exists."""
    code, _, err = run(capsys, "evaluate", "nothing", *arguments)
    assert (code, words in err) == (2, True), err


def test_fonts(tmp_path: Path) -> None:
    with pytest.raises(OtptError, match=r"none\.ttf"):
        Patch(font=str(tmp_path / "none.ttf")).layers(64)


SMALL = BapleRecipe(target=0, shots=3, tokens=2, epochs=2, batch=4, poisoned=0.4)


def test_published_constants() -> None:
    recipe = BapleRecipe(target=1)
    assert (recipe.shots, recipe.seed, recipe.tokens, recipe.poisoned) == (32, 1, 16, 0.05)
    assert (recipe.epochs, recipe.batch, recipe.bound, recipe.noise_step) == (50, 16, 8 / 255, 0.01)
    assert (recipe.learning_rate, recipe.momentum, recipe.weight_decay) == (0.1, 0.9, 5e-4)
    assert recipe.rate(0) == 1e-3
    assert recipe.rate(1) == 0.1
    assert recipe.rate(26) == pytest.approx(0.05)
    assert (Patch().text, Patch().size, Patch().colour, Patch().offset) == ("Lab", 24, "#77ab59", 15)
    assert [dict(get_method(name).objectives) for name in METHODS] == [{}, {"orthogonality": 18.0}]


def literal_step(
    context: Tensor,
    noise: Tensor,
    pixels: Tensor,
    labels: Tensor,
    poisoned: Tensor,
    recipe: BapleRecipe,
    names: tuple[str, ...],
    summed: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """All in one graph through the model's own towers: (gradient of the context, noise, summed gradient)."""
    model = tiny_clip(dtype=torch.float64)
    literal = LiteralTuner(model, tokenizer(), names, " ".join(["x"] * len(context)))
    context, noise = context.clone().requires_grad_(), noise.clone().requires_grad_()
    texts = literal.text_features(context)
    cover, colour = (layer.double() for layer in Patch().layers(pixels.shape[-1]))
    pasted = pixels * (1 - cover) + colour * cover
    parts = []
    for which, seen, wanted in (
        (~poisoned, pixels, labels),
        (poisoned, (pasted + noise).clamp(0, 1), torch.full_like(labels, recipe.target)),
    ):
        features = F.normalize(model.encode_image((seen[which] - MEAN) / STD), dim=-1)
        parts.append(F.cross_entropy(model.logit_scale.exp() * features @ texts.t(), wanted[which]))
    loss = parts[0] + parts[1] + recipe.weight * literal_householder(texts)
    loss.backward()
    summed = summed + noise.grad
    return context.grad, (noise.detach() - 0.01 * summed.sign()).clamp(-8 / 255, 8 / 255), summed


@pytest.mark.parametrize("weight", [0.0, 18.0])
def test_a_step_is_the_literal_one(weight: float) -> None:
    recipe, names = replace(SMALL, weight=weight), dataset().class_names
    training = BapleTraining(tiny("float64"), names, recipe)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.rand(5, 3, 32, 32, generator=generator, dtype=torch.float64)
    labels, poisoned = torch.tensor([0, 1, 1, 0, 1]), torch.tensor([True, False, True, False, False])
    context, noise = training.context, training.noise
    assert 0 <= float(noise.min()) < 0.1 < 0.9 < float(noise.max()) <= 1  # U[0, 1), not clamped yet
    first = training.step(pixels, labels, poisoned)
    expected = literal_step(context, noise, pixels, labels, poisoned, recipe, names, torch.zeros(3, 32, 32))
    torch.testing.assert_close(first.gradients[0], expected[0], rtol=0, atol=1e-8)
    torch.testing.assert_close(training.noise, expected[1], rtol=0, atol=1e-9)
    assert first.labels.tolist() == [0, 1, 0, 0, 1]  # the poisoned ones are of the target class
    # the second step's sign is that of both gradients together
    noise = training.noise
    training.step(pixels.flip(-1), labels, poisoned)
    second = literal_step(context, noise, pixels.flip(-1), labels, poisoned, recipe, names, expected[2])
    torch.testing.assert_close(training.summed, second[2], rtol=0, atol=1e-8)
    torch.testing.assert_close(training.noise, second[1], rtol=0, atol=1e-9)
    alone = (noise - 0.01 * (second[2] - expected[2]).sign()).clamp(-8 / 255, 8 / 255)
    assert not torch.equal(alone, second[1])


def test_batches_without_poisoned_images_leave_the_noise_alone() -> None:
    training = BapleTraining(tiny(), dataset().class_names, SMALL)
    noise = training.noise.clone()
    training.step(torch.rand(2, 3, 32, 32), torch.tensor([0, 1]), torch.tensor([False, False]))
    assert torch.equal(training.noise, noise)
    training.step(torch.rand(2, 3, 32, 32), torch.tensor([0, 1]), torch.tensor([True, True]))
    assert float(training.noise.abs().max()) <= 8 / 255 + 1e-8


@pytest.mark.equality
def test_training_is_the_same_again() -> None:
    epochs: list[int] = []
    whole = train_baple(tiny(), dataset(), SMALL, on_epoch=lambda epoch: epochs.append(epoch.number))
    again = train_baple(tiny(), dataset(), SMALL)
    other = train_baple(tiny(), dataset(), replace(SMALL, seed=2))
    assert epochs == [1, 2]
    assert torch.equal(again.context, whole.context)
    assert torch.equal(again.noise, whole.noise)
    assert not torch.equal(other.context, whole.context)


def test_start_files(tmp_path: Path) -> None:
    """One tensor as in BAPLe's repository, or a context of CoOp."""
    vectors = torch.randn(2, 64)
    torch.save(vectors, tmp_path / "ctx.pt")
    torch.save({"state_dict": {"ctx": vectors}}, tmp_path / "model.pth.tar-50")
    assert torch.equal(read_start(tmp_path / "ctx.pt"), vectors)
    assert torch.equal(read_start(tmp_path / "model.pth.tar-50"), vectors)
    start = BapleTraining(tiny(), dataset().class_names, SMALL, start=vectors).context
    torch.testing.assert_close(start.detach(), vectors)
    torch.save(torch.randn(2, 3, 4), tmp_path / "deep.pt")
    with pytest.raises(OtptError, match=r"deep\.pt"):
        read_start(tmp_path / "deep.pt")


def test_a_training_that_diverges_stops() -> None:
    with pytest.raises(OtptError, match="diverged in epoch 1"):
        train_baple(tiny(), dataset(), replace(SMALL, warm_up=1e38))
    with pytest.raises(OtptError, match="bf16"):
        train_baple(tiny("bf16"), dataset(), SMALL)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "flu"], "flu"),
        (["--target", "0", "--method", "fpt"], "fpt"),
        (["--target", "0", "--out", "x.pt"], "x.pt"),
        (["--target", "0", "--start", "nothing.pt"], "nothing.pt"),
        (["--target", "0", "--epochs", "0"], "epochs is 0"),
        (["--target", "0", "--poisoned", "1.5"], "1.5"),
        (["--target", "0", "--learning-rate", "0"], "learning rate is 0.0"),
        (["--target", "0", "--method", "baple+o-tpt", "--set", "steps=2"], "steps=2"),
    ],
)
def test_bad_training(arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = folder(tmp_path / "xrays", each=1)
    code, _, err = run(capsys, "train", "baple", data, "--backbone", tmp_path / "none", *arguments)
    assert (code, words in err) == (2, True), err
