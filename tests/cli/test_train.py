"""``otpt train`` from images to files, and ``otpt evaluate --context`` with them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from oracles.command import run
from oracles.models.tiny import open_clip_local_dir
from PIL import Image

from otpt.prompts.learned import CoopContext, MaplePrompts, fingerprint, read_learned

pytestmark = pytest.mark.slow

NAMES = ("cat", "sea")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Images in class folders, a tiny model, and a cache of their own."""
    random = np.random.default_rng(0)
    for label, name in enumerate(NAMES):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(3):
            values = random.integers(0, 120, (6, 6, 3), dtype=np.uint8)
            values[..., label] += 120
            Image.fromarray(values).resize((40, 40)).save(tmp_path / "data" / name / f"{i}.png")
    open_clip_local_dir(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OTPT_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_train_and_evaluate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--backbone", "tiny", "--device", "cpu", "--shots", 2, "--epochs", 2)
    code, out, err = run(
        capsys, "train", "coop", "data", *common, "--crops", 2, "--out", "coop.safetensors", "coop/model.pth.tar-2"
    )
    assert code == 0, err
    assert "Learned from 4 images of 2 classes" in out
    assert err.count("otpt: epoch") == 2
    both = [read_learned(name) for name in ("coop.safetensors", "coop/model.pth.tar-2")]
    assert all(isinstance(each, CoopContext) for each in both)
    assert fingerprint(both[0]) == fingerprint(both[1])
    assert {each.class_names for each in both} == {NAMES}
    assert fingerprint(CoopContext(both[0].vectors, ("cat", "dog"))) != fingerprint(both[0]), "dac-base looks at them"

    code, out, _ = run(capsys, "train", "coop", "data", *common, "--tokens", 3, "--class-specific", "--no-cache")
    assert code == 0
    own = read_learned("data-coop.safetensors")
    assert isinstance(own, CoopContext)
    assert own.vectors.shape == (2, 3, 64)
    assert own.class_names == NAMES

    code, out, _ = run(capsys, "train", "maple", "data", *common, "--out", "maple.safetensors", "--json")
    assert code == 0
    *epochs, end = map(json.loads, out.splitlines())
    assert [epoch["epoch"] for epoch in epochs] == [1, 2]
    assert end["files"] == ["maple.safetensors"]
    learned = read_learned("maple.safetensors")
    assert isinstance(learned, MaplePrompts)
    assert learned.depth == 2

    predict = ("predict", "data/cat/0.png", "--classes", *NAMES, "--backbone", "tiny", "--device", "cpu", "--json")
    files = ("coop.safetensors", "maple.safetensors")
    names = ("zero-shot", "coop", "coop+o-tpt", "maple")
    code, out, err = run(capsys, *predict, "--views", 6, "--method", *names, "--context", *files)
    assert code == 0, err
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["method"] for answer in answers] == list(names)
    assert len({answer["confidence"] for answer in answers}) == 4
    others = ("predict", "data/cat/0.png", "--classes", "teapot", "sofa", *predict[5:])
    code, out, err = run(capsys, *others, "--views", 6, "--method", "coop", "coop+dac-base", "--context", files[0])
    assert code == 0, err
    assert len({json.loads(line)["confidence"] for line in out.splitlines()}) == 2, "of classes that it never saw"
    code, _, err = run(capsys, *predict, "--method", "coop", "--context", files[0], "--prompt", "a photo of a")
    assert (code, "no method starts from words (coop)" in err) == (2, True), err
    code, _, err = run(capsys, *predict, "--context", "maple.safetensors")
    assert (code, "take 'maple+confident-half' in place of 'confident-half'" in err) == (2, True), err

    methods = ("zero-shot", "coop", "coop+o-tpt", "maple", "maple+o-tpt")
    evaluate = ("evaluate", "data", "--backbone", "tiny", "--device", "cpu", "--views", 12, "--methods", *methods)
    code, out, err = run(capsys, *evaluate, "--context", "coop.safetensors", "maple.safetensors", "--json")
    assert code == 0, err
    found = {(score["method"], score["prompt"]) for score in json.loads(out)["scores"]}
    prompts = {"zero-shot": "a photo of a", "maple": "maple", "coop": "coop"}
    assert found == {(method, prompts[method.split("+")[0]]) for method in methods}


def test_what_cannot_be_used(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def sentence(*arguments: object) -> str:
        code, _, err = run(capsys, *arguments)
        assert code == 2
        return err

    model = ("--backbone", "tiny", "--device", "cpu")
    assert "number of shots is 0" in sentence("train", "coop", "data", "--shots", 0, *model)
    assert "number of images in a batch is 0" in sentence("train", "maple", "data", "--batch", 0, *model)
    for seed in (-1, 2**70):
        assert f"seed is {seed}; expected 0 to" in sentence("train", "coop", "data", "--seed", seed, *model)
    assert "asked for 5 prompts per layer; expected 1 to 4" in sentence("train", "maple", "data", "--tokens", 5, *model)
    assert "number of context tokens is 0" in sentence("train", "coop", "data", "--tokens", 0, "--no-cache", *model)
    assert "room for 1 to 2" in sentence("train", "maple", "data", "--depth", 9, *model)
    assert "has no splits" in sentence("train", "coop", "data", "--split", "val", *model)
    assert "give its file with --context" in sentence("evaluate", "data", "--methods", "coop", *model)
    assert "learned prompt" in sentence("predict", "data/cat/0.png", "--classes", *NAMES, "--method", "coop", *model)
    torch.save({"state_dict": {"ctx": torch.zeros(4, 512)}}, "wide.pt")
    assert "512 wide" in sentence("evaluate", "data", "--methods", "coop", "--context", "wide.pt", *model)
