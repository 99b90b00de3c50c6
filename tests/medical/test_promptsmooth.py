"""PromptSmooth: its noise, its step against a literal one, its votes; certificates against binomial computations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from oracles.command import run
from oracles.data.medical_bench import dataset, folder, image, tiny
from oracles.methods.householder import literal_householder
from oracles.methods.literal import LiteralTuner
from oracles.models.medical import write_plip
from oracles.models.tiny import open_clip_local_dir, tiny_clip, tiny_preprocessing, tokenizer
from scipy import stats
from torch import Tensor

import otpt
from otpt.data import stratified
from otpt.errors import OtptError
from otpt.evaluation import Evaluation, evaluate
from otpt.methods import get_method, get_methods
from otpt.methods.state import prompt_state
from otpt.prompts import Prompt
from otpt.prompts.tokens import tokenize_prompts
from otpt.runs import Run
from otpt_medical.promptsmooth import (
    NOISE_PROMPTS,
    PromptSmooth,
    Smoother,
    certify,
    lower_confidence_bound,
    noisy_copies,
    predict_or_abstain,
)

pytestmark = pytest.mark.slow

METHODS = ("promptsmooth", "promptsmooth+o-tpt")
NAMES = ("cat", "dog", "red panda")


def copies_of(clean: Tensor, **changes: object) -> Tensor:
    settings = {"count": 6, "seed": 3, "image_id": "p", **changes}
    smoothing = PromptSmooth(batch=settings.pop("batch", 4))
    return torch.cat(list(noisy_copies(clean, tiny_preprocessing(), smoothing, **settings)))  # type: ignore[arg-type]


def test_published_constants() -> None:
    published = PromptSmooth()
    assert (published.copies, published.selection_votes, published.samples, published.alpha) == (
        100,
        100,
        10_000,
        0.001,
    )
    assert published.batch == 100
    for name in METHODS:
        method = get_method(name)
        assert (method.selection_ratio, method.steps, method.learning_rate, method.weight_decay) == (1.0, 1, 5e-3, 0.01)
    assert dict(get_method(METHODS[1]).objectives) == {"entropy": 1.0, "orthogonality": 18.0}
    assert (NOISE_PROMPTS["kather"].words, NOISE_PROMPTS["kather"].tokens) == ("An H&E image patch of", 5)


def test_kather_prompt_tunes_five_of_seven_tokens() -> None:
    tower = tiny().text
    found = tokenize_prompts(tower, ["mucus"], NOISE_PROMPTS["kather"])
    assert found.slots.tolist() == [[1, 2, 3, 4, 5]]
    assert found.ids[0, 1:8].tolist() == tokenizer().encode("an h&e image patch of")
    assert found.ids[0, 1:6].tolist() == tokenizer().encode("an h & e image")


def test_noise_is_gaussian_in_pixel_space_and_not_clamped() -> None:
    pre = tiny_preprocessing()
    mean, std = (torch.tensor(values)[:, None, None] for values in (pre.mean, pre.std))
    clean = (torch.ones(3, 32, 32) - mean) / std  # white: half of the noise leads out of [0, 1]
    noise = copies_of(clean, count=40) * std + mean - 1
    assert noise.std().item() == pytest.approx(0.25, rel=0.01)
    assert noise.mean().item() == pytest.approx(0, abs=0.005)
    assert (noise > 0.3).float().mean().item() == pytest.approx(0.115, abs=0.01)


@pytest.mark.equality
def test_noise_depends_on_seed_image_and_purpose_alone() -> None:
    clean = torch.zeros(3, 32, 32)
    found = copies_of(clean)
    assert torch.equal(found, copies_of(clean, batch=5))
    assert torch.equal(found[:3], copies_of(clean, count=3))
    for change in ({"seed": 4}, {"image_id": "q"}, {"purpose": "selection"}):
        assert not torch.isclose(found, copies_of(clean, **change)).any(dim=-1).all()


@pytest.mark.parametrize("name", METHODS)
def test_the_step_is_the_literal_one(name: str) -> None:
    """torch's AdamW on all copies, whole sentences through the model's own tower, in float64."""
    backbone = tiny("float64")
    text = prompt_state(backbone, NAMES, Prompt("a photo of a"))
    smoother = Smoother(backbone, text, PromptSmooth(copies=7, batch=4))
    config = get_method(name).tuning("fine-grained")
    assert config is not None
    tuned = smoother.tune(image(1), [config], seed=3, image_id="p")

    copies = torch.cat(list(noisy_copies(tuned.clean, backbone.preprocessing, PromptSmooth(), 7, seed=3, image_id="p")))
    features = backbone.encode_pixels(copies)
    literal = LiteralTuner(tiny_clip(dtype=torch.float64), tokenizer(), NAMES)
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
    text = prompt_state(backbone, NAMES, Prompt("a photo of a"))
    smoother = Smoother(backbone, text, PromptSmooth(copies=4, batch=5))
    configs = [config for name in METHODS if (config := get_method(name).tuning("fine-grained")) is not None]
    tuned = smoother.tune(image(2), configs, seed=0, image_id="p")
    found = smoother.labels(tuned, 12, "selection", seed=0, image_id="p")
    copies = list(
        noisy_copies(tuned.clean, backbone.preprocessing, PromptSmooth(), 12, seed=0, image_id="p", purpose="selection")
    )
    for row, texts in zip(found, tuned.text_features, strict=True):
        assert torch.equal(row, (backbone.encode_pixels(torch.cat(copies)) @ texts.mT).argmax(dim=1))


SMALL = {"copies": 5, "samples": 20, "selection-votes": 6}


def settings(methods: Sequence[str] = METHODS, **changes: object) -> Evaluation:
    small = [method.override(SMALL) for method in get_methods(methods)]
    return Evaluation(methods=small, shard_size=4, **changes)


@pytest.mark.equality
def test_evaluation_end_to_end_on_plip(tmp_path: Path) -> None:
    write_plip(tmp_path / "plip")
    backbone = otpt.load_backbone(str(tmp_path / "plip"), device="cpu")
    data = dataset(("adipose tissue", "mucus"), each=3, name="kather-500")
    result = evaluate(data, backbone, settings(save_probabilities=True), out=tmp_path / "run")
    assert dict(zip(result.frame.method, result.frame.images, strict=True)) == dict.fromkeys(METHODS, 6)
    assert set(result.frame.prompt) == {"An H&E image patch of (5 tokens tuned)"}
    again = evaluate(data, backbone, settings(save_probabilities=True), out=tmp_path / "again")
    assert result.frame.drop(columns="run").equals(again.frame.drop(columns="run"))
    assert again.frame.mean_cosine.nunique() == len(METHODS)
    facts = result.run.datasets[0].columns[0].prompt
    assert (facts["smoothing"]["sigma"], facts["noise_prompt"]["tokens"]) == (0.25, 5)
    other = evaluate(data, backbone, settings(prompts=["a slide of"]), out=tmp_path / "other")
    assert set(other.frame.prompt) == {"a slide of"}
    mine = [get_method("promptsmooth[noise-prompt=my slide of]").override(SMALL)]
    assert set(evaluate(data, backbone, methods=mine, out=tmp_path / "mine").frame.prompt) == {"my slide of"}


def rows_of(found: Run, method: str | None = None) -> list[dict[str, object]]:
    """Rows of the data set ``tiny`` under seed 0, of one method or of all."""
    columns = [column for column in found.columns("tiny") if method in (None, column[1])]
    return [row for column in columns for shard in found.shards("tiny", 0, column) for row in shard.table.to_pylist()]


def test_votes_as_confidence(tmp_path: Path) -> None:
    data = dataset(each=2)
    methods = [f"{name}+votes" for name in METHODS]
    result = evaluate(data, tiny(), settings(methods=methods, save_probabilities=True), out=tmp_path / "run")
    rows = rows_of(result.run)
    assert len(rows) == 8
    for row in rows:
        shares = np.array(row["probabilities"]) * 20
        assert np.allclose(shares, shares.round(), atol=1e-5)
        assert shares.sum() == pytest.approx(20)
        p_value = stats.binomtest(round(shares.max()), 20, 0.5).pvalue
        assert row["flags"] == (["abstained"] if p_value > 0.001 else [])


def coop_file(path: Path, seed: int) -> Tensor:
    vectors = 0.3 * torch.randn(5, 64, generator=torch.Generator().manual_seed(seed))
    torch.save({"state_dict": {"ctx": vectors}}, path)
    return vectors


def own_method(path: Path) -> Path:
    """The initial prompt without the test-time step; of CoOp in the second method."""
    text = '[fixed]\nadapt = "promptsmooth"\n[fixed-coop]\nadapt = "promptsmooth"\ninit = "coop"\n'
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.equality
def test_a_method_without_objectives_keeps_the_init(tmp_path: Path) -> None:
    """Alone and next to one that tunes: the softmax of the initial texts on the clean view, literally."""
    backbone, data = tiny("float64"), dataset(NAMES, each=1)
    vectors = coop_file(tmp_path / "a.pt", 1).double()
    initial = LiteralTuner(tiny_clip(dtype=torch.float64), tokenizer(), NAMES, "x x x x x").text_features(vectors)
    fixed = f"{own_method(tmp_path / 'own.toml')}:fixed-coop"
    found = []
    for number, methods in enumerate(((fixed,), ("coop+promptsmooth", fixed))):
        coop = [method.override({"context": tmp_path / "a.pt", **SMALL}) for method in get_methods(methods)]
        chosen = Evaluation(methods=coop, save_probabilities=True)
        result = evaluate(data, backbone, chosen, out=tmp_path / f"run-{number}")
        assert set(result.frame.prompt) == {"coop"}
        found.append([row["probabilities"] for row in rows_of(result.run, "fixed-coop")])
    assert found[0] == found[1]
    smoother = Smoother(backbone, prompt_state(backbone, NAMES, Prompt.learned(vectors)), PromptSmooth())
    for sample, shares in zip(stratified(data), found[0], strict=True):
        tuned = smoother.tune(sample.source, [None], seed=0, image_id="p")  # type: ignore[arg-type]
        expected = (backbone.logit_scale * tuned.feature @ initial.mT).softmax(dim=-1)
        assert shares == pytest.approx(expected.tolist(), abs=1e-6)


def certificates(path: Path) -> list[dict[str, object]]:
    """All rows of a run on the data set ``data`` under seed 3, the default of ``certify``."""
    found = Run(path)
    return [
        row
        for column in found.columns("data")
        for shard in found.shards("data", 3, column)
        for row in shard.table.to_pylist()
    ]


@pytest.mark.equality
def test_certify_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_clip_local_dir(tmp_path / "tiny")
    data = folder(tmp_path / "data", each=2)
    out = tmp_path / "run"
    command = ["certify", data, "--backbone", tmp_path / "tiny", "--device", "cpu", "--out", out, "--set", "copies=4",
               "selection-votes=5", "samples=30", "sigma=0.1", "--no-cache", "--shard-size", 2]  # fmt: skip
    code, printed, err = run(capsys, *command)
    assert code == 0, err
    rows = certificates(out)
    assert Counter(row["method"] for row in rows) == {f"{name}+certificate": 4 for name in METHODS}
    bound_of_all = 0.001 ** (1 / 30)
    for row in rows:
        assert 0 <= row["lower_bound"] <= bound_of_all + 1e-12
        assert ("abstained" in row["flags"]) == (row["lower_bound"] < 0.5)
        assert row["radius"] == pytest.approx(max(0.1 * stats.norm.ppf(row["lower_bound"]), 0))
    assert "certified accuracy %" in printed


@pytest.mark.parametrize("wrong", [{"sigma": 0.0}, {"alpha": 1.0}, {"copies": 0}, {"samples": 0}])
def test_wrong_numbers(wrong: dict[str, float]) -> None:
    with pytest.raises(OtptError, match=next(iter(wrong))):
        PromptSmooth(**wrong)  # type: ignore[arg-type]


def test_a_classifier_predicts_as_the_evaluation_does(tmp_path: Path) -> None:
    data, backbone = dataset(each=1), tiny()
    rows = rows_of(
        evaluate(data, backbone, methods=["promptsmooth"], save_probabilities=True, out=tmp_path / "run").run
    )
    classifier = otpt.Classifier(backbone, "promptsmooth").set_classes(data.class_names)
    for sample, row in zip(data, rows, strict=True):
        found = classifier.predict(sample.source)
        assert row["probabilities"] == found.probabilities.astype(np.float32).tolist()
        assert row["mean_cosine"] == found.mean_cosine


@pytest.mark.parametrize(("k", "n"), [(1, 1), (50, 100), (100, 100), (5031, 10_000), (9_990, 10_000)])
@pytest.mark.parametrize("alpha", [0.001, 0.9])
def test_bound_is_clopper_pearson(k: int, n: int, alpha: float) -> None:
    bound = lower_confidence_bound(k, n, alpha)
    assert bound == pytest.approx(stats.beta.ppf(alpha, k, n - k + 1), rel=1e-9)
    # and by its definition: at the bound, k successes or more have probability alpha
    assert stats.binom.sf(k - 1, n, bound) == pytest.approx(alpha, rel=1e-6)
    assert lower_confidence_bound(0, n, alpha) == 0


def test_radius_and_abstention() -> None:
    first = np.array([90, 10, 0])
    sure = certify(first, np.array([9_900, 60, 40]), sigma=0.25, alpha=0.001)
    bound = stats.beta.ppf(0.001, 9_900, 101)
    assert sure.label == 0
    assert sure.radius == pytest.approx(0.25 * stats.norm.ppf(bound), rel=1e-9)
    torn = certify(first, np.array([5_050, 4_950, 0]), sigma=0.25, alpha=0.001)
    assert (torn.label, torn.radius) == (None, 0.0)
    assert torn.lower_bound == pytest.approx(stats.beta.ppf(0.001, 5_050, 4_951), rel=1e-9)
    # if the second draw prefers another class, the first one's bound is low: an abstention, not another class
    assert certify(np.array([40, 60]), np.array([900, 100]), sigma=1.0, alpha=0.001).label is None


@pytest.mark.parametrize("votes", [(60, 40, 0), (70, 30, 5), (0, 0, 100), (30, 30, 30)])
@pytest.mark.parametrize("alpha", [0.001, 0.5])
def test_prediction_is_the_binomial_test(votes: tuple[int, ...], alpha: float) -> None:
    ordered = sorted(votes)
    p_value = stats.binomtest(ordered[-1], ordered[-1] + ordered[-2], 0.5).pvalue
    found = predict_or_abstain(np.array(votes), alpha)
    assert found == (None if p_value > alpha else int(np.argmax(votes)))
