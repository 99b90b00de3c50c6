"""What the service was started with is the default of requests; clients see no folders of its machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from oracles.models.tiny import open_clip_local_dir
from oracles.pages.servers import image_file, text_of
from prometheus_client.parser import text_string_to_metric_families

import otpt
from otpt.cli.serve import LimitOptions, ServiceOptions
from otpt.errors import OtptError
from otpt.serve import Service, create_app
from otpt.serve.config import public_name

IMAGE = {"image": text_of(image_file(3)), "method": "zero-shot"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secret") / "birds"
    folder.mkdir()
    open_clip_local_dir(folder)
    return folder


def started(*classes: str, backbone: Sequence[str] = ("pocket",), **options: Any) -> TestClient:
    config = ServiceOptions(classes=classes, backbone=tuple(backbone), device="cpu", **options).config(LimitOptions())
    return TestClient(create_app(Service.from_config(config)))


def test_class_names_are_the_default_of_every_model(folder: Path) -> None:
    with started("panda", "dog", backbone=("pocket", f"tiny=local-dir:{folder}"), method="zero-shot") as client:
        assert client.get("/v1/classes").json()["default"] == "default"
        for model in ("pocket", "tiny"):
            answer = client.post("/v1/predict", json={**IMAGE, "model": model}).json()
            assert answer["labels"] == ["panda", "dog"]
            clf = otpt.load("pocket" if model == "pocket" else f"local-dir:{folder}", "zero-shot", device="cpu")
            expected = clf.set_classes(["panda", "dog"]).predict(image_file(3))
            assert answer["results"][0]["confidence"] == pytest.approx(expected.confidence, abs=1e-5)
        named = client.post("/v1/predict", json={**IMAGE, "labels": ["cat", "owl"]}).json()
        assert named["labels"] == ["cat", "owl"]
        client.post("/v1/predict/form", files=[("image", image_file(3))], data={"method": "zero-shot"})
        text = client.get("/metrics").text
    counted = {
        sample.labels["classes"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "classes" in sample.labels
    }
    assert counted == {"default", "(in the request)"}


def test_a_single_file_is_the_default_and_several_are_named(tmp_path: Path) -> None:
    for name, lines in (("pets", "cat\ndog\n"), ("fruit", "apple\npear\n")):
        (tmp_path / f"{name}.txt").write_text(lines, encoding="utf-8")
    with started(f"@{tmp_path}/pets.txt") as client:
        assert client.post("/v1/predict", json=IMAGE).json()["labels"] == ["cat", "dog"]
    with started(f"@{tmp_path}") as client:
        answer = client.post("/v1/predict", json=IMAGE)
        assert answer.status_code == 422
        for name in ("pets", "fruit"):
            assert f"'{name}'" in answer.json()["error"]["message"]
        assert client.get("/v1/classes").json()["default"] is None
    with started("sun", "moon", f"@{tmp_path}/pets.txt") as client:
        assert client.post("/v1/predict", json=IMAGE).json()["labels"] == ["sun", "moon"]
    with started() as client:
        assert client.post("/v1/predict", json=IMAGE).status_code == 422


def test_groups_of_the_default_classes(tmp_path: Path) -> None:
    groups = tmp_path / "groups.csv"
    groups.write_text("cat,pet\ndog,pet\nsun,star\n", encoding="utf-8")
    for classes in ((), ("cat", "dog", "sun")):
        with started(*classes, groups=groups) as client:
            answer = client.post("/v1/predict", json=IMAGE).json()
            assert answer["labels"] == ["cat", "dog", "sun"]
            assert set(answer["results"][0]["groups"]) == {"pet", "star"}
            assert "back_off" in answer["results"][0]
            other = client.post("/v1/predict", json={**IMAGE, "labels": ["a", "b"]}).json()
            assert "groups" not in other["results"][0]
            own = client.post("/v1/predict", json={**IMAGE, "groups": {"animal": ["cat", "dog"]}}).json()
            assert set(own["results"][0]["groups"]) == {"animal"}
    for name in ("pets", "fruit"):
        (tmp_path / f"{name}.txt").write_text("cat\ndog\n", encoding="utf-8")
    with pytest.raises(OtptError, match="default"):
        started(f"@{tmp_path}", groups=groups)


# ---- names of models ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("pocket", "pocket"),
        ("ViT-B-16/openai", "ViT-B-16/openai"),
        ("hf:openai/clip-vit-base-patch32", "hf:openai/clip-vit-base-patch32"),
        ("hf-hub:org/name", "hf-hub:org/name"),
        ("local-dir:/data/secret/birds", "birds"),
        ("/data/secret/finetuned.pt", "finetuned"),
        ("models/finetuned.safetensors", "finetuned"),
    ],
)
def test_public_names(spec: str, name: str) -> None:
    assert public_name(spec) == name


def test_folders_stay_unknown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    for spec in (f"local-dir:{folder}", str(folder), "./birds", "local-dir:birds"):
        assert public_name(spec) == "birds"
    with started("cat", "dog", backbone=(f"local-dir:{folder}",), method="zero-shot") as client:
        texts = [
            client.get(path).text for path in ("/v1/models", "/v1/classes", "/metrics", "/v1/methods", "/openapi.json")
        ]
        for body in (
            IMAGE,
            {**IMAGE, "model": "other"},
            {**IMAGE, "calibration": ["x"]},
            {**IMAGE, "method": "nothing"},
        ):
            texts.append(client.post("/v1/predict", json=body).text)
        assert (
            client.post(
                "/models/birds", json={"inputs": IMAGE["image"], "parameters": {"candidate_labels": ["a", "b"]}}
            ).status_code
            == 200
        )
    assert [text for text in texts if "secret" in text or str(folder.parent) in text] == []
    assert '"birds"' in texts[0]
    with pytest.raises(OtptError, match="once"):
        started(backbone=(f"local-dir:{folder}", str(folder)))


# ---- forms ----------------------------------------------------------------------------------------------------------


def test_forms_take_images_as_json_does() -> None:
    with started("cat", "dog", method="zero-shot") as client:
        several = [("images", image_file(3)), ("images", image_file(4))]
        answers = [
            client.post("/v1/predict/form", files=several),
            client.post("/v1/predict/form", files=[("image", data) for _, data in several]),
            client.post("/v1/predict", json={"images": [text_of(image_file(3)), text_of(image_file(4))]}),
        ]
        found = [answer.json()["results"] for answer in answers]
        for results in found[1:]:
            assert [result["label"] for result in results] == [result["label"] for result in found[0]]
            confidences = [result["confidence"] for result in results]
            assert confidences == pytest.approx([result["confidence"] for result in found[0]], abs=1e-6)
        both = [("images", image_file(3)), ("image", image_file(4))]
        for files in (both, [("picture", image_file(3))]):
            answer = client.post("/v1/predict/form", files=files)
            assert answer.status_code == 422


# ---- text from outside ----------------------------------------------------------------------------------------------


def test_hostile_names(tmp_path: Path) -> None:
    names = ('a"b\n{x}', "<script>alert(1)</script>", "\u202e\\")
    lists = {name: otpt.data.ClassList(("cat", "<b>dog</b>"), ("cat", "<b>dog</b>")) for name in names}
    service = Service({'m"\n\\': otpt.load_backbone("pocket", device="cpu")}, classes=lists, method="zero-shot")
    with TestClient(create_app(service)) as client:
        for name in names:
            answer = client.post("/v1/predict", json={**IMAGE, "classes": name})
            assert answer.status_code == 200, answer.text
            assert answer.headers["content-type"] == "application/json"
        text = client.get("/metrics").text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        assert {sample.labels["classes"] for sample in samples if "classes" in sample.labels} == set(names)
        assert {sample.labels["model"] for sample in samples if "model" in sample.labels} == {'m"\n\\'}
