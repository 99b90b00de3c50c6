"""PromptSmooth: its noise, its step against a literal one, its votes; few-shot; certificates end to end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from medical_bench import dataset, folder, picture, tiny
from open_clip.tokenizer import SimpleTokenizer
from oracles.command import run
from oracles.householder import literal_householder
from oracles.literal import LiteralTuner
from oracles.medical_models import write_plip
from oracles.models import open_clip_local_dir, tiny_preprocessing, tiny_vit
from scipy import stats
from torch import Tensor

import otpt
from otpt.errors import OtptError
from otpt.evaluation import evaluate
from otpt.medical.promptsmooth import Smoother, Smoothing, noisy_copies
from otpt.medical.promptsmooth.certification import CertifiedPicture, certified_accuracy
from otpt.medical.settings import PROMPTS, MedicalSettings
from otpt.methods import get_method
from otpt.prompts import Prompt
from otpt.prompts.tokens import tokenize_prompts
from otpt.tuning import TextSide

METHODS = ("promptsmooth", "promptsmooth+o-tpt")
NAMES = ("cat", "dog", "red panda")


def copies_of(clean: Tensor, **changes: object) -> Tensor:
    settings = {"sigma": 0.25, "count": 6, "seed": 3, "picture_id": "p", "batch": 4, **changes}
    return torch.cat(list(noisy_copies(clean, tiny_preprocessing(), **settings)))  # type: ignore[arg-type]


def test_published_constants() -> None:
    published = Smoothing()
    assert (published.copies, published.selection, published.samples, published.alpha) == (100, 100, 10_000, 0.001)
    assert published.batch == 100
    for name in METHODS:
        method = get_method(name)
        assert (method.selected, method.steps, method.learning_rate, method.weight_decay) == (1.0, 1, 5e-3, 0.01)
    assert dict(get_method(METHODS[1]).objectives) == {"entropy": 1.0, "orthogonality": 18.0}
    assert (PROMPTS["kather"].words, PROMPTS["kather"].tokens) == ("An H&E image patch of", 5)


def test_kather_prompt_tunes_five_of_seven_tokens() -> None:
    tower = tiny().text
    found = tokenize_prompts(tower, ["mucus"], PROMPTS["kather"])
    assert found.slots.tolist() == [[1, 2, 3, 4, 5]]
    assert found.ids[0, 1:8].tolist() == SimpleTokenizer().encode("an h&e image patch of")
    assert found.ids[0, 1:6].tolist() == SimpleTokenizer().encode("an h & e image")


def test_noise_is_gaussian_in_pixel_space_and_not_clamped() -> None:
    pre = tiny_preprocessing()
    mean, std = (torch.tensor(values)[:, None, None] for values in (pre.mean, pre.std))
    clean = (torch.ones(3, 32, 32) - mean) / std  # white: half of the noise leads out of [0, 1]
    noise = copies_of(clean, count=40) * std + mean - 1
    assert noise.std().item() == pytest.approx(0.25, rel=0.01)
    assert noise.mean().item() == pytest.approx(0, abs=0.005)
    assert (noise > 0.3).float().mean().item() == pytest.approx(0.115, abs=0.01)


@pytest.mark.equality
def test_noise_depends_on_seed_picture_and_purpose_alone() -> None:
    clean = torch.zeros(3, 32, 32)
    found = copies_of(clean)
    assert torch.equal(found, copies_of(clean, batch=5))
    assert torch.equal(found[:3], copies_of(clean, count=3))
    for change in ({"seed": 4}, {"picture_id": "q"}, {"purpose": "selection"}):
        assert not torch.isclose(found, copies_of(clean, **change)).any(dim=-1).all()


@pytest.mark.parametrize("name", METHODS)
def test_the_step_is_the_literal_one(name: str) -> None:
    """torch's AdamW on all copies, whole sentences through the model's own tower, in float64."""
    backbone = tiny("float64")
    smoother = Smoother(backbone, Smoothing(copies=7, batch=4))
    text = TextSide(backbone, NAMES, Prompt("a photo of a"))
    plan = get_method(name).plan("fine-grained")
    assert plan is not None
    tuned = smoother.tune(picture(1), text, [plan], seed=3, picture_id="p")

    copies = torch.cat(list(noisy_copies(tuned.clean, backbone.preprocessing, 0.25, 7, seed=3, picture_id="p")))
    features = backbone.encode_pixels(copies)
    literal = LiteralTuner(tiny_vit(dtype=torch.float64), SimpleTokenizer(), NAMES)
    context = literal.start.clone().requires_grad_()
    optimiser = torch.optim.AdamW([context], lr=5e-3, weight_decay=0.01)
    texts = literal.text_features(context)
    mean = (backbone.logit_scale * features @ texts.mT).softmax(dim=-1).mean(dim=0)
    loss = -(mean * mean.log()).sum()
    if "o-tpt" in name:
        loss = loss + 18 * literal_householder(texts)
    loss.backward()
    optimiser.step()
    expected = literal.text_features(context.detach())
    torch.testing.assert_close(tuned.text_features[0], expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(tuned.feature, backbone.encode_pixels(tuned.clean[None])[0])
    assert not torch.allclose(expected, texts.detach(), atol=1e-4)


def test_votes_count_every_copy_once() -> None:
    backbone = tiny()
    smoother = Smoother(backbone, Smoothing(copies=4, batch=5))
    text = TextSide(backbone, NAMES, Prompt("a photo of a"))
    plans = [plan for name in METHODS if (plan := get_method(name).plan("fine-grained")) is not None]
    tuned = smoother.tune(picture(2), text, plans, seed=0, picture_id="p")
    votes = smoother.votes(tuned, text, 12, "selection", seed=0, picture_id="p")
    copies = list(
        noisy_copies(tuned.clean, backbone.preprocessing, 0.25, 12, seed=0, picture_id="p", purpose="selection")
    )
    for row, texts in zip(votes, tuned.text_features, strict=True):
        labels = (backbone.encode_pixels(torch.cat(copies)) @ texts.mT).argmax(dim=1)
        assert row.tolist() == [int((labels == label).sum()) for label in range(3)]


def settings(**changes: object) -> MedicalSettings:
    small = Smoothing(copies=5, samples=20, selection=6)
    return MedicalSettings(**{"methods": METHODS, "part_size": 4, "smoothing": small, **changes})  # type: ignore[arg-type]


@pytest.mark.equality
def test_evaluation_end_to_end_on_plip(tmp_path: Path) -> None:
    write_plip(tmp_path / "plip")
    backbone = otpt.load_backbone(str(tmp_path / "plip"), device="cpu")
    data = dataset(("adipose tissue", "mucus"), each=3, name="kather-500")
    result = evaluate(data, backbone, settings(save_probabilities=True), out=tmp_path / "run")
    assert [(s.method, s.metrics.pictures) for s in result.scores if s.metrics] == [(name, 6) for name in METHODS]
    assert {score.prompt for score in result.scores} == {"An H&E image patch of (5 tokens tuned)"}
    again = evaluate(data, backbone, settings(save_probabilities=True), out=tmp_path / "again")
    assert (tmp_path / "run/metrics.json").read_bytes() == (tmp_path / "again/metrics.json").read_bytes()
    assert again.scores[0].mean_cosine != again.scores[1].mean_cosine
    assert result.run.config["datasets"][0]["system"]["sigma"] == 0.25


def test_votes_as_confidence(tmp_path: Path) -> None:
    data = dataset(each=2)
    result = evaluate(data, tiny(), settings(confidence="votes", save_probabilities=True), out=tmp_path / "run")
    rows = [row for item in result.run.items for row in result.run.read(item).table.to_pylist()]  # type: ignore[union-attr]
    for row in rows:
        shares = np.array(row["probabilities"]) * 20
        assert np.allclose(shares, shares.round(), atol=1e-5)
        assert shares.sum() == pytest.approx(20)
        p_value = stats.binomtest(round(shares.max()), 20, 0.5).pvalue
        assert row["flags"] == (["abstained"] if p_value > 0.001 else [])


def test_few_shot_start_is_a_context_of_coop(tmp_path: Path) -> None:
    backbone = tiny()
    vectors = 0.3 * torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    torch.save(
        {"state_dict": {"ctx": vectors, "token_prefix": torch.zeros(2, 1, 64)}, "epoch": 50},
        tmp_path / "model.pth.tar-50",
    )
    chosen = settings(contexts=[tmp_path / "model.pth.tar-50"])
    (prompt,) = chosen.prompts_for(dataset())
    assert prompt.vectors is not None
    assert torch.equal(prompt.vectors, vectors)
    result = evaluate(dataset(each=1), backbone, chosen, out=tmp_path / "run")
    assert result.scores[0].prompt.startswith("vectors ")


def coop_file(path: Path, seed: int) -> Tensor:
    vectors = 0.3 * torch.randn(5, 64, generator=torch.Generator().manual_seed(seed))
    torch.save({"state_dict": {"ctx": vectors}}, path)
    return vectors


def test_a_data_set_has_a_few_shot_start_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = [coop_file(tmp_path / f"{name}.pt", seed) for seed, name in enumerate(("kather", "lung-x"))]
    monkeypatch.setenv("HOME", str(tmp_path))
    chosen = settings(contexts=["~/{dataset}.pt"])
    for expected, name in zip(vectors, ("kather", "lung/x"), strict=True):
        (prompt,) = chosen.prompts_for(dataset(name=name))
        assert prompt.vectors is not None
        assert torch.equal(prompt.vectors, expected)


def test_a_few_shot_start_is_given_once(tmp_path: Path) -> None:
    coop_file(tmp_path / "a.pt", 0)
    with pytest.raises(OtptError, match=r"The context 'vectors \w{8}' is given twice"):
        settings(contexts=[tmp_path / "a.pt", tmp_path / "a.pt"]).prompts_for(dataset())


def own_method(path: Path) -> Path:
    """The start prompt as it is, without the test-time step."""
    path.write_text('[fixed]\nsystem = "promptsmooth"\nobjectives = {}\n', encoding="utf-8")
    return path


@pytest.mark.equality
def test_a_method_without_objectives_keeps_the_start(tmp_path: Path) -> None:
    """Alone and beside one that tunes: the soft-max of the start's texts on the clean view, literally."""
    backbone, data = tiny("float64"), dataset(NAMES, each=1)
    vectors = coop_file(tmp_path / "a.pt", 1).double()
    start = LiteralTuner(tiny_vit(dtype=torch.float64), SimpleTokenizer(), NAMES, "x x x x x").text_features(vectors)
    fixed = str(own_method(tmp_path / "own.toml"))
    found = []
    for number, methods in enumerate(((fixed,), (METHODS[0], fixed))):
        chosen = settings(methods=methods, contexts=[tmp_path / "a.pt"], save_probabilities=True)
        result = evaluate(data, backbone, chosen, out=tmp_path / f"run-{number}")
        rows = [row for item in result.run.items for row in result.run.read(item).table.to_pylist()]  # type: ignore[union-attr]
        found.append([row["probabilities"] for row in rows if row["method"] == "fixed"])
    assert found[0] == found[1]
    smoother, text = Smoother(backbone, Smoothing()), TextSide(backbone, NAMES, Prompt.learned(vectors))
    for sample, shares in zip(data, found[0], strict=True):
        tuned = smoother.tune(sample.source, text, [None], seed=0, picture_id="p")  # type: ignore[arg-type]
        expected = (backbone.logit_scale * tuned.feature @ start.mT).softmax(dim=-1)
        assert shares == pytest.approx(expected.tolist(), abs=1e-6)


