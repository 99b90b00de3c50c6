"""The episodic accuracy peers: reference values, and whole methods against literal computations."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from open_clip import SimpleTokenizer
from oracles.data.images import image
from oracles.methods import accuracy, field
from oracles.methods.literal import LiteralTuner, literal_reward
from oracles.methods.maple import maple_state
from oracles.models.tiny import tiny_backbone, tiny_clip
from torch import Tensor

import otpt
from otpt import Classifier, ViewRecipe
from otpt.methods import compose
from otpt.methods.aggregations import bandwidths, mode, mta, reliability, reliability_weights, zero
from otpt.methods.state import mean_cosine, prompt_state
from otpt.methods.text_shift import leading_count, leading_directions, sts, tps
from otpt.methods.tuner import tune
from otpt.objectives import (
    clip_reward,
    entropy_of_mean,
    mean_of_entropies,
    select_confident,
    view_entropies,
    weighted_entropies,
)
from otpt.prompts.learned import read_learned
from otpt.views import make_views

NAMES = ("cat", "dog", "red panda", "sea", "oak", "2012 BMW M3 coupe")
RECIPE = ViewRecipe(n_views=30)
SEEDS = (1, 2)
EXACT = {"rtol": 0, "atol": 1e-10}
MEANS = ("mean-probability", "mean-logit", "mean-feature")


@cache
def backbone() -> otpt.Backbone:
    return tiny_backbone("vit", "float64")


@cache
def oracle() -> LiteralTuner:
    return LiteralTuner(tiny_clip("vit", dtype=torch.float64), SimpleTokenizer(), NAMES)


def classifier(family: str = "fine-grained", *, official: bool = False) -> Classifier:
    return Classifier(backbone(), views=RECIPE, family=family, official_precision=official).set_classes(NAMES)


@cache
def pixels(seed: int) -> Tensor:
    made = make_views(image(seed), RECIPE, backbone().preprocessing, seed=0, image_id=str(seed), dtype=np.float64)
    return torch.from_numpy(made)


@cache
def features(seed: int) -> Tensor:
    found = oracle().model.encode_image(pixels(seed))
    return found / found.norm(dim=1, keepdim=True)


@cache
def texts(objective: str, seed: int, steps: int = 1, lr: float = 5e-3, weight_decay: float = 0.01) -> Tensor:
    """Text features (C, D) after the literal steps on one objective; "" takes none."""
    context = oracle().start
    if objective:
        options = {"steps": steps, "lr": lr, "weight_decay": weight_decay}
        context = oracle().predict(pixels(seed), weights={objective: 1.0}, **options)["context"]
    with torch.no_grad():
        return oracle().text_features(context)


def scale() -> float:
    return float(oracle().model.logit_scale.exp())


Literal = Callable[[Tensor, Tensor, Tensor], "Tensor | list[float]"]


def aggregated(how: Literal, objective: str, seed: int, *step: float) -> Tensor:
    """``how`` of (features, logits, texts) under tuned texts."""
    own = texts(objective, seed, *step)  # type: ignore[arg-type]
    return torch.as_tensor(how(features(seed), scale() * features(seed) @ own.T, own), dtype=torch.float64)


def zero_vote(_: Tensor, logits: Tensor, __: Tensor) -> list[float]:
    return accuracy.literal_zero(logits, scale())


def mta_mode(views: Tensor, logits: Tensor, own: Tensor) -> Tensor:
    return accuracy.literal_mta(views, logits, own, scale())


def reliable(views: Tensor, logits: Tensor, _: Tensor) -> Tensor:
    return accuracy.literal_reliability(views, logits)


def clean(_: Tensor, logits: Tensor, __: Tensor) -> Tensor:
    return logits[0].softmax(0)


def mean_of(what: str, seed: int) -> Literal:
    def how(views: Tensor, logits: Tensor, own: Tensor) -> Tensor:
        zero_shot = scale() * views @ texts("", seed).T
        return accuracy.literal_mean(what, views, logits, zero_shot, own, scale())

    return how


def shifted(kind: str, rate: float, seed: int) -> Tensor:
    own = accuracy.literal_shift(features(seed), texts("", seed), scale(), rate, kind)
    logits = scale() * features(seed) @ own.T
    if kind != "directions":
        return logits[0].softmax(0)
    zero_shot = scale() * features(seed) @ texts("", seed).T
    return accuracy.literal_mean("mean-probability", features(seed), logits, zero_shot, own, scale(), 0.1)


EXPECTED: dict[str, Callable[[int], Tensor]] = {
    "zero": partial(aggregated, zero_vote, ""),
    "tpt+zero": partial(aggregated, zero_vote, "entropy"),
    "mta": partial(aggregated, mta_mode, ""),
    "tpt+mta": partial(aggregated, mta_mode, "entropy"),
    "reliability": partial(aggregated, reliable, ""),
    "r-tpt": partial(aggregated, reliable, "pointwise-entropy"),
    "rlcf": lambda seed: aggregated(clean, "clip-reward", seed, 3, 7e-3, 5e-4),
    "tps": partial(shifted, "own", 1e-3),
    "tps-shared": partial(shifted, "shared", 1e-3),
    "sts": partial(shifted, "directions", 5e-3),
    **{name: lambda seed, name=name: aggregated(mean_of(name, seed), "", seed) for name in MEANS},
    **{f"tpt+{name}": lambda seed, name=name: aggregated(mean_of(name, seed), "entropy", seed) for name in MEANS},
}


@pytest.fixture(scope="module")
def found() -> dict[int, dict[str, otpt.Prediction]]:
    """By seed and method: all images and all methods together."""
    ids = [str(seed) for seed in SEEDS]
    answers = classifier().stream([image(seed) for seed in SEEDS], list(EXPECTED), image_ids=ids)
    return dict(zip(SEEDS, answers, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", EXPECTED)
def test_every_method_equals_the_literal_way(name: str, found: dict[int, dict[str, otpt.Prediction]]) -> None:
    for seed in SEEDS:
        expected = EXPECTED[name](seed)
        torch.testing.assert_close(torch.from_numpy(found[seed][name].probabilities), expected, **EXACT)
        assert found[seed][name].index == int(expected.argmax())


@pytest.mark.parametrize(("name", "kind"), [("tps", "own"), ("tps-shared", "shared"), ("sts", "directions")])
def test_the_rate_on_shifts(name: str, kind: str) -> None:
    answer = classifier("shift").compare(image(1), [name], image_id="1")[name]
    torch.testing.assert_close(torch.from_numpy(answer.probabilities), shifted(kind, 5e-3, 1), **EXACT)


def test_shifted_texts_are_those_of_the_results(found: dict[int, dict[str, otpt.Prediction]]) -> None:
    """Aggregations and the column of cosines see the texts that a shift left."""
    own = accuracy.literal_shift(features(1), texts("", 1), scale(), 1e-3, "own")
    gram = own @ own.T
    expected = (gram.sum() - gram.trace()) / (len(NAMES) * (len(NAMES) - 1))
    assert found[1]["tps"].mean_cosine == pytest.approx(expected.item(), abs=1e-12)
    answer = classifier().compare(image(1), ["tps+mta"], image_id="1")["tps+mta"]
    logits = scale() * features(1) @ own.T
    torch.testing.assert_close(
        torch.from_numpy(answer.probabilities), accuracy.literal_mta(features(1), logits, own, scale()), **EXACT
    )


def votes(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_a_tie_is_decided_by_the_first_of_the_remaining_views() -> None:
    logits = votes((9, 0, 0), (0, 8, 0), (0, 0, 7), (1, 6, 0), (5, 0, 0), (4, 0, 0), (3, 0, 0))
    found = zero(logits, 100.0, vote_ratio=0.3)  # two views vote: one for 0, one for 1; the third is for neither
    assert found.tolist() == pytest.approx([1 / 3, 2 / 3, 0], abs=1e-12)
    assert found.tolist() == pytest.approx(accuracy.literal_zero(logits, 100.0), abs=1e-12)


def test_a_tie_that_no_view_decides_goes_to_the_larger_logit_of_the_next_one() -> None:
    logits = votes((9, 0, 0), (0, 8, 0), (1, 2, 7), (0, 0, 4), (3, 0, 3.5), (0, 0, 1), (0, 0, 2))
    found = zero(logits, 100.0, vote_ratio=0.3)
    assert found.tolist() == pytest.approx([1 / 3, 2 / 3, 0], abs=1e-12)
    assert found.tolist() == pytest.approx(accuracy.literal_zero(logits, 100.0), abs=1e-12)


def test_a_tie_of_all_views_is_decided_by_the_most_confident_one() -> None:
    assert zero(votes((0, 8, 0), (9, 0, 0)), 100.0, vote_ratio=1.0).tolist() == pytest.approx([2 / 3, 1 / 3, 0])


@pytest.mark.parametrize("temperature", [2**-10, 0.01])
def test_votes_of_the_released_code_are_soft(temperature: float) -> None:
    """All views vote here: those that are nearly undecided show the difference."""
    found = zero(field.logits(), field.SCALE, vote_ratio=1.0, vote_temperature=temperature)
    expected = accuracy.literal_zero(field.logits(), field.SCALE, 1.0, temperature)
    assert found.tolist() == pytest.approx(expected, abs=1e-12)
    assert (found - zero(field.logits(), field.SCALE, vote_ratio=1.0)).abs().max() > 1e-4


def test_the_basis_is_made_once_for_a_class_list_and_its_signs_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(4)
    own = torch.nn.functional.normalize(torch.randn(12, 7, generator=generator, dtype=torch.float64) + 0.4, dim=1)
    views = torch.nn.functional.normalize(torch.randn(30, 7, generator=generator, dtype=torch.float64), dim=1)
    expected = accuracy.literal_shift(views, own, 20.0, 5e-3, "directions")
    torch.testing.assert_close(sts(20 * views @ own.T, views, own, 20.0), expected, **EXACT)
    calls: list[int] = []
    literal = torch.linalg.svd
    monkeypatch.setattr(torch.linalg, "svd", lambda *a, **k: calls.append(1) or literal(*a, **k))
    leading_directions(own), leading_directions(own.clone()), leading_directions(own + 1e-3)
    assert len(calls) == 1, "the first two are known; other texts are decomposed for themselves"
    basis = leading_directions(own)
    monkeypatch.setattr("otpt.methods.text_shift.leading_directions", lambda _: -basis)
    torch.testing.assert_close(sts(20 * views @ own.T, views, own, 20.0), expected, **EXACT)


def test_views_that_are_all_alike_have_a_mode() -> None:
    views = field.views()[:1].expand(10, -1)
    logits = field.logits()[:1]
    found = mta(views, logits.softmax(1).expand(10, -1), field.texts(), field.SCALE)
    torch.testing.assert_close(found, logits[0].softmax(0), **EXACT)


@pytest.mark.parametrize("what", MEANS)
@pytest.mark.parametrize(("fraction", "clean"), [(0.2, 0.0), (1.0, 0.5), (0.5, 0.25)])
def test_a_mean_over_a_fraction_of_the_views_and_the_clean_one(what: str, fraction: float, clean: float) -> None:
    name = f"tpt+{what}"
    method = compose(name).override({"mean-fraction": fraction, "clean-weight": clean})
    answer = classifier().compare(image(1), [method], image_id="1")[name]
    own, zero_shot = texts("entropy", 1), scale() * features(1) @ texts("", 1).T
    logits = scale() * features(1) @ own.T
    expected = accuracy.literal_mean(what, features(1), logits, zero_shot, own, scale(), fraction, clean)
    torch.testing.assert_close(torch.from_numpy(answer.probabilities), expected, **EXACT)


def test_a_logit_bias_is_no_part_of_the_reward() -> None:
    """SigLIP's: cosines are those of the features, and softmax does not see a constant."""
    config = compose("rlcf").tuning("shift")
    assert config is not None
    views = torch.stack([features(seed) for seed in SEEDS])
    biased = tiny_backbone("vit", "float64")
    biased.logit_bias = -90.0  # larger than all logits: mistaken for a part of the cosine, it would leave no reward
    plain, shifted = (tune(prompt_state(each, NAMES), views, [config])[config].logits for each in (backbone(), biased))
    torch.testing.assert_close(shifted + 90, plain, **EXACT)


