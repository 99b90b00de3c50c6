"""Clients of the service; every number equal to the classifier's."""

from __future__ import annotations

import base64
import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from oracles.pages.servers import PATIENCE, Server, image_file, text_of
from PIL import Image

import otpt
from otpt.calibration import Calibrated, read_calibration

from .conftest import Local

pytestmark = pytest.mark.slow

CLOSE = 1e-6
ANIMALS = ["cat", "dog", "red panda", "owl"]
FRUIT = ["apple", "pear", "quince"]


def same(result: dict[str, Any], prediction: otpt.Prediction) -> bool:
    """Whether an answer is the classifier's; an image alone and in a batch agree to rounding."""
    top = prediction.top(len(result["top"]))
    extras = {name: float(value) for name, value in prediction.extras.items() if name != "unknown_score"}
    return (
        (result["label"], result["index"]) == (prediction.label, prediction.index)
        and result["confidence"] == pytest.approx(prediction.confidence, abs=CLOSE)
        and [each["label"] for each in result["top"]] == [label for label, _ in top]
        and [each["score"] for each in result["top"]] == pytest.approx([score for _, score in top], abs=CLOSE)
        and result["flags"] == list(prediction.flags)
        and result["extras"] == pytest.approx(extras, abs=CLOSE)
        and result.get("set") == (None if prediction.set is None else list(prediction.set))
        and result.get("abstained") == prediction.abstained
    )


def test_json_and_multipart_are_equal_to_the_classifier(local: Local, classifier: otpt.Classifier) -> None:
    images = [image_file(1), image_file(2, size=(70, 50), form="JPEG")]
    expected = [classifier.set_classes(ANIMALS).predict(each) for each in images]
    with local.client() as client:
        json_answer = client.post("/v1/predict", json={"images": [text_of(each) for each in images], "labels": ANIMALS})
        files = [("image", (f"{i}.bin", each)) for i, each in enumerate(images)]
        form = client.post("/v1/predict/form", files=files, data={"labels": ", ".join(ANIMALS), "top": "2"})
        repeated = client.post("/v1/predict/form", files=files[:1], data={"labels": ANIMALS})
    for answer in (json_answer, form, repeated):
        assert answer.status_code == 200, answer.text
        content = answer.json()
        assert content["model"] == "pocket"
        assert content["method"] == "tpt"
        assert content["labels"] == ANIMALS
        assert all(map(same, content["results"], expected))
        assert set(content["seconds"]) >= {"decode", "views", "encode", "predict", "queue"}
    assert [len(answer.json()["results"][0]["top"]) for answer in (json_answer, form)] == [4, 2]


def test_compare_and_its_views(local: Local, classifier: otpt.Classifier) -> None:
    methods = ["zero-shot", "tpt", "o-tpt"]
    expected = classifier.set_classes(FRUIT, "a drawing of a").compare(image_file(3), methods)
    asked = {"image": text_of(image_file(3)), "labels": FRUIT, "methods": methods, "prompt": "a drawing of a {}."}
    with local.client() as client:
        answer = client.post("/v1/compare", json={**asked, "show_views": True})
    assert answer.status_code == 200, answer.text
    (found,) = answer.json()["results"]
    assert list(found["methods"]) == methods
    assert all(same(found["methods"][name], expected[name]) for name in methods)
    views = found["views"]
    assert len(views["images"]) == len(views["entropies"]) == 8
    assert views["images"][0].startswith("data:image/jpeg;base64,")
    assert views["selected"] == [min(range(8), key=views["entropies"].__getitem__)]


def test_several_labels(local: Local, classifier: otpt.Classifier) -> None:
    expected = otpt.Classifier(classifier.backbone, multi_label=True, classes=ANIMALS).predict(image_file(3))
    asked = {
        "image": text_of(image_file(3)),
        "labels": ANIMALS,
        "multi_label": True,
        "threshold": 0.05,
        "explain": "owl",
    }
    with local.client() as client:
        answer = client.post("/v1/predict", json={**asked, "explain": "owl"}).json()
    (found,) = answer["results"]
    assert answer["method"] == "multi-label"
    assert same(found, expected)
    assert found["labels_above"] == expected.labels_above(0.05) != []
    assert found["heat_map"]["confidence"] == pytest.approx(dict(expected.top(4))["owl"], abs=CLOSE)


