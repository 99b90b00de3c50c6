"""Functions of the user's own on every axis, against literal computations; and what is said when they go wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from open_clip import SimpleTokenizer
from oracles.command import run
from oracles.literal import LiteralTuner
from oracles.maple import maple_state
from oracles.models import open_clip_local_dir, tiny_backbone, tiny_clip
from PIL import Image
from torch import Tensor

import otpt
from otpt import Classifier, Method, OtptError, ViewRecipe
from otpt.data import Dataset
from otpt.evaluation import Settings, evaluate
from otpt.features import FeatureCache
from otpt.methods import compose, known_parts
from otpt.prompts.learned import CocoopContext, LearnedPrompt, read_learned

pytestmark = pytest.mark.usefixtures("registries")

NAMES = ("cat", "dog", "red panda", "sea")
RECIPE = ViewRecipe(n_views=20)
EXACT = {"rtol": 0, "atol": 1e-10}


def image(seed: int) -> Image.Image:
    small = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((48, 40), Image.Resampling.BICUBIC)


@cache
def backbone(precision: str = "float64") -> otpt.Backbone:
    return tiny_backbone("vit", precision)


def classifier(*contexts: LearnedPrompt, recipe: ViewRecipe = RECIPE) -> Classifier:
    return Classifier(backbone(), recipe=recipe, contexts=contexts).set_classes(NAMES)


def predicted(method: str | Method, seed: int = 1, *contexts: LearnedPrompt) -> Tensor:
    """Probabilities (C,) of an image by one method."""
    (found,) = classifier(*contexts).compare(image(seed), [method], image_id="p").values()
    return torch.from_numpy(found.probabilities)


def views(seed: int = 1) -> Tensor:
    """Unit features (V, D) of the same image."""
    return classifier().encode_views(image(seed), image_id="p")


def oracle() -> LiteralTuner:
    return LiteralTuner(tiny_clip("vit", dtype=torch.float64), SimpleTokenizer(), NAMES)


def tuned_context(weights: dict[str, float], own: Callable[[Tensor, Tensor, Tensor], Tensor], steps: int = 1) -> Tensor:
    """TPT's steps the literal way, with a term of one's own: f(logits of selected views, texts, initial texts)."""
    literal, features = oracle(), views()
    context = literal.start.clone().requires_grad_()
    optimiser = torch.optim.AdamW([context], lr=5e-3)
    initial = literal.text_features(literal.start)
    at_start = literal.logits(features, literal.start)
    entropies = -(at_start.softmax(1) * at_start.log_softmax(1)).sum(1)
    chosen = entropies.argsort()[:2]
    for _ in range(steps):
        texts = literal.text_features(context)
        logits = literal.model.logit_scale.exp() * features[chosen] @ texts.t()
        mean = logits.softmax(1).mean(0)
        loss = -weights.get("entropy", 0.0) * (mean * mean.log()).sum() + own(logits, texts, initial)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return context.detach()


def learned(kind: str, folder: Path) -> list[LearnedPrompt]:
    if kind == "maple":
        torch.save({"state_dict": maple_state("vit", 2)}, folder / "maple.pt")
        return [read_learned(folder / "maple.pt")]
    if kind == "cocoop":
        shapes = ((4, 64), (2, 32), (2,), (64, 2), (64,))
        draw = torch.Generator().manual_seed(0)
        return [CocoopContext(*(0.5 * torch.randn(*shape, generator=draw) for shape in shapes))]
    return []


# ---- oracles ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["zero-shot", "tpt", "o-tpt+sals", "cocoop+tpt", "maple", "maple+o-tpt", "tpt+ts"])
def test_an_aggregation_of_the_clean_view_is_the_clean_view(method: str, tmp_path: Path) -> None:
    @otpt.aggregation
    def first_view(probabilities: Tensor) -> Tensor:
        assert probabilities.shape == (20, 4)
        return probabilities[0]

    contexts = learned(method.split("+")[0], tmp_path)
    torch.testing.assert_close(
        predicted(f"{method}+first-view", 1, *contexts), predicted(method, 1, *contexts), rtol=0, atol=1e-7
    )


@pytest.mark.parametrize("method", ["zero-shot", "tpt", "o-tpt", "tpt+ts"])
def test_a_mean_over_the_views_is_the_literal_one(method: str) -> None:
    @otpt.aggregation
    def own_mean(probabilities: Tensor) -> Tensor:
        return probabilities.mean(dim=0)

    literal = oracle()
    weights = {name: 18.0 if name == "orthogonality" else 1.0 for name in compose(method).objectives}
    pixels = _pixels()
    context = literal.predict(pixels, weights=weights)["context"] if weights else literal.start
    logits = literal.logits(views(), context) / (1.16 if "ts" in method else 1.0)
    torch.testing.assert_close(predicted(f"{method}+own-mean"), logits.softmax(-1).mean(0), **EXACT)


def _pixels() -> Tensor:
    from otpt.views import make_views

    made = make_views(image(1), RECIPE, backbone().preprocessing, seed=0, image_id="p", dtype=np.float64)
    return torch.from_numpy(made)


def test_what_an_aggregation_may_ask_for() -> None:
    seen: dict[str, Tensor] = {}

    @otpt.aggregation
    def curious(
        logits: Tensor, zero_shot: Tensor, features: Tensor, text_features: Tensor, logit_scale: float, power: float = 2
    ) -> Tensor:
        seen.update(logits=logits, zero_shot=zero_shot, features=features, text_features=text_features)
        assert (logit_scale, power) == (backbone().logit_scale, 2)
        return logits.softmax(-1).mean(0)

    predicted("tpt+curious")
    literal = oracle()
    texts = literal.text_features(literal.start)
    torch.testing.assert_close(seen["features"], views(), **EXACT)
    torch.testing.assert_close(seen["text_features"], texts, **EXACT)
    torch.testing.assert_close(seen["zero_shot"], literal.logits(views(), literal.start), rtol=0, atol=1e-8)
    assert (seen["logits"] - seen["zero_shot"]).abs().max() > 1e-3, "these are the adapted ones"


def test_the_text_features_of_cocoop_are_those_of_the_image(tmp_path: Path) -> None:
    (context,) = learned("cocoop", tmp_path)
    found: list[Tensor] = []

    @otpt.aggregation
    def noting(probabilities: Tensor, zero_shot: Tensor, features: Tensor, text_features: Tensor) -> Tensor:
        torch.testing.assert_close(backbone().logit_scale * features @ text_features.mT, zero_shot)
        found.append(text_features)
        return probabilities[0]

    for seed in (1, 2):
        predicted("cocoop+noting", seed, context)
    assert (found[0] - found[1]).abs().max() > 1e-3


def test_a_calibration_by_a_number_is_a_temperature() -> None:
    @otpt.calibration
    def halved(logits: Tensor) -> Tensor:
        return logits / 2

    expected = predicted(compose("tpt+ts").override({"temperature": 2}))
    torch.testing.assert_close(predicted("tpt+halved"), expected, **EXACT)


def test_a_calibration_sees_the_zero_shot_logits() -> None:
    @otpt.calibration
    def my_sals(logits: Tensor, zero_shot: Tensor) -> Tensor:
        low, high = zero_shot.min(dim=-1, keepdim=True)[0], zero_shot.max(dim=-1, keepdim=True)[0]
        least, most = logits.min(dim=-1, keepdim=True)[0], logits.max(dim=-1, keepdim=True)[0]
        return (logits - least) / (most - least) * (high - low) + low

    torch.testing.assert_close(predicted("o-tpt+my-sals"), predicted("o-tpt+sals"), **EXACT)


@pytest.mark.equality
def test_a_calibration_sees_one_image_at_a_time() -> None:
    """One that mixes what it is given still says the same of an image in any batch."""

    @otpt.calibration
    def mixing(logits: Tensor) -> Tensor:
        return logits / logits.abs().mean()

    clf = Classifier(backbone(), "zero-shot+mixing", recipe=RECIPE).set_classes(NAMES)
    batch = [each.probabilities for each in clf.predict_batch([image(1), image(2)])]
    features = torch.stack([clf.encode_views(image(seed)) for seed in (1, 2)])
    by_features = [each["zero-shot+mixing"].probabilities for each in clf.classify_features(features, [clf.method])]
    for seed, one, other in zip((1, 2), batch, by_features, strict=True):
        assert np.array_equal(one, clf.predict(image(seed)).probabilities)
        assert np.array_equal(one, other)


@pytest.mark.parametrize("steps", [1, 2])
def test_an_objective_on_texts_is_the_literal_one(steps: int) -> None:
    @otpt.objective(weight=3.0)
    def closeness(text_features: Tensor) -> Tensor:
        gram = text_features @ text_features.mT
        return (gram.sum(dim=(-2, -1)) - gram.diagonal(dim1=-2, dim2=-1).sum(dim=-1)) / 12

    def own(_: Tensor, texts: Tensor, __: Tensor) -> Tensor:
        gram = texts @ texts.t()
        return 3.0 * (gram.sum() - gram.trace()) / 12

    context = tuned_context({"entropy": 1.0}, own, steps)
    expected = oracle().logits(views()[:1], context)[0].softmax(-1)
    method = compose("tpt+closeness").override({"steps": steps})
    assert dict(method.objectives) == {"entropy": 1.0, "closeness": 3.0}
    torch.testing.assert_close(predicted(method), expected, **EXACT)
    assert (predicted("tpt") - expected).abs().max() > 1e-5


def test_an_objective_of_ones_own_equals_ours() -> None:
    @otpt.objective(weight=50.0, maximise=True)
    def my_dispersion(text_features: Tensor) -> Tensor:
        return (text_features - text_features.mean(dim=-2, keepdim=True)).norm(dim=-1).mean(dim=-1)

    torch.testing.assert_close(predicted("tpt+my-dispersion"), predicted("c-tpt"), **EXACT)
    by_hand = Method("mine", {"entropy": 1.0, "my-dispersion": {"fine-grained": 50.0, "shift": 1.0}})
    torch.testing.assert_close(predicted(by_hand), predicted("c-tpt"), **EXACT)
    assert compose("tpt+my-dispersion").override({"lambda": 6}).objectives["my-dispersion"] == 6


@pytest.mark.parametrize("steps", [1, 2])
def test_an_objective_on_views_is_the_literal_one(steps: int) -> None:
    @otpt.objective(on="views")
    def my_entropy(logits: Tensor) -> Tensor:
        mean = logits.softmax(dim=-1).mean(dim=-2)
        return -(mean * mean.log()).sum(dim=-1)

    own, ours = (compose(name).override({"steps": steps}) for name in ("my-entropy", "tpt"))
    torch.testing.assert_close(predicted(own), predicted(ours), **EXACT)


def test_an_objective_may_ask_for_the_initial_texts() -> None:
    """At the init its gradient is zero, so the second step shows it."""

    @otpt.objective(weight=40.0)
    def staying(text_features: Tensor, initial: Tensor) -> Tensor:
        return (text_features - initial).square().sum(dim=(-2, -1))

    context = tuned_context({"entropy": 1.0}, lambda _, texts, initial: 40.0 * (texts - initial).square().sum(), 2)
    expected = oracle().logits(views()[:1], context)[0].softmax(-1)
    method = compose("tpt+staying").override({"steps": 2})
    torch.testing.assert_close(predicted(method), expected, **EXACT)


def test_an_objective_runs_on_maple(tmp_path: Path) -> None:
    @otpt.objective(weight=50.0, maximise=True)
    def my_dispersion(text_features: Tensor) -> Tensor:
        return (text_features - text_features.mean(dim=-2, keepdim=True)).norm(dim=-1).mean(dim=-1)

    contexts = learned("maple", tmp_path)
    own, ours = (predicted(name, 1, *contexts) for name in ("maple+tpt+my-dispersion", "maple+c-tpt"))
    torch.testing.assert_close(own, ours, **EXACT)


@pytest.mark.parametrize("init", ["", "cocoop+", "maple+"])
def test_an_adaptation_is_the_literal_one(init: str, tmp_path: Path) -> None:
    """Image features centred over the views, as logits: a function of what it asks for, and of nothing else."""
    seen: list[tuple[Tensor, ...]] = []

    @otpt.adaptation
    def centred(features: Tensor, text_features: Tensor, logit_scale: float, zero_shot: Tensor) -> Tensor:
        moved = logit_scale * (features - features.mean(dim=0)) @ text_features.mT
        seen.append((zero_shot, moved))
        return zero_shot + moved

    contexts = learned(init.rstrip("+"), tmp_path)
    found = predicted(f"{init}centred", 1, *contexts)
    zero_shot, moved = seen[0]
    torch.testing.assert_close(found, (zero_shot + moved)[0].softmax(-1), **EXACT)
    assert compose(f"{init}centred").scope == "image"
    if not init:
        literal = oracle()
        texts, scale = literal.text_features(literal.start), backbone().logit_scale
        expected = scale * (2 * views() - views().mean(dim=0))[0] @ texts.t()
        torch.testing.assert_close(found, expected.softmax(-1), **EXACT)


def test_a_stream_carries_its_state_from_image_to_image() -> None:
    @otpt.adaptation
    def mean_so_far(zero_shot: Tensor, state: dict[str, Any]) -> Tensor:
        state["sum"] = state.get("sum", 0) + zero_shot
        state["count"] = state.get("count", 0) + 1
        return state["sum"] / state["count"]

    assert compose("mean-so-far").scope == "stream"
    clf = Classifier(backbone(), "mean-so-far", recipe=RECIPE).set_classes(NAMES)
    found = [torch.from_numpy(each.probabilities) for each in clf.predict_batch([image(seed) for seed in (1, 2, 3)])]
    literal, total = oracle(), torch.zeros(4, dtype=torch.float64)
    for i, seed in enumerate((1, 2, 3)):
        total = total + literal.logits(clf.encode_views(image(seed))[:1], literal.start)[0]
        torch.testing.assert_close(found[i], (total / (i + 1)).softmax(-1), **EXACT)


@pytest.mark.equality
@pytest.mark.parametrize("method", ["tpt", "o-tpt+sals", "cocoop+tpt", "maple+o-tpt", "moved", "tpt+own-mean"])
def test_a_gate_that_is_always_open_or_closed(method: str, tmp_path: Path) -> None:
    """Bit for bit the method without gate, or the same with nothing adapted."""

    @otpt.gate
    def always(zero_shot: Tensor) -> bool:
        assert zero_shot.shape == (20, 4)
        return True

    @otpt.gate
    def never(features: Tensor, text_features: Tensor) -> Tensor:
        return torch.tensor(False)

    @otpt.adaptation
    def moved(zero_shot: Tensor, features: Tensor) -> Tensor:
        return zero_shot + features[:, :4]

    @otpt.aggregation
    def own_mean(probabilities: Tensor) -> Tensor:
        return probabilities.mean(dim=0)

    contexts = learned(method.split("+")[0], tmp_path)
    kept = "+".join(part for part in method.split("+") if part not in ("tpt", "o-tpt", "moved")) or "zero-shot"
    kept = f"zero-shot+{kept}" if kept in ("sals", "own-mean") else kept
    names = [method, kept, f"{method}+always", f"{method}+never"]
    found = classifier(*contexts).compare(image(1), names, image_id="p")
    assert np.array_equal(found[f"{method}+always"].probabilities, found[method].probabilities)
    assert np.array_equal(found[f"{method}+never"].probabilities, found[kept].probabilities)
    assert not np.array_equal(found[method].probabilities, found[kept].probabilities)
    assert (found[f"{method}+always"].extras["adapted"], found[f"{method}+never"].extras["adapted"]) == (1.0, 0.0)
    assert found[f"{method}+never"].mean_cosine == found[kept].mean_cosine


def test_a_gate_decides_image_by_image() -> None:
    @otpt.gate
    def views_disagree(zero_shot: Tensor) -> bool:
        return bool(zero_shot[0].argmax() != zero_shot.mean(dim=0).argmax())

    @otpt.adaptation
    def moved(zero_shot: Tensor) -> Tensor:
        called.append(zero_shot)
        return zero_shot + torch.arange(4)

    called: list[Tensor] = []
    clf = classifier()
    answers = [clf.compare(image(seed), ["zero-shot", "tpt", "moved+views-disagree"]) for seed in range(8)]
    disagree = []
    for seed, answer in enumerate(answers):
        literal = oracle()
        logits = literal.logits(clf.encode_views(image(seed)), literal.start)
        disagree.append(int(logits[0].argmax()) != int(logits.sum(dim=0).argmax()))
        expected = answer["moved+views-disagree"].extras["adapted"]
        assert expected == float(disagree[-1])
        same = np.array_equal(answer["moved+views-disagree"].probabilities, answer["zero-shot"].probabilities)
        assert same == (not disagree[-1])
    assert 0 < sum(disagree) < 8, "or the test shows nothing"
    assert len(called) == sum(disagree), "a closed gate spares the work"


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def sentence(method: str | Method, source: Any = None) -> str:
    with pytest.raises(OtptError) as error:
        classifier().compare(image(1) if source is None else source, [method])
    return str(error.value)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("probabilities[99]", "failed on the image 'image 1', which has probabilities of shape (20, 4): IndexError: "),
        (
            "probabilities",
            "returned a tensor of shape (20, 4) for the image 'image 1'; expected a tensor of shape (4,)",
        ),
        ("probabilities[0].tolist()", "returned a list for the image 'image 1'; expected a tensor of shape (4,)"),
        ("probabilities[0] / 0 * 0", "returned nan or infinity in a tensor of shape (4,) for the image 'image 1'"),
        ("2 * probabilities[0]", "that sum to 2 for the image 'image 1'; expected probabilities of shape (4,)"),
        ("probabilities[0] - 0.25", "returned numbers from -0.2"),
        ("None", "returned a NoneType for the image"),
    ],
)
def test_wrong_aggregations(body: str, words: str, tmp_path: Path) -> None:
    otpt.load_plugin(plugin(tmp_path, f"@otpt.aggregation\ndef mine(probabilities):\n    return {body}\n"))
    said = sentence("zero-shot+mine")
    assert said.startswith("The aggregation 'mine' ")
    assert words in said
    assert said.count("\n") == 0


@pytest.mark.parametrize(
    ("decorator", "body", "method", "words"),
    [
        ("calibration", "def mine(logits): return logits[0, :2]", "tpt+mine",
         "The calibration 'mine' returned a tensor of shape (2,) for the image 'image 1'; expected a tensor of "
         "shape (1, 4)"),
        ("calibration", "def mine(logits): return logits / 0", "tpt+mine", "The calibration 'mine' returned nan"),
        ("calibration", "def mine(logits): raise ValueError('no.')", "tpt+mine",
         "The calibration 'mine' failed on the image 'image 1', which has logits of shape (1, 4): ValueError: no."),
        ("gate", "def mine(zero_shot): return zero_shot > 0", "tpt+mine",
         "The gate 'mine' returned a tensor of shape (20, 4) for the image 'image 1'; expected True or False."),
        ("gate", "def mine(zero_shot): return 'yes'", "tpt+mine", "The gate 'mine' returned a str"),
        ("gate", "def mine(zero_shot): return zero_shot.nothing", "tpt+mine", "The gate 'mine' failed on the image"),
        ("adaptation", "def mine(zero_shot): return zero_shot[0]", "mine",
         "The adaptation 'mine' returned a tensor of shape (4,) for the image 'image 1'; expected a tensor of "
         "shape (20, 4)"),
        ("adaptation", "def mine(zero_shot): return 1 / 0", "mine", "ZeroDivisionError: division by zero."),
        ("objective", "def mine(text_features): return text_features.sum()", "tpt+mine",
         "The objective 'mine' returned a tensor of shape () for text features of shape (1, 4, 32); expected a tensor "
         "of shape (1,), one number per image. The image was 'image 1'."),
        ("objective", "def mine(text_features): return text_features.sum(dim=(-2, -1)) * float('nan')", "tpt+mine",
         "The objective 'mine' returned nan or infinity for text features of shape (1, 4, 32). The image was "
         "'image 1'."),
        ("objective", "def mine(text_features): return text_features.detach().sum(dim=(-2, -1))", "tpt+mine",
         "The objective 'mine' returned a number without gradient"),
        ("objective", "def mine(text_features): return text_features @ text_features", "tpt+mine",
         "The objective 'mine' failed on text features of shape (1, 4, 32): RuntimeError: "),
        ("objective(on='views')", "def mine(logits): return logits.mean(dim=-1)", "mine",
         "The objective 'mine' returned a tensor of shape (2,) for logits of shape (2, 4); expected a tensor of "
         "shape ()"),
        ("objective(on='views')", "def mine(logits): raise KeyError('k')", "mine", "The image was 'image 1'."),
    ],
)  # fmt: skip
def test_other_wrong_functions(decorator: str, body: str, method: str, words: str, tmp_path: Path) -> None:
    otpt.load_plugin(plugin(tmp_path, f"@otpt.{decorator}\n{body}\n"))
    assert words in sentence(method)
    assert sentence(method).count("\n") == 0


def test_a_function_of_ours_that_is_called_in_ones_own_is_named_too() -> None:
    @otpt.calibration
    def mine(logits: Tensor, zero_shot: Tensor) -> Tensor:
        from otpt.calibration import sals

        return sals(logits, zero_shot[:, :2])

    assert sentence("tpt+mine").startswith("The calibration 'mine' failed on the image 'image 1', which has logits")


def test_one_view_is_not_enough_for_a_function_of_all_views() -> None:
    @otpt.aggregation
    def own_mean(probabilities: Tensor) -> Tensor:
        return probabilities.mean(dim=0)

    @otpt.gate
    def always(zero_shot: Tensor) -> bool:
        return True

    single = ViewRecipe(n_views=1)
    for name in ("own-mean", "tpt+own-mean", "tpt+always"):
        with pytest.raises(OtptError, match=r"needs several views of an image, but the recipe has one"):
            Classifier(backbone(), name, recipe=single)
    assert Classifier(backbone(), "tpt", recipe=single).method.name == "tpt"


def test_a_name_belongs_to_one_function() -> None:
    def register(factor: int) -> Callable[[Tensor], Tensor]:
        if factor == 1:

            @otpt.aggregation
            def mine(probabilities: Tensor) -> Tensor:
                return probabilities[0]
        else:

            @otpt.aggregation
            def mine(probabilities: Tensor) -> Tensor:
                return probabilities[1]

        return mine

    register(1)
    register(1)  # the same again, as when a cell of a notebook is run twice
    with pytest.raises(OtptError, match="There is a value 'mine' on this axis already; give your aggregation another"):
        register(2)
    register_objective("mine")
    with pytest.raises(
        OtptError, match="Your function on the axis 'aggregate' has the name 'mine', which is a part on"
    ):
        known_parts()
    assert compose("tpt+mine").objectives["mine"] == 1.0, "the one that came last in the axes is taken out"


def register_objective(name: str) -> None:
    def function(text_features: Tensor) -> Tensor:
        return text_features.sum(dim=(-2, -1))

    function.__name__ = name
    otpt.objective(function)


def test_names_of_ours_are_taken() -> None:
    register_objective("sals")
    with pytest.raises(OtptError, match="Your objective has the name 'sals', which is a part on the axis 'calibrate'"):
        compose("tpt+sals")
    assert compose("tpt+sals").calibrate == "sals", "afterwards all is as before"
    with pytest.raises(OtptError, match="There is an objective 'entropy' already"):
        register_objective("entropy")

    def votes(probabilities: Tensor) -> Tensor:
        return probabilities[0]

    with pytest.raises(OtptError, match="There is a value 'votes' on this axis already"):
        otpt.aggregation(votes)


def test_functions_that_cannot_be_registered() -> None:
    def mine(pixels: Tensor) -> Tensor:
        return pixels

    with pytest.raises(
        OtptError, match="The aggregation 'mine' takes a parameter 'pixels'; expected some of logits, zero"
    ):
        otpt.aggregation(mine)
    with pytest.raises(OtptError, match="The gate 'mine' takes a parameter 'pixels'"):
        otpt.gate(mine)
    with pytest.raises(
        OtptError, match="The calibration 'mine' takes a parameter 'pixels'; expected some of logits, zero_s"
    ):
        otpt.calibration(mine)
    with pytest.raises(OtptError, match="expected a function made with 'def'"):
        otpt.aggregation(lambda probabilities: probabilities[0])
    with pytest.raises(OtptError, match="Unknown kind of objective 'pixels'"):
        otpt.objective(on="pixels")


def test_parts_of_ones_own_conflict_like_ours() -> None:
    @otpt.adaptation
    def moved(zero_shot: Tensor) -> Tensor:
        return zero_shot

    @otpt.calibration
    def halved(logits: Tensor) -> Tensor:
        return logits / 2

    for name, why in (
        ("moved+o-tpt", "joins 'moved' and 'o-tpt', which conflict: moved takes no steps on the context"),
        ("moved+zero-shot", "joins 'moved' and 'zero-shot', which conflict: both are adaptations"),
        ("tpt+sals+halved", "joins 'sals' and 'halved', which conflict: both say how to calibrate"),
        ("promptsmooth+halved", "promptsmooth leaves no choice of calibrate"),
        ("tpt+halve", "Did you mean: halved (calibrate)"),
    ):
        with pytest.raises(OtptError) as error:
            compose(name)
        assert why in str(error.value)
    with pytest.raises(OtptError, match="has objectives, which belong to steps on the context, but its adaptation is"):
        Method("mine", {"entropy": 1.0}, adapt="moved")
    assert (compose("moved+halved").adapt, compose("moved+halved").calibrate) == ("moved", "halved")


# ---- plugins, evaluations and the command line -----------------------------------------------------------------------

PLUGIN = '''
@otpt.aggregation
def own_mean(probabilities):
    """The mean over all views."""
    return probabilities.mean(dim=0)

@otpt.calibration
def halved(logits):
    return logits / FACTOR

@otpt.gate
def views_disagree(zero_shot):
    return len(zero_shot.argmax(dim=1).unique()) > 1

@otpt.objective(weight=50.0, maximise=True)
def my_dispersion(text_features):
    return (text_features - text_features.mean(dim=-2, keepdim=True)).norm(dim=-1).mean(dim=-1)

@otpt.adaptation
def sharpened(zero_shot):
    return 2 * zero_shot

FACTOR = 2
'''
METHODS = ("tpt+own-mean", "o-tpt+halved", "tpt+views-disagree", "tpt+my-dispersion", "sharpened")


def plugin(folder: Path, text: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(f"import otpt\n\n{text}", encoding="utf-8")
    return path


def dataset(count: int = 3) -> Dataset:
    return Dataset("tiny", NAMES, [str(i) for i in range(count)], [i % 4 for i in range(count)], image)


def confidences(folder: Path, method: str, cache: FeatureCache | None = None) -> list[float]:
    settings = Settings(methods=[method], recipe=ViewRecipe(n_views=12))
    found = evaluate(dataset(), backbone("float32"), settings, out=folder, cache=cache).run
    (column,) = found.columns("tiny")
    return [value for shard in found.shards("tiny", 0, column) for value in shard.table["confidence"].to_pylist()]


def test_kept_gradients_belong_to_the_code_of_an_objective(tmp_path: Path) -> None:
    """Another function of the same name must not get the gradients of the one before."""
    from otpt.objectives import OBJECTIVES

    cache = FeatureCache(tmp_path / "cache")
    found = []
    for number, sign in enumerate(("", "-")):
        path = plugin(
            tmp_path, f"@otpt.objective(on='views')\ndef own(logits):\n    return {sign}logits.std(dim=(-2, -1))\n"
        )
        otpt.load_plugin(path)
        found.append(confidences(tmp_path / f"with-{number}", "own", cache))
        assert found[-1] == confidences(tmp_path / f"again-{number}", "own", cache)
        assert found[-1] == confidences(tmp_path / f"without-{number}", "own")
        del OBJECTIVES["own"]  # type: ignore[attr-defined]
    assert found[0] != found[1]


def test_a_run_remembers_the_code_it_was_made_with(tmp_path: Path) -> None:
    from otpt.methods.axes import AGGREGATIONS

    otpt.load_plugin(
        plugin(tmp_path, "ROW = 0\n\n@otpt.aggregation\ndef one(probabilities):\n    return probabilities[ROW]\n")
    )
    confidences(tmp_path / "run", "tpt+one")
    assert confidences(tmp_path / "run", "tpt+one")
    del AGGREGATIONS["one"]
    otpt.load_plugin(
        plugin(tmp_path, "ROW = 1\n\n@otpt.aggregation\ndef one(probabilities):\n    return probabilities[ROW]\n")
    )
    with pytest.raises(OtptError, match=r"another configuration: .*own_functions\.one is"):
        confidences(tmp_path / "run", "tpt+one")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tiny model, a data set and a plugin."""
    open_clip_local_dir(tmp_path / "tiny")
    for i in range(5):
        place = tmp_path / "data" / NAMES[i % 2]
        place.mkdir(parents=True, exist_ok=True)
        image(i).save(place / f"{i}.png")
    plugin(tmp_path, PLUGIN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "otpt.cli", *map(str, arguments), "--backbone", "tiny", "--device", "cpu"]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True)