def test_certificates_go_on_after_a_picture_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_clip_local_dir(tmp_path / "tiny")
    data, out = folder(tmp_path / "data", each=2), tmp_path / "certificates.jsonl"
    (data / "covid/1.png").write_bytes(b"no picture")
    methods = [METHODS[0], own_method(tmp_path / "own.toml")]
    command = ["certify", data, "--backbone", tmp_path / "tiny", "--device", "cpu", "--out", out, "--copies", 4,
               "--selection", 5, "--samples", 20, "--json", "--methods", *methods]  # fmt: skip
    code, printed, err = run(capsys, *command)
    assert (code, "could not read 1 of the pictures" in err) == (3, True), err
    whole = out.read_bytes()
    rows = [json.loads(line) for line in whole.splitlines()[1:]]
    errors = {(row["id"], row["method"]) for row in rows if row["error"] is not None}
    assert errors == {("covid/1.png", METHODS[0]), ("covid/1.png", "fixed")}
    assert len(rows) == 8
    shown = json.loads(printed)
    assert shown["unreadable"] == 1
    for own in shown["methods"]:
        read = [row for row in rows if row["method"] == own["method"] and row["error"] is None]
        assert own["abstained"] == sum(row["prediction"] is None for row in read) / 3
        right = [row["radius"] for row in read if row["prediction"] == row["label"]]
        assert own["certified_accuracy"]["0.1"] == sum(radius >= 0.1 for radius in right) / 3
    assert run(capsys, *command)[:2] == (3, printed)
    assert out.read_bytes() == whole
    for file in data.rglob("*.png"):
        file.write_bytes(b"no picture")
    code, printed, _ = run(capsys, *command[:-4], "--methods", METHODS[0], "--out", tmp_path / "none.jsonl")
    assert (code, printed.splitlines()[1].split()) == (3, [METHODS[0], *["–"] * 7])