@pytest.mark.usefixtures("registries")
def test_rlcf_with_prompts_in_both_towers(tmp_path: Path) -> None:
    """The same loss as a function of one's own, whose cosines come from the logits at the init."""

    @otpt.objective
    def own_reward(logits: Tensor, zero_shot: Tensor) -> Tensor:
        return literal_reward(logits[0], zero_shot[0] / 100)[None]  # of a batch of one image

    torch.save({"state_dict": maple_state("vit", 2)}, tmp_path / "maple.pt")
    clf = Classifier(backbone(), views=RECIPE).set_classes(NAMES)
    context = {"context": read_learned(tmp_path / "maple.pt")}
    numbers = {"steps": 2, "learning-rate": 7e-3, "weight-decay": 5e-4, **context}
    methods = [compose(name).override(numbers) for name in ("maple+rlcf", "maple+own-reward")]
    ours, own, start = clf.compare(image(1), [*methods, compose("maple").override(context)], image_id="1").values()
    np.testing.assert_allclose(ours.probabilities, own.probabilities, rtol=0, atol=1e-10)
    assert np.abs(ours.probabilities - start.probabilities).max() > 1e-4


RELIABLE_LOGITS = [17.372594997378, 18.247866508684, 18.278545626295, 15.948275390805, 16.570660344601]
MODE_LOGITS = [14.495003598, 18.559270440, 14.673902228, 8.439521106, 11.626637556]


