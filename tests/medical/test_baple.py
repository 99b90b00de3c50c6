"""BAPLe: constants, trigger, one step against a literal one, resumed training, evaluation end to end on MedCLIP."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from medical_bench import dataset, folder, picture, tiny
from open_clip.tokenizer import SimpleTokenizer
from oracles.command import run
from oracles.householder import literal_householder
from oracles.literal import LiteralTuner
from oracles.medical_models import write_medclip
from oracles.models import open_clip_local_dir, tiny_vit
from PIL import Image
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional as F

import otpt
from otpt.errors import OtptError
from otpt.evaluation import evaluate
from otpt.medical.baple import BapleModel, BapleRecipe, Patch, train_baple, triggered
from otpt.medical.baple.judge import BackdoorDataset
from otpt.medical.baple.model import baple_model, read_start
from otpt.medical.baple.training import BapleTrainer
from otpt.medical.files import read_trained
from otpt.medical.settings import MedicalSettings
from otpt.medical.trained import read_trained_files
from otpt.methods import get_method

METHODS = ("baple", "baple+o-tpt")
MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073], dtype=torch.float64)[:, None, None]
STD = torch.tensor([0.26862954, 0.26130258, 0.27577711], dtype=torch.float64)[:, None, None]
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


def literal_step(
    before: dict[str, Tensor],
    pixels: Tensor,
    labels: Tensor,
    poisoned: Tensor,
    recipe: BapleRecipe,
    names: tuple[str, ...],
    summed: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """All in one graph through the model's own towers; SGD's first step by hand: (context, noise, summed gradient)."""
    model = tiny_vit(dtype=torch.float64)
    words = " ".join(["x"] * len(before["context"]))
    literal = LiteralTuner(model, SimpleTokenizer(), names, words)
    context = before["context"].clone().requires_grad_()
    noise = before["noise"].clone().requires_grad_()
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
    moved = (noise.detach() - 0.01 * summed.sign()).clamp(-8 / 255, 8 / 255)
    velocity = context.grad + 5e-4 * context.detach()
    return context.detach() - recipe.learning_rate * velocity, moved, summed


@pytest.mark.parametrize("weight", [0.0, 18.0])
def test_a_step_is_the_literal_one(weight: float) -> None:
    recipe = replace(SMALL, weight=weight)
    data = dataset()
    trainer = BapleTrainer(tiny("float64"), data, recipe, start=None, patch=Patch())
    generator = torch.Generator().manual_seed(0)
    pixels = torch.rand(5, 3, 32, 32, generator=generator, dtype=torch.float64)
    labels, poisoned = torch.tensor([0, 1, 1, 0, 1]), torch.tensor([True, False, True, False, False])
    before = trainer.state()
    before = {name: tensor.detach().clone() for name, tensor in before.items()}
    assert 0 <= float(before["noise"].min()) < 0.1 < 0.9 < float(before["noise"].max()) <= 1  # U[0, 1), not clamped yet
    trainer.step(pixels, labels, poisoned)
    expected = literal_step(before, pixels, labels, poisoned, recipe, data.class_names, torch.zeros(3, 32, 32))
    after = {name: tensor.detach().clone() for name, tensor in trainer.state().items()}
    torch.testing.assert_close(after["context"], expected[0], rtol=0, atol=1e-9)
    torch.testing.assert_close(after["noise"], expected[1], rtol=0, atol=1e-9)
    # the second step's sign is that of both gradients together
    trainer.step(pixels.flip(-1), labels, poisoned)
    second = literal_step(after, pixels.flip(-1), labels, poisoned, recipe, data.class_names, expected[2])
    torch.testing.assert_close(trainer.state()["summed"], second[2], rtol=0, atol=1e-8)
    torch.testing.assert_close(trainer.state()["noise"], second[1], rtol=0, atol=1e-9)
    alone = (after["noise"] - 0.01 * (second[2] - expected[2]).sign()).clamp(-8 / 255, 8 / 255)
    assert not torch.equal(alone, second[1])


def test_for_two_classes_the_term_has_its_closed_form() -> None:
    texts = F.normalize(torch.randn(2, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
    cosine = float(texts[0] @ texts[1])
    assert float(literal_householder(texts)) == pytest.approx(math.sqrt(1 + cosine**2) - 1, abs=1e-6)


def test_batches_without_poisoned_pictures_leave_the_noise_alone() -> None:
    trainer = BapleTrainer(tiny(), dataset(), SMALL, start=None, patch=Patch())
    noise = trainer.state()["noise"].clone()
    trainer.step(torch.rand(2, 3, 32, 32), torch.tensor([0, 1]), torch.tensor([False, False]))
    assert torch.equal(trainer.state()["noise"], noise)
    trainer.step(torch.rand(2, 3, 32, 32), torch.tensor([0, 1]), torch.tensor([True, True]))
    assert float(trainer.state()["noise"].abs().max()) <= 8 / 255 + 1e-8


@pytest.mark.equality
def test_training_is_the_same_again_and_after_a_stop(tmp_path: Path) -> None:
    backbone, data = tiny(), dataset()
    lines: list[str] = []
    whole = train_baple(backbone, data, SMALL, say=lines.append)
    assert [line.split(":")[0] for line in lines] == ["epoch 1 of 2", "epoch 2 of 2"]

    class Stop(Exception):
        pass

    def stop(line: str) -> None:
        raise Stop

    checkpoint = tmp_path / "unfinished.safetensors"
    with pytest.raises(Stop):
        train_baple(backbone, data, SMALL, checkpoint=checkpoint, say=stop)
    again: list[str] = []
    resumed = train_baple(backbone, data, SMALL, checkpoint=checkpoint, say=again.append)
    assert again[0] == "going on after epoch 1 of 2"
    assert not checkpoint.exists()
    assert torch.equal(resumed.context, whole.context)
    assert torch.equal(resumed.noise, whole.noise)
    other = train_baple(backbone, data, replace(SMALL, seed=2))
    assert not torch.equal(other.context, whole.context)


def test_start_files(tmp_path: Path) -> None:
    """One tensor as BAPLe's repository keeps it, or a context of CoOp."""
    vectors = torch.randn(2, 64)
    torch.save(vectors, tmp_path / "ctx.pt")
    torch.save({"state_dict": {"ctx": vectors}}, tmp_path / "model.pth.tar-50")
    assert torch.equal(read_start(tmp_path / "ctx.pt"), vectors)
    assert torch.equal(read_start(tmp_path / "model.pth.tar-50"), vectors)
    start = BapleTrainer(tiny(), dataset(), SMALL, start=vectors, patch=Patch()).state()["context"]
    torch.testing.assert_close(start.detach(), vectors)
    torch.save(torch.randn(2, 3, 4), tmp_path / "deep.pt")
    with pytest.raises(OtptError, match=r"one \(n, W\) tensor|not a learned prompt"):
        read_start(tmp_path / "deep.pt")


