"""Every method on devices that are not the CPU: the same answers, and few questions to the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from oracles.device_bench import ALL, BAPLE, FROZEN, IMAGE_METHODS, STREAMS, Bench, backbone_on, prompts
from oracles.elsewhere import DEVICES, claimed_devices, counted
from oracles.evaluation_bench import NAMES, dataset, image, rows, small_dataset

from otpt import Classifier, ViewRecipe, functional
from otpt.evaluation import Job, ProcessEngine, evaluate, run_job
from otpt.features import FeatureCache
from otpt.learning import Recipe, train_coop, train_maple
from otpt.methods.output import Output
from otpt.methods.prompt_tuning import TextSide

CLOSE = 2e-5  # passes of eight contexts in place of one, and other kernels
PIXELS = tuple(name for name in IMAGE_METHODS if ALL[name].init == "maple" or ALL[name].adapt == "promptsmooth")
FEATURES = tuple(name for name in IMAGE_METHODS if name not in (*PIXELS, *BAPLE))


@pytest.fixture(autouse=True)
def devices() -> Iterator[Sequence[str]]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with claimed_devices() as names:
        yield names
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("devices"))


def same(one: Sequence[Sequence[Output]], other: Sequence[Sequence[Output]]) -> None:
    for mine, theirs in zip(one, other, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(a.probabilities, b.probabilities, rtol=0, atol=CLOSE)
            assert (a.flags, set(a.extras)) == (b.flags, set(b.extras))
            for key, value in a.extras.items():
                assert value == pytest.approx(b.extras[key], abs=1e-3, nan_ok=True), key


@pytest.mark.parametrize("methods", [FEATURES, PIXELS, BAPLE, FROZEN], ids=["features", "pixels", "baple", "frozen"])
def test_a_batch_of_images_asks_the_device_twice_whatever_the_methods(methods: Sequence[str], bench: Bench) -> None:
    """All methods at once: what one of them would ask beyond that is seen here."""
    found = {}
    for device in ("cpu", DEVICES[0]):
        model = bench.model(methods, device)
        predictor = bench.predictor(methods, model)
        if device != "cpu":
            bench.predicted(methods, model, predictor)  # gradients of the texts alone are computed with the first batch
        found[device], counts = bench.predicted(methods, model, predictor)
    same(found["cpu"], found[DEVICES[0]])
    assert counts.devices == {DEVICES[0]}
    assert counts.synchronisations <= 2, counts.waits


def test_streams_remember_on_the_device(bench: Bench) -> None:
    found = []
    for device in ("cpu", DEVICES[0]):
        model = bench.model(STREAMS, device)
        found.append(bench.predicted(STREAMS, model, bench.predictor(STREAMS, model))[0])
    same(*found)


def test_two_devices_in_one_process() -> None:
    classifiers = [Classifier(backbone_on(device), "tpt", recipe=ViewRecipe(n_views=4)) for device in DEVICES]
    answers = []
    for classifier, device in zip(classifiers, DEVICES, strict=True):
        with counted() as counts:
            answers.append(classifier.set_classes(NAMES[:3]).compare(image(0), ["tpt+agreement", "zero-shot"]))
        assert counts.devices == {device}
    moved = classifiers[0].to(DEVICES[1])
    with counted() as counts:
        answers.append(moved.compare(image(0), ["tpt+agreement", "zero-shot"]))
    assert counts.devices == {DEVICES[1]}
    for answer in answers[1:]:
        for name, prediction in answer.items():
            np.testing.assert_array_equal(prediction.probabilities, answers[0][name].probabilities)


def test_features_from_the_host_and_functions_on_plain_tensors() -> None:
    views = torch.nn.functional.normalize(torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(0)), dim=-1)
    texts = torch.nn.functional.normalize(torch.randn(3, 32, generator=torch.Generator().manual_seed(1)), dim=-1)
    answers = [
        Classifier(backbone_on(device), "zero-shot").set_classes(NAMES[:3]).classify_features(views, ["mean-feature"])
        for device in ("cpu", DEVICES[0])
    ]
    for a, b in zip(*answers, strict=True):
        np.testing.assert_allclose(a["mean-feature"].probabilities, b["mean-feature"].probabilities, atol=CLOSE)
    away = [tensor.to(DEVICES[0]) for tensor in (views, texts)]
    for method in ("zero-shot", "mta", "tps"):
        one, other = functional.predict(views, texts, method=method), functional.predict(*away, method=method)
        torch.testing.assert_close(one, other, rtol=0, atol=CLOSE)
    logits = 100 * away[0][0] @ away[1].mT
    found = functional.aggregate(logits, method="mean-logit")
    torch.testing.assert_close(found, functional.aggregate(logits.cpu(), method="mean-logit"), rtol=0, atol=0)


@pytest.mark.parametrize("rounds", [(), (3,)], ids=["all views", "rounds"])
def test_an_evaluation_with_a_cache(rounds: tuple[int, ...], bench: Bench, tmp_path: Path) -> None:
    recipe = ViewRecipe(n_views=6, rounds=rounds)
    methods = ["zero-shot", "tpt", "cocoop+tpt", *([] if rounds else ["tda"])]
    settings = {"recipe": recipe, "shard_size": 2}
    found = {}
    for device in ("cpu", DEVICES[0]):
        for turn in ("first", "again"):
            cache = FeatureCache(tmp_path / device)
            chosen = bench.settings(methods, **settings)
            evaluate(dataset(3), backbone_on(device), chosen, out=tmp_path / f"{device} {turn}", cache=cache)
        for turn in ("first", "again"):
            found[device, turn] = rows(tmp_path / f"{device} {turn}")
    assert found[DEVICES[0], "first"] == found[DEVICES[0], "again"]
    for mine, theirs in zip(found["cpu", "first"], found[DEVICES[0], "first"], strict=True):
        assert (mine["id"], mine["prediction"]) == (theirs["id"], theirs["prediction"])
        assert mine["confidence"] == pytest.approx(theirs["confidence"], abs=CLOSE)


def test_one_process_per_device(bench: Bench, tmp_path: Path) -> None:
    """Two workers on two devices write what one on one of them writes."""
    chosen = bench.settings(["zero-shot", "o-tpt"], shard_size=3)
    one = Job(backbone_on, [small_dataset], chosen, tmp_path / "one", device=DEVICES[0], threads=1)
    two = Job(backbone_on, [small_dataset], chosen, tmp_path / "two", threads=1)
    run_job(one)
    run_job(two, ProcessEngine(2, DEVICES))
    assert rows(tmp_path / "one") == rows(tmp_path / "two")


def test_low_precision_of_both_towers_reaches_texts_and_gradients() -> None:
    sides = {name: TextSide(backbone_on("cpu", name), NAMES[:3]) for name in ("float32", "bf16", "bf16-both")}
    cotangent = torch.ones_like(sides["float32"].text_features)[None]
    found = {name: (side.text_features, side.linearisation.vjp(cotangent)) for name, side in sides.items()}
    for plain, image_only, both in zip(*found.values(), strict=True):
        assert torch.equal(plain, image_only)
        assert both.dtype == torch.float32
        difference = (both - plain).norm() / plain.norm()
        assert 1e-4 < difference < 0.2


def test_training(bench: Bench) -> None:
    recipe = Recipe(shots=1, epochs=1, batch=3, learning_rate=0.01, crops=2)
    for train in (train_coop, train_maple):
        one, other = (train(backbone_on(device), dataset(6), recipe) for device in ("cpu", DEVICES[0]))
        for name, tensor in one.state().items():
            torch.testing.assert_close(tensor, other.state()[name], rtol=0, atol=1e-4, msg=name)
            assert other.state()[name].device.type == "cpu"
    assert set(prompts()) == {"coop", "cocoop", "maple"}