def softmax(logits: list[float]) -> list[float]:
    return torch.tensor(logits, dtype=torch.float64).softmax(0).tolist()


def test_zero_counts_the_votes_of_nineteen_views() -> None:
    found = zero(field.logits(), field.SCALE)
    assert (19 * found).tolist() == pytest.approx([3, 4, 4, 5, 3], abs=1e-12)
    assert int(found.argmax()) == 3


def test_mta() -> None:
    features, probabilities = field.views(), field.logits().softmax(1)
    width = bandwidths(features, 0.3)
    assert width[:3].tolist() == pytest.approx([0.154647450507, 0.142618976751, 0.170695721537], abs=1e-12)
    centre, weights = mode(features, probabilities, width, 4.0, 0.2)
    assert (field.SCALE * field.texts() @ centre).tolist() == pytest.approx(MODE_LOGITS, abs=1e-9)
    assert weights.max().item() == pytest.approx(0.691473136, abs=1e-9)
    assert int(weights.argmax()) == 21
    found = mta(features, probabilities, field.texts(), field.SCALE)
    assert found.tolist() == pytest.approx(softmax(MODE_LOGITS), abs=1e-9)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (5e-3, [17.233757774103, 19.060970474217, 13.355546172416, 10.275610599162, 13.113341006538]),
        (1e-3, [17.210887555637, 19.047513860054, 13.491142767852, 10.382055196532, 13.096853716078]),
    ],
)
def test_tps(rate: float, expected: list[float]) -> None:
    shifted = tps(field.logits(), field.views(), field.texts(), field.SCALE, shift_rate=rate)
    assert (field.SCALE * shifted @ field.views()[0]).tolist() == pytest.approx(expected, abs=1e-11)