def test_the_level_of_the_votes_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_clip_local_dir(tmp_path / "tiny")
    command = ["evaluate", folder(tmp_path / "data", each=1), "--methods", METHODS[0], "--backbone", tmp_path / "tiny",
               "--device", "cpu", "--no-cache", "--copies", 3, "--out", tmp_path / "run", "--alpha", 0.9]  # fmt: skip
    code, _, err = run(capsys, *command)
    assert (code, "--alpha was given without --confidence votes" in err) == (2, True), err
    code, _, err = run(capsys, *command, "--confidence", "votes", "--samples", 4)
    assert code == 0, err
    config = json.loads((tmp_path / "run/config.json").read_text(encoding="utf-8"))
    assert (config["datasets"][0]["system"]["alpha"], config["datasets"][0]["system"]["samples"]) == (0.9, 4)


@pytest.mark.equality
def test_certify_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_clip_local_dir(tmp_path / "tiny")
    data = folder(tmp_path / "data", each=2)
    out = tmp_path / "certificates.jsonl"
    command = ["certify", data, "--backbone", tmp_path / "tiny", "--device", "cpu", "--out", out, "--copies", 4,
               "--selection", 5, "--samples", 30, "--sigma", 0.1]  # fmt: skip
    code, printed, err = run(capsys, *command)
    assert code == 0, err
    whole = out.read_bytes()
    rows = [json.loads(line) for line in whole.splitlines()[1:]]
    assert [row["method"] for row in rows] == [*METHODS] * 4
    bound_of_all = 0.001 ** (1 / 30)
    for row in rows:
        assert 0 <= row["lower_bound"] <= bound_of_all + 1e-12
        assert (row["prediction"] is None) == (row["lower_bound"] < 0.5)
    assert "certified accuracy %" in printed
    # stopped within the third picture, it goes on and ends with the same bytes
    lines = whole.splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:6]) + lines[6][:9])
    assert run(capsys, *command)[0] == 0
    assert out.read_bytes() == whole
    code, _, err = run(capsys, *command, "--sigma", 0.5)
    assert (code, "certificates of other settings" in err) == (2, True)
    code, _, err = run(capsys, *command, "--methods", "tpt")
    assert (code, "has no certificate" in err) == (2, True)
    code, _, err = run(capsys, *command, "--prompt-tokens", 2)
    assert (code, "without --prompt" in err) == (2, True)
    code, _, err = run(capsys, *command, "--split", "val")
    assert (code, "has no splits" in err) == (2, True)
    for seed, name in enumerate("ab"):
        vectors = torch.randn(4, 64, generator=torch.Generator().manual_seed(seed))
        torch.save({"state_dict": {"ctx": vectors}}, tmp_path / f"{name}.pt")
    code, _, err = run(capsys, *command, "--context", tmp_path / "a.pt", tmp_path / "b.pt")
    assert (code, "with one prompt; given were 2" in err) == (2, True)
    code, _, err = run(capsys, *command, "--official-names")
    assert (code, "for Food101 only" in err) == (2, True)