def test_a_single_label(local: Local, classifier: otpt.Classifier) -> None:
    with pytest.warns(UserWarning, match="owl"):  # not calibrated
        one = otpt.Classifier(classifier.backbone, classes=["owl"])
    expected = one.predict(image_file(3))
    with local.client() as client:
        answer = client.post("/v1/predict", json={"image": text_of(image_file(3)), "labels": ["owl"]}).json()
    assert same(answer["results"][0], expected)
    assert 0 < answer["results"][0]["confidence"] < 1


def test_groups_and_back_off(local: Local, classifier: otpt.Classifier) -> None:
    groups = {"animal": {"pet": ["cat", "dog"], "wild": ["red panda", "owl"]}}
    expected = classifier.set_classes(ANIMALS, groups=groups).predict(image_file(3))
    with local.client() as client:
        for threshold in (0.0, 0.999):
            asked = {"labels": ANIMALS, "groups": groups, "threshold": threshold}
            (found,) = client.post("/v1/predict", json={"image": text_of(image_file(3)), **asked}).json()["results"]
            best = expected.back_off(threshold)
            assert best is not None
            assert same(found, expected)
            assert found["groups"] == pytest.approx(expected.groups, abs=CLOSE)
            assert (found["back_off"]["name"], found["back_off"]["classes"]) == (best.name, best.classes)
    classifier.set_classes(ANIMALS)


def test_labels_of_each_image(local: Local, classifier: otpt.Classifier) -> None:
    images, lists = [image_file(i) for i in range(3)], [ANIMALS, FRUIT, ANIMALS]
    expected = [classifier.set_classes(own).predict(image) for own, image in zip(lists, images, strict=True)]
    with local.client() as client:
        asked = {"images": [text_of(each) for each in images], "labels": lists}
        answer = client.post("/v1/predict", json=asked).json()
    assert answer["labels"] == lists
    assert all(map(same, answer["results"], expected))


def test_a_heat_map_is_that_of_the_classifier(local: Local, classifier: otpt.Classifier) -> None:
    data = image_file(5, size=(64, 40))
    classifier.set_classes(FRUIT)
    with local.client() as client:
        for label in (True, "quince"):
            asked = {"image": text_of(data), "labels": FRUIT, "explain": label}
            (found,) = client.post("/v1/predict", json=asked).json()["results"]
            expected = classifier.explain(data, None if label is True else label)
            shown = found["heat_map"]
            assert (shown["label"], tuple(shown["peak"])) == (expected.label, expected.peak)
            assert shown["confidence"] == pytest.approx(expected.confidence, abs=CLOSE)
            layer = Image.open(io.BytesIO(base64.b64decode(shown["image"].partition(",")[2])))
            assert (layer.format, layer.mode, layer.size) == ("PNG", "RGBA", (64, 40))
            difference = np.abs(np.asarray(layer, int) - np.asarray(expected.layer(), int))
            assert (difference[..., 3] <= 1).all()


def test_names_of_class_lists_and_calibrations(
    local: Local, classifier: otpt.Classifier, folders: tuple[Path, Path]
) -> None:
    calibrated = Calibrated(read_calibration(folders[1] / "animals.json"), coverage=0.8)
    expected = classifier.set_classes(ANIMALS).use_calibrations([calibrated]).predict(image_file(4))
    classifier.use_calibrations([])
    asked = {"image": text_of(image_file(4)), "classes": "animals", "calibration": ["animals"], "coverage": 0.8}
    with local.client() as client:
        answer = client.post("/v1/predict", json=asked).json()
        listed = client.get("/v1/classes").json()
        drawn = client.post(
            "/v1/predict", json={"image": text_of(image_file(4)), "classes": "drawn", "reject": True}
        ).json()
    (found,) = answer["results"]
    assert found["set"]
    assert same(found, expected)
    assert [each["name"] for each in listed["classes"]] == ["animals", "drawn"]
    assert listed["calibrations"][0] == {
        "name": "animals",
        "method": "tpt",
        "model": "pocket",
        "labels": 24,
        "count": 4,
    }
    recipe = replace(classifier.recipe, augmix=False)
    own = otpt.load("pocket", "tpt", device="cpu", family="shift", reject="word-margin", views=recipe)
    by_file = own.set_classes(["apple", "pear"], "a drawing of a").predict(image_file(4))
    assert same(drawn["results"][0], by_file)
    assert drawn["results"][0]["rejected"] is by_file.rejected
    assert drawn["results"][0]["unknown_score"] == pytest.approx(by_file.unknown_score, abs=CLOSE)
    assert not {"abstained", "rejected", "unknown_score"} & set(found)