def test_r_tpt() -> None:
    logits = field.logits()
    chosen = select_confident(logits, 6)
    assert chosen.tolist() == [33, 29, 21, 5, 61, 56]
    assert mean_of_entropies(logits[chosen]).item() == pytest.approx(0.211340933118, abs=1e-12)
    assert entropy_of_mean(logits[chosen]).item() == pytest.approx(1.385735098263, abs=1e-12)
    weights = reliability_weights(field.views(), 20, 0.01)
    assert weights[0].item() == pytest.approx(0.000291797013, abs=1e-12)
    assert weights.max().item() == pytest.approx(0.241572994080, abs=1e-12)
    assert int(weights.argmax()) == 6
    assert reliability(field.views(), logits).tolist() == pytest.approx(softmax(RELIABLE_LOGITS), abs=1e-12)


def test_sts_counts_the_singular_values_above_the_threshold() -> None:
    sizes = torch.linalg.svdvals(field.texts())
    expected = [2.068049328933, 0.545251551308, 0.474468090663, 0.432303821924, 0.117754640621]
    assert sizes.tolist() == pytest.approx(expected, abs=1e-12)
    threshold = 1.106993364029  # ω(5/8) = 2.333125 times the median
    assert threshold == pytest.approx(2.333125 * expected[2], abs=1e-11)
    middle = torch.tensor([9.0, threshold, 0.474468090663, 0.1, 0.1], dtype=torch.float64)
    nudge = torch.tensor([0, 1e-9, 0, 0, 0], dtype=torch.float64)
    assert (leading_count(middle + nudge, 5, 8), leading_count(middle - nudge, 5, 8)) == (2, 1)
    assert leading_directions(field.texts()).shape == (8, 1)


def test_sts_keeps_at_least_one_direction() -> None:
    assert leading_directions(torch.eye(4, 6, dtype=torch.float64)).shape == (6, 1)


def test_rlcf() -> None:
    row = field.logits()[33]
    classes = row.argsort(descending=True)[:3]
    assert classes.tolist() == [3, 2, 4]
    cosines = row / field.SCALE
    rewards = 2.5 * cosines[classes] - 2.5 * cosines[classes].mean()
    assert rewards.tolist() == pytest.approx([0.403478163406, -0.121488754337, -0.281989409069], abs=1e-12)
    assert clip_reward(row[None], cosines[None]).item() == pytest.approx(-0.685525793607, abs=1e-12)


def test_the_fixture_is_the_one_of_the_field() -> None:
    assert mean_cosine(field.texts()).item() == pytest.approx(0.818944724618, abs=1e-12)
    expected = [17.204830152655, 19.043796010575, 13.524790793772, 10.408633232181, 13.092475586091]
    assert field.logits()[0].tolist() == pytest.approx(expected, abs=1e-12)
    assert view_entropies(field.logits())[0].item() == pytest.approx(0.437757060863, abs=1e-12)
    confidence, label = field.logits()[0].softmax(dim=0).max(dim=0)
    assert (confidence.item(), label.item()) == (pytest.approx(0.857800864686, abs=1e-12), 1)


def test_the_loss_of_ttl_over_all_views() -> None:
    assert weighted_entropies(field.logits()).item() == pytest.approx(0.485532041474, abs=1e-12)