def test_a_start_has_its_own_number_of_vectors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_clip_local_dir(tmp_path / "tiny")
    torch.save(torch.randn(3, 64), tmp_path / "ctx.pt")
    out = tmp_path / "a.safetensors"
    command = ["train", "baple", folder(tmp_path / "xrays", each=1), "--target", 0, "--start", tmp_path / "ctx.pt",
               "--epochs", 1, "--backbone", tmp_path / "tiny", "--device", "cpu", "--out", out]  # fmt: skip
    code, _, err = run(capsys, *command, "--tokens", 8)
    assert (code, "--start and --tokens were given" in err) == (2, True), err
    assert run(capsys, *command, "--learning-rate", 0.05)[0] == 0
    recipe = read_trained(out).notes["recipe"]
    assert (recipe["tokens"], recipe["learning_rate"]) == (3, 0.05)


def test_a_training_that_diverges_is_told(tmp_path: Path) -> None:
    checkpoint = tmp_path / "unfinished.safetensors"
    with pytest.raises(OtptError, match="diverged in epoch 1: a gradient is not finite"):
        train_baple(tiny(), dataset(), replace(SMALL, first_learning_rate=1e38), checkpoint=checkpoint)
    assert not checkpoint.exists()


def test_training_in_half_precision_is_refused() -> None:
    with pytest.raises(OtptError, match="trained in float32 or float64, not in 'bf16'"):
        train_baple(tiny("bf16"), dataset(), SMALL)


