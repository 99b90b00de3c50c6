"""Ways to a prediction on a device that is not the CPU: classifier, service, commands, caches, rounds, processes."""

from __future__ import annotations

import io
import json
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from oracles.command import run
from oracles.data.alike_names import ALIKE
from oracles.devices.device_bench import CLOSE, RECIPE, Bench, backbone_on, counted_batches
from oracles.devices.elsewhere import DEVICES, counted
from oracles.models.tiny import open_clip_local_dir
from oracles.runs.evaluation_bench import NAMES, dataset, image, rows, small_dataset

from otpt import Classifier, ViewRecipe, functional
from otpt.evaluation import Job, ProcessEngine, evaluate, run_job
from otpt.features import FeatureCache
from otpt.methods import get_method, get_methods
from otpt.methods.prompt_tuning import prompt_state, tune
from otpt.methods.task import Task
from otpt.serve.engine import Engine
from otpt.serve.jobs import Answer, Query
from otpt.serve.jobs import Job as Request
from otpt.serve.texts import TextCache

pytestmark = pytest.mark.slow

ONE, TWO = DEVICES
MANY = list(dict.fromkeys(ALIKE))


def test_compare_on_two_devices_in_one_process() -> None:
    methods = ["tpt+agreement", "zero-shot", "o-tpt"]
    classifiers = [Classifier(backbone_on(device), "tpt", views=RECIPE) for device in DEVICES]
    answers = []
    for classifier, device in zip(classifiers, DEVICES, strict=True):
        with counted() as counts:
            answers.append(classifier.set_classes(NAMES[:3]).compare(image(0), methods))
        assert counts.devices == {device}
        with counted() as counts:
            classifier.compare(image(0), methods)
        assert counts.synchronisations == 2, counts.waits
    moved = classifiers[0].to(TWO)
    with counted() as counts:
        answers.append(moved.compare(image(0), methods))
    assert counts.devices == {TWO}
    for answer in answers[1:]:
        for name, prediction in answer.items():
            np.testing.assert_array_equal(prediction.probabilities, answers[0][name].probabilities)


def test_features_from_the_host_and_functions_on_plain_tensors() -> None:
    views = torch.nn.functional.normalize(torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(0)), dim=-1)
    texts = torch.nn.functional.normalize(torch.randn(3, 32, generator=torch.Generator().manual_seed(1)), dim=-1)
    answers = [
        Classifier(backbone_on(device), "zero-shot").set_classes(NAMES[:3]).classify_features(views, ["mean-feature"])
        for device in ("cpu", ONE)
    ]
    for a, b in zip(*answers, strict=True):
        np.testing.assert_allclose(a["mean-feature"].probabilities, b["mean-feature"].probabilities, atol=CLOSE)
    away = [tensor.to(ONE) for tensor in (views, texts)]
    for method in ("zero-shot", "mta", "tps"):
        one, other = functional.predict(views, texts, method=method), functional.predict(*away, method=method)
        torch.testing.assert_close(one, other, rtol=0, atol=CLOSE)
    logits = 100 * away[0][0] @ away[1].mT
    found = functional.aggregate(logits, method="mean-logit")
    torch.testing.assert_close(found, functional.aggregate(logits.cpu(), method="mean-logit"), rtol=0, atol=0)


def test_the_engine_of_the_service() -> None:
    """Two requests: the second finds its texts prepared, and its images ask the device once."""
    query = Query("tiny", Task(NAMES, recipe=RECIPE), tuple(get_methods(["zero-shot", "o-tpt"])))
    found: dict[str, list[list[Answer]]] = {}
    for device in ("cpu", *DEVICES):
        engine = Engine({"tiny": backbone_on(device)}, TextCache(10**9), queue=10, threads=0)
        engine.start()
        found[device] = []
        for _ in range(2):
            request = Request(query, [_png(i) for i in range(3)], 10**6)
            with counted() as counts:
                engine.submit(request)
                found[device].append(request.future.result(300))  # type: ignore[arg-type]
        engine.close()
        assert counts.devices == ({device} if device != "cpu" else set())
        assert counts.synchronisations == (device != "cpu"), counts.waits
    for device in DEVICES:
        for mine, theirs in zip(chain(*found["cpu"]), chain(*found[device]), strict=True):
            for name, prediction in mine.predictions.items():
                other = theirs.predictions[name].probabilities
                np.testing.assert_allclose(prediction.probabilities, other, rtol=0, atol=CLOSE)


def _png(i: int) -> bytes:
    file = io.BytesIO()
    image(i).save(file, "PNG")
    return file.getvalue()