def shards(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.parquet"))}


@pytest.mark.equality
def test_a_plugin_on_the_command_line_with_one_and_two_workers(bench: Path) -> None:
    common = ("evaluate", "data", "--methods", *METHODS, "--plugin", "mine.py", "--views", 8, "--no-cache")
    for workers in (1, 2):
        done = command(bench, *common, "--workers", workers, "--shard-size", 2, "--out", f"run-{workers}")
        assert done.returncode == 0, done.stderr
    assert len(shards(bench / "run-1")) == 3 * len(METHODS)
    assert shards(bench / "run-1") == shards(bench / "run-2")
    config = json.loads((bench / "run-1/config.json").read_text(encoding="utf-8"))
    assert list(config["methods"]["o-tpt+halved"]["own_functions"]) == ["halved"]


def test_a_plugin_for_single_images(bench: Path) -> None:
    """``otpt predict`` says what Python says."""
    methods = ("zero-shot", *METHODS)
    done = command(bench, "predict", "data/cat/0.png", "--classes", *NAMES, "--method", *methods, "--plugin", "mine.py",
                   "--views", 8, "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = {answer["method"]: answer for answer in map(json.loads, done.stdout.splitlines())}
    otpt.load_plugin(bench / "mine.py")
    otpt.load_plugin(bench / "mine.py")  # the same file twice is the same plugin
    clf = otpt.load("tiny", "zero-shot", device="cpu", recipe=ViewRecipe(n_views=8)).set_classes(NAMES)
    found = clf.compare(bench / "data/cat/0.png", methods)
    for name in methods:
        assert answers[name]["confidence"] == pytest.approx(found[name].confidence, abs=1e-12)
        assert answers[name]["extras"] == pytest.approx(dict(found[name].extras), abs=1e-12)


def test_a_plugin_is_listed_with_its_axis(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "methods", "--plugin", "mine.py")
    assert code == 0
    listed = {part.name: part.axis for part in known_parts().values()}
    assert listed["own-mean"] == "aggregate"
    assert out.index("\naggregate:") < out.index("own-mean") < out.index("\ngate:") < out.index("views-disagree")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "@otpt.aggregation\ndef own_mean(probabilities):\n    return probabilities",
            "The aggregation 'own-mean",
        ),
        ("@otpt.aggregation\ndef own_mean(pixels):\n    return pixels", "takes a parameter 'pixels'"),
        ("def", "The plugin 'mine.py' failed: SyntaxError: "),
        ("1 / 0", "The plugin 'mine.py' failed: ZeroDivisionError: division by zero."),
        ("", "Unknown part 'own-mean' of the method 'tpt+own-mean'."),
    ],
)
def test_wrong_plugins_on_the_command_line(
    text: str, words: str, bench: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin(bench, text)
    model = ("--plugin", "mine.py", "--backbone", "tiny", "--device", "cpu", "--views", 8)
    code, _, err = run(capsys, "evaluate", "data", "--methods", "tpt+own-mean", "--out", "run", "--no-cache", *model)
    assert (code, words in err) == (2, True), err
    assert err.count("\n") == 1
    image_and_classes = ("data/cat/0.png", "--classes", *NAMES)
    code, _, err = run(capsys, "predict", *image_and_classes, "--method", "tpt+own-mean", *model)
    assert (code, words in err) == (2, True), err


def test_a_plugin_that_failed_can_be_mended_and_loaded_again(tmp_path: Path) -> None:
    text = "@otpt.aggregation\ndef one(probabilities):\n    return probabilities[0]\n"
    with pytest.raises(OtptError, match="NameError: name 'missing' is not defined"):
        otpt.load_plugin(plugin(tmp_path, f"{text}\nmissing()\n"))
    assert "one" not in known_parts()
    otpt.load_plugin(plugin(tmp_path, text))
    assert compose("tpt+one").aggregate == "one"


def test_plugins_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(OtptError, match=r"Cannot read the plugin '.*none\.py': No such file"):
        otpt.load_plugin(tmp_path / "none.py")
    (tmp_path / "mine.txt").write_text("import otpt", encoding="utf-8")
    with pytest.raises(OtptError, match=r"is not a Python file; expected FILE\.py"):
        otpt.load_plugin(tmp_path / "mine.txt")