def test_certified_accuracy() -> None:
    rows = [
        CertifiedPicture(str(i), "m", 0, p, r, 0.9) for i, (p, r) in enumerate([(0, 0.3), (0, 0.1), (1, 9), (None, 0)])
    ]
    assert [certified_accuracy(rows, radius) for radius in (0.0, 0.2, 0.3, 0.5)] == [0.5, 0.25, 0.25, 0.0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"methods": ("promptsmooth", "o-tpt")}, "one system"),
        ({"methods": ("o-tpt",)}, "one system"),
        ({"confidence": "mean"}, "Unknown confidence"),
        ({"prompts": ["a photo of a"], "contexts": ["coop.pt"]}, "words and a learned context"),
    ],
)
def test_wrong_settings(changes: dict[str, object], words: str) -> None:
    with pytest.raises(OtptError, match=words):
        settings(**changes)


@pytest.mark.parametrize("wrong", [{"sigma": 0.0}, {"alpha": 1.0}, {"copies": 0}, {"samples": 0}])
def test_wrong_numbers(wrong: dict[str, float]) -> None:
    with pytest.raises(OtptError, match="expected"):
        Smoothing(**wrong)  # type: ignore[arg-type]


def test_a_classifier_says_where_to_run_it() -> None:
    with pytest.raises(OtptError, match="'otpt evaluate'"):
        otpt.Classifier(tiny(), "promptsmooth")