def test_the_engine_shows_views_of_a_device() -> None:
    query = Query("tiny", Task(NAMES, recipe=RECIPE), tuple(get_methods(["tpt"])), show_views=True)
    shown = []
    for device in ("cpu", ONE):
        engine = Engine({"tiny": backbone_on(device)}, TextCache(10**9), queue=10, threads=0)
        engine.start()
        request = Request(query, [_png(0)], 10**6)
        engine.submit(request)
        (answer,) = request.future.result(300)
        engine.close()
        assert isinstance(answer, Answer)
        assert answer.views is not None
        shown.append(answer.views)
    assert shown[0]["images"] == shown[1]["images"]
    assert shown[0]["selected"] == shown[1]["selected"]
    np.testing.assert_allclose(shown[0]["entropies"], shown[1]["entropies"], atol=1e-4)


def test_frozen_classes() -> None:
    """The approximation brings the classes of all images to the host in one copy; their texts are prepared anew."""
    config = get_method("o-tpt").override({"frozen-below": 0.02}).tuning("fine-grained")
    assert config is not None
    found = []
    for device in ("cpu", *DEVICES):
        side = prompt_state(backbone_on(device), MANY)
        centres = side.text_features[0] + side.text_features[7]
        views = torch.nn.functional.normalize(centres.expand(2, 20, -1), dim=-1)
        with counted() as counts:
            (tuned,) = tune(side, views, [config]).values()
        masks = [why for why in counts.waits if why.startswith("copy to the host at transfers")]
        assert sum(counts.waits[why] for why in masks) == (device != "cpu"), counts.waits
        assert counts.devices == ({device} if device != "cpu" else set())
        found.append(tuned.logits.cpu())
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-3)
    assert torch.equal(found[1], found[2])


@pytest.mark.parametrize("rounds", [(), (3,)], ids=["all views", "rounds"])
def test_an_evaluation_with_a_cache(rounds: tuple[int, ...], bench: Bench, tmp_path: Path) -> None:
    recipe = ViewRecipe(n_views=6, rounds=rounds)
    methods = ["zero-shot", "tpt", "cocoop+tpt", *([] if rounds else ["tda"])]
    settings = {"views": recipe, "shard_size": 2}
    found = {}
    for device in ("cpu", ONE):
        for turn in ("first", "again"):
            cache = FeatureCache(tmp_path / device)
            chosen = bench.settings(methods, **settings)
            evaluate(dataset(3), backbone_on(device), chosen, out=tmp_path / f"{device} {turn}", cache=cache)
        for turn in ("first", "again"):
            found[device, turn] = rows(tmp_path / f"{device} {turn}")
    assert found[ONE, "first"] == found[ONE, "again"]
    for mine, theirs in zip(found["cpu", "first"], found[ONE, "first"], strict=True):
        assert (mine["id"], mine["prediction"]) == (theirs["id"], theirs["prediction"])
        assert mine["confidence"] == pytest.approx(theirs["confidence"], abs=CLOSE)


def test_views_in_rounds_ask_once_per_image_and_round(bench: Bench, tmp_path: Path) -> None:
    images, recipe = 3, ViewRecipe(n_views=12, rounds=(3, 6))
    _, counts = bench.evaluated(["zero-shot", "tpt"], backbone_on(ONE), tmp_path / "run", views=recipe)
    # before more views are made, after each round; once more for all images of the batch; and the answers
    assert 2 <= counts.synchronisations <= images * len(recipe.rounds) + 2, counts.waits


def test_one_process_per_device(bench: Bench, tmp_path: Path) -> None:
    """Two workers on two devices write what one on one of them writes."""
    chosen = bench.settings(["zero-shot", "o-tpt"], shard_size=3)
    one = Job(backbone_on, [small_dataset], chosen, tmp_path / "one", device=ONE, threads=1)
    two = Job(backbone_on, [small_dataset], chosen, tmp_path / "two", threads=1)
    with counted_batches() as counts:
        run_job(one)
    assert counts.devices == {ONE}
    run_job(two, ProcessEngine(2, DEVICES))
    assert rows(tmp_path / "one") == rows(tmp_path / "two")


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """``otpt train coop``, then ``otpt predict`` with what was learned; on the CPU and on a claimed device."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OTPT_CACHE", str(tmp_path / "cache"))
    open_clip_local_dir(tmp_path / "tiny")
    for label, name in enumerate(("cat", "sea")):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(2):
            image(2 * label + i).save(tmp_path / "data" / name / f"{i}.png")
    answers = []
    for device in ("cpu", ONE):
        model = ("--backbone", "tiny", "--device", device)
        training = ("--shots", 2, "--epochs", 1, "--crops", 2, "--out", f"{device}.safetensors")
        code, _, err = run(capsys, "train", "coop", "data", *model, *training)
        assert code == 0, err
        predict = ("--classes", "cat", "sea", "--views", 6, "--context", f"{device}.safetensors", "--json")
        code, out, err = run(
            capsys, "predict", "data/cat/0.png", *model, *predict, "--method", "coop", "coop+o-tpt", "zero-shot"
        )
        assert code == 0, err
        answers.append([json.loads(line)["confidence"] for line in out.splitlines()])
    assert answers[0] == pytest.approx(answers[1], abs=1e-4)