@pytest.mark.parametrize(
    "notes",
    [
        '{"patch": ',
        "[]",
        '{"target": "zero"}',
        '{"classes": 2}',
        '{"patch": {"hue": 1}}',
        '{"patch": {"colour": "greenish"}}',
        '{"patch": {"size": "big"}}',
    ],
)
def test_damaged_notes(notes: str, tmp_path: Path) -> None:
    tensors = {"0.ctx": torch.zeros(2, 64), "1.noise": torch.zeros(3, 32, 32)}
    (tmp_path / "a.safetensors").write_bytes(save(tensors, {"otpt": notes}))
    with pytest.raises(OtptError, match=r"The notes in the file '.*a\.safetensors' are damaged"):
        baple_model(read_trained(tmp_path / "a.safetensors"))


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
    chosen = MedicalSettings(
        methods=["baple"], trained=[f"baple:{t}={tmp_path}/{t}.tar-50" for t in (1, 0)], save_probabilities=True
    )
    assert chosen.seeds == (0, 1)
    backbone = tiny()
    result = evaluate([data, BackdoorDataset(data)], backbone, chosen, out=tmp_path / "run")
    model = tiny_vit()
    literal = LiteralTuner(model, SimpleTokenizer(), data.class_names, "x x")
    for score in result.scores:
        own = models[score.seed]
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
            if score.dataset == "tiny:backdoor":
                pixels = triggered(pixels, own.noise, Patch())
            feature = F.normalize(model.encode_image(((pixels - MEAN) / STD).float()), dim=-1)
            found = int((feature @ texts.t()).argmax())
            hits.append(found == (score.seed if score.dataset == "tiny:backdoor" else sample.label))
        assert score.metrics is not None
        assert score.metrics.accuracy == pytest.approx(sum(hits) / len(hits))
    assert {score.dataset for score in result.scores} == {"tiny", "tiny:backdoor"}
    assert [average.deviation is not None for average in result.averages] == [True]


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
        assert "target class 'normal'" in out
        assert "epoch 2 of 2: loss" in err
    contexts = [file.content.tensors["0.ctx"] for file in read_trained_files([str(file) for file in files])]
    assert contexts[0].shape == (16, 64)
    assert not torch.equal(*contexts)
    code, out, err = run(capsys, "evaluate", data, "--methods", *METHODS, "--trained", *files, "--no-cache",
                         "--out", tmp_path / "run", *model)  # fmt: skip
    assert code == 0, err
    assert "xrays:backdoor" in out
    again = MedicalSettings(methods=METHODS, trained=[str(file) for file in files])
    assert again.seeds == (1,)
    with pytest.raises(OtptError, match=r"trained on another backbone"):
        evaluate(dataset(), tiny(), again, out=tmp_path / "other")
    wrong = dataset(("covid", "healthy"))
    with pytest.raises(OtptError, match="for the classes covid, normal; this data set has covid, healthy"):
        evaluate(wrong, otpt.load_backbone(model[1], device="cpu"), again, out=tmp_path / "other")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "flu"], "target class 'flu' is not known"),
        (["--target", "0", "--method", "fpt"], "trains baple and baple+o-tpt"),
        (["--target", "0", "--out", "x.pt"], "ends in .safetensors"),
        (["--target", "0", "--start", "nothing.pt"], "nothing.pt"),
        (["--target", "0", "--epochs", "0"], "number of epochs is 0"),
        (["--target", "0", "--poisoned", "1.5"], "share of poisoned pictures is 1.5"),
        (["--target", "0", "--poisoned", "0"], "share of poisoned pictures is 0.0; expected a number between 0 and 1"),
        (["--target", "0", "--learning-rate", "0"], "learning rate is 0.0"),
        (["--target", "0", "--method", "baple+o-tpt", "--set", "steps=2"], "'steps=2', which 'otpt train baple' does"),
    ],
)
def test_wrong_training_commands(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = folder(tmp_path / "xrays", each=1)
    code, _, err = run(capsys, "train", "baple", data, "--backbone", tmp_path / "none", *arguments)
    assert (code, words in err) == (2, True), err


def test_wrong_evaluations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    official_file(tmp_path / "a.tar-50")
    official_file(tmp_path / "wide.tar-50", side=48)
    file = f"baple:0={tmp_path}/a.tar-50"

    def said(**changes: object) -> str:
        with pytest.raises(OtptError) as error:
            evaluate(dataset(), tiny(), MedicalSettings(**{"methods": METHODS[:1], **changes}), out=tmp_path / "run")  # type: ignore[arg-type]
        return str(error.value)

    assert "make it with 'otpt train baple'" in said()
    assert "'baple+o-tpt' with target class 0 needs" in said(methods=METHODS, trained=[file])
    assert "does not say which method" in said(trained=[f"{tmp_path}/a.tar-50"])
    assert "Two files were given for method 'baple' and target class 0" in said(trained=[file, file])
    assert "no seeds to choose" in said(trained=[file], seeds=[1, 2])
    assert "is for the target class 7" in said(trained=[f"baple:7={tmp_path}/a.tar-50"])
    assert "is for pictures of 48 pixels" in said(trained=[f"baple:0={tmp_path}/wide.tar-50"])
    assert "There is no file" in said(trained=["baple:0=nothing"])
    torch.save({"state_dict": {"ctx": torch.zeros(2, 64)}}, tmp_path / "coop.tar-50")
    assert "expected: missing 0.ctx, 1.noise." in said(trained=[f"baple:0={tmp_path}/coop.tar-50"])
    torch.save({"state_dict": {"0.ctx": torch.zeros(2), "1.noise": torch.zeros(1, 3, 8, 8)}}, tmp_path / "odd.tar-50")
    both = "0.ctx is 2, expected …×…; 1.noise is 1×3×8×8, expected 3×…×…"
    assert both in said(trained=[f"baple:0={tmp_path}/odd.tar-50"])
    code, _, err = run(capsys, "evaluate", "emoji/animals", "--trained", "x")
    assert (code, "--trained is for the methods of medical systems" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--methods", "baple", "--set", "lambda=6"], "evaluation of baple tunes nothing"),
        (["--methods", "baple+o-tpt", "--set", "lambda=6"], "Give it to 'otpt train baple'"),
        (["--methods", "fpt+o-tpt", "--set", "steps=2"], "'steps=2', but an evaluation of fpt tunes nothing"),
        (["--methods", "baple", "--prompt", "an x-ray of"], "--prompt was given, but an evaluation of baple"),
        (["--methods", "fpt", "--context", "x.pt"], "--context was given, but an evaluation of fpt"),
        (["--methods", "baple", "--frozen-size", "64"], "it is for fpt"),
        (["--methods", "fpt", "--sigma", "0.5"], "it is for promptsmooth"),
        (["--methods", "promptsmooth", "--trained", "x"], "it is for baple and fpt"),
        (["--methods", "promptsmooth", "--samples", "9"], "without --confidence votes"),
        (["--methods", "promptsmooth", "--views", "64"], "of promptsmooth does not use it; leave it out."),
        (["--methods", "baple", "--no-augmix"], "--augmix was given, but an evaluation of baple"),
        (["--methods", "fpt", "--features", "full"], "--features was given, but an evaluation of fpt"),
        (["--methods", "fpt", "--family", "fine-grained"], "it is for promptsmooth"),
        (["--methods", "fpt", "--architecture", "ViT-B-16"], "it is for baple and promptsmooth"),
        (["--methods", "fpt", "--no-quick-gelu"], "--quick-gelu was given, but an evaluation of fpt"),
        (["--methods", "fpt", "--seeds", "0", "1"], "evaluation of FPT has no seeds to choose"),
    ],
)
def test_options_without_effect_are_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before data, files and models are looked at: none of them is there."""
    code, _, err = run(capsys, "evaluate", "nothing", *arguments)
    assert (code, words in err) == (2, True), err


def test_a_sweep_over_what_was_trained_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "sweep", "nothing", "--method", "baple+o-tpt", "--set", "lambda=1,2")
    assert (code, "evaluation of baple tunes nothing" in err) == (2, True), err


def test_fonts(tmp_path: Path) -> None:
    with pytest.raises(OtptError, match="Cannot read the font"):
        Patch(font=str(tmp_path / "none.ttf")).layers(64)
    assert picture(0).size == (40, 36)
