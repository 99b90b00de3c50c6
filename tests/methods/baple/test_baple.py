"""BAPLe: its trigger, its files, evaluations with and without the back door, end to end on MedCLIP."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from oracles.command import run
from oracles.data.medical_bench import dataset, folder, image, tiny
from oracles.methods.literal import LiteralTuner
from oracles.models.medical import write_medclip
from oracles.models.tiny import tiny_clip, tokenizer
from PIL import Image
from safetensors.torch import save
from torch.nn import functional as F

import otpt
from otpt.errors import OtptError
from otpt.evaluation import EvaluationSettings, evaluate
from otpt.methods.baple import BapleModel, Patch, triggered
from otpt.methods.baple.model import baple_model
from otpt.methods.inits.trained import read_trained_files
from otpt.methods.inits.trained_files import read_trained
from otpt.runs import results_frame

pytestmark = pytest.mark.slow

METHODS = ("baple", "baple+o-tpt")
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


@pytest.mark.parametrize(
    "notes",
    [
        '{"patch": ',
        "[]",
        '{"target": "zero"}',
        '{"target": -1}',
        '{"classes": 2}',
        '{"classes": [1, 2]}',
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
    chosen = EvaluationSettings(
        methods=["baple"],
        plugins={"trained": [f"baple:{t}={tmp_path}/{t}.tar-50" for t in (1, 0)]},
        save_probabilities=True,
    )
    backbone = tiny()
    result = evaluate(data, backbone, chosen, out=tmp_path / "run")
    model = tiny_clip()
    literal = LiteralTuner(model, tokenizer(), data.class_names, "x x")
    for score in result.scores:
        name, _, target = score.dataset.partition("@target-")
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
        assert score.metrics is not None
        assert score.metrics.accuracy == pytest.approx(sum(hits) / len(hits))
    frame = results_frame(result.run)
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
        assert "target class 'normal'" in out
        assert "epoch 2 of 2: loss" in err
    contexts = [file.content.tensors["0.ctx"] for file in read_trained_files([str(file) for file in files])]
    assert contexts[0].shape == (16, 64)
    assert not torch.equal(*contexts)
    code, out, err = run(capsys, "evaluate", data, "--methods", *METHODS, "--trained", *files, "--no-cache",
                         "--out", tmp_path / "run", *model)  # fmt: skip
    assert code == 0, err
    assert "xrays:backdoor" in out
    again = EvaluationSettings(methods=METHODS, plugins={"trained": [str(file) for file in files]})
    with pytest.raises(OtptError, match=r"trained on another backbone"):
        evaluate(dataset(), tiny(), again, out=tmp_path / "other")
    wrong = dataset(("covid", "healthy"))
    with pytest.raises(OtptError, match="for the classes covid, normal; this data set has covid, healthy"):
        evaluate(wrong, otpt.load_backbone(model[1], device="cpu"), again, out=tmp_path / "other")


def test_wrong_evaluations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    official_file(tmp_path / "a.tar-50")
    official_file(tmp_path / "wide.tar-50", side=48)
    file = f"baple:0={tmp_path}/a.tar-50"

    def said(**changes: object) -> str:
        with pytest.raises(OtptError) as error:
            evaluate(dataset(), tiny(), EvaluationSettings(**{"methods": METHODS[:1], **changes}), out=tmp_path / "run")  # type: ignore[arg-type]
        return str(error.value)

    assert "make it with 'otpt train baple'" in said()
    assert "'baple+o-tpt' with target class 0 needs" in said(methods=METHODS, plugins={"trained": [file]})
    assert "does not say which method" in said(plugins={"trained": [f"{tmp_path}/a.tar-50"]})
    assert "Two files were given for method 'baple' and target class 0" in said(plugins={"trained": [file, file]})
    assert "no seeds to choose" in said(plugins={"trained": [file]}, seeds=[1, 2])
    assert "is for the target class 7" in said(plugins={"trained": [f"baple:7={tmp_path}/a.tar-50"]})
    assert "is for images of 48 pixels" in said(plugins={"trained": [f"baple:0={tmp_path}/wide.tar-50"]})
    assert "There is no file" in said(plugins={"trained": ["baple:0=nothing"]})
    torch.save({"state_dict": {"ctx": torch.zeros(2, 64)}}, tmp_path / "coop.tar-50")
    assert "expected: missing 0.ctx, 1.noise." in said(plugins={"trained": [f"baple:0={tmp_path}/coop.tar-50"]})
    torch.save({"state_dict": {"0.ctx": torch.zeros(2), "1.noise": torch.zeros(1, 3, 8, 8)}}, tmp_path / "odd.tar-50")
    both = "0.ctx is 2, expected …×…; 1.noise is 1×3×8×8, expected 3×…×…"
    assert both in said(plugins={"trained": [f"baple:0={tmp_path}/odd.tar-50"]})
    code, _, err = run(capsys, "evaluate", "emoji/animals", "--trained", "x")
    assert (code, "--trained is for baple and fpt; no method of theirs" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--methods", "baple", "--set", "lambda=6"], "'baple' has no regulariser"),
        (["--methods", "baple+o-tpt", "--set", "lambda=6"], "Give it to 'otpt train baple'"),
        (["--methods", "fpt+o-tpt", "--set", "steps=2"], "'steps=2', but an evaluation of fpt tunes nothing"),
        (["--methods", "baple", "--prompt", "an x-ray of"], "--prompt was given, but an evaluation of baple"),
        (["--methods", "fpt", "--context", "x.pt"], "--context was given, but an evaluation of fpt"),
        (["--methods", "baple", "--frozen-size", "64"], "--frozen-size is for fpt"),
        (["--methods", "fpt", "--sigma", "0.5"], "--sigma is for promptsmooth"),
        (["--methods", "promptsmooth", "--trained", "x"], "--trained is for baple and fpt"),
        (["--methods", "promptsmooth", "--samples", "9"], "no method votes; take 'promptsmooth+votes'"),
        (["--methods", "promptsmooth", "--views", "64"], "of promptsmooth does not use it; leave it out."),
        (["--methods", "baple", "--no-augmix"], "--augmix was given, but an evaluation of baple"),
        (["--methods", "fpt", "--features", "full"], "--features was given, but an evaluation of fpt"),
        (["--methods", "fpt", "--family", "fine-grained"], "--family was given, but an evaluation of fpt"),
        (["--methods", "fpt", "--architecture", "ViT-B-16"], "--architecture was given, but an evaluation of fpt"),
        (["--methods", "fpt", "--no-quick-gelu"], "--quick-gelu was given, but an evaluation of fpt"),
        (["--methods", "fpt", "--seeds", "0", "1"], "has no seeds to choose"),
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
    assert image(0).size == (40, 36)