def test_the_client_of_hugging_face(server: Server, classifier: otpt.Classifier, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    errors = pytest.importorskip("huggingface_hub.errors")
    photo = tmp_path / "photo.png"
    photo.write_bytes(image_file(5))
    template = "a drawing of a {}."
    expected = list(classifier(image_file(5), FRUIT, hypothesis_template=template))
    for url in (server.url, f"{server.url}/models/pocket", f"{server.url}/models/twin"):
        client = hub.InferenceClient(model=url, timeout=PATIENCE)
        found = client.zero_shot_image_classification(str(photo), candidate_labels=FRUIT, hypothesis_template=template)
        assert [each.label for each in found] == [each["label"] for each in expected]
        assert [each.score for each in found] == pytest.approx([each["score"] for each in expected], abs=CLOSE)
    client = hub.InferenceClient(model=f"{server.url}/models/absent", timeout=PATIENCE)
    with pytest.raises(errors.HfHubHTTPError, match="Unknown model 'absent'"):
        client.zero_shot_image_classification(str(photo), candidate_labels=FRUIT)


def test_many_clients_at_once_get_their_own_answers(local: Local, classifier: otpt.Classifier) -> None:
    lists = {"animals": ANIMALS, "fruit": FRUIT, "both": [*ANIMALS, *FRUIT]}
    jobs = [
        (name, method, seed, model)
        for seed, method in enumerate(["zero-shot", "tpt", "o-tpt", "zero", "tpt+sals"])
        for name in lists
        for model in ("pocket", "twin")
    ]

    def ask(job: tuple[str, str, int, str]) -> httpx.Response:
        name, method, seed, model = job
        asked = {"labels": lists[name], "method": method, "model": model, "seed": seed, "top": 10}
        with local.client() as client:
            return client.post(
                "/v1/predict", json={"images": [text_of(image_file(seed)), text_of(image_file(9))], **asked}
            )

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(ask, jobs))
    for (name, method, seed, model), answer in zip(jobs, answers, strict=True):
        assert answer.status_code == 200, answer.text
        own = otpt.Classifier(classifier.backbone, method, views=classifier.recipe, seed=seed).set_classes(lists[name])
        assert answer.json()["model"] == model
        assert all(map(same, answer.json()["results"], own.predict([image_file(seed), image_file(9)])))


def test_what_there_is(local: Local, classifier: otpt.Classifier) -> None:
    with local.client() as client:
        models = client.get("/v1/models").json()
        methods = client.get("/v1/methods").json()
        examples = client.get("/v1/examples").json()["examples"]
        assert client.get("/healthz").json() == {"status": "alive"}
        assert client.get("/readyz").status_code == 200
        counters = client.get("/metrics").text
    assert [each["name"] for each in models["models"]] == ["pocket", "twin"]
    assert (models["default"], models["views"], models["seed"]) == ("pocket", 8, 0)
    assert models["models"][0]["fingerprint"] == classifier.backbone.fingerprint
    names = {each["name"] for each in methods["methods"]}
    assert {"zero-shot", "tpt", "o-tpt"} <= names
    assert not names & {"tda", "baple", "coop+tpt", "promptsmooth"}
    assert set(methods["parts"]) >= {"init", "adapt", "calibrate", "aggregate", "gate"}
    assert all(each["label"] and each["image"] for each in examples)
    for name in ("requests_total", "request_seconds_bucket", "queue_images", "batch_images_bucket"):
        assert f"otpt_{name}" in counters
    assert 'otpt_text_cache_total{outcome="miss"}' in counters
    assert "otpt_text_cache_bytes" in counters
    assert "process_resident_memory_bytes" in counters
