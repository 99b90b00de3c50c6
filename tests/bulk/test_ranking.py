"""The least certain images first, as rows and as tasks of Label Studio, and the labels back from its exports."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import otpt
from otpt.bulk import rank, uncertainty
from otpt.bulk.ranking import read_ranked
from otpt.cli import main
from otpt.data import Dataset, label_studio_dataset, load_dataset
from otpt.data.classes import ClassList
from otpt.data.label_studio import is_ranked
from otpt.errors import OtptError
from otpt.images import open_image
from otpt.prediction import Prediction

CLASSES = ("cat", "dog", "sun")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(6):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number} é.png")
    return folder


@pytest.fixture(scope="module")
def classifier() -> otpt.Classifier:
    return otpt.load("pocket", "zero-shot", device="cpu", classes=CLASSES)


def prediction(*probabilities: float, threshold: float = 0.5) -> Prediction:
    values = np.array(probabilities)
    best = int(values.argmax())
    return Prediction("x", float(values[best]), best, values, CLASSES[: len(values)], "zero-shot", threshold=threshold)


def test_uncertainty() -> None:
    assert uncertainty(prediction(0.9, 0.1), several_labels=False) == pytest.approx(0.1)
    assert uncertainty(prediction(0.5, 0.99, 0.01), several_labels=True) == 1.0
    assert uncertainty(prediction(1.0, 0.0), several_labels=True) == 0.0
    assert uncertainty(prediction(0.3, threshold=0.2), several_labels=True) == pytest.approx(1 - 0.1 / 0.8)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_sorted_rows_are_those_of_an_ordinary_file(
    photos: Path, classifier: otpt.Classifier, tmp_path: Path, suffix: str
) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    source = [*sorted(photos.iterdir()), bad]
    methods = ["zero-shot", "mean-probability"]
    result = rank(classifier, source, tmp_path / f"s{suffix}", methods=methods)
    otpt.bulk.predict(classifier, source, tmp_path / f"p{suffix}", methods=methods)
    assert (result.images, result.failed, result.path) == (7, 1, str(tmp_path / f"s{suffix}"))
    found, plain = read(tmp_path / f"s{suffix}"), read(tmp_path / f"p{suffix}")
    first = [row for row in found if row.get("method") == "zero-shot"]
    assert [row["uncertainty"] for row in first] == sorted((row["uncertainty"] for row in first), reverse=True)
    assert found[-1]["image"] == str(bad)
    assert {key(row) for row in found} == {key(row) for row in plain}
    for one, other in zip(found[:-1:2], found[1::2], strict=False):
        assert one["image"] == other["image"], "methods of an image stay together"


def key(row: dict[str, Any]) -> tuple[object, ...]:
    return row["image"], row.get("method") or None, row.get("label") or None


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    table = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    return list(table.astype(object).where(table.notna(), None).to_dict("records"))


def test_new_images_are_sorted_in(photos: Path, classifier: otpt.Classifier, tmp_path: Path) -> None:
    files = sorted(photos.iterdir())
    out = tmp_path / "s.csv"
    rank(classifier, files[:3], out)
    assert len(read(out)) == 3
    rank(classifier, files, out)
    assert len(read(out)) == 6
    assert len(read_ranked(f"{out}.rows.jsonl")) == 6
    rank(classifier, files, tmp_path / "whole.csv")
    assert (tmp_path / "whole.csv").read_bytes() == out.read_bytes()


def test_other_files_are_not_overwritten(photos: Path, classifier: otpt.Classifier, tmp_path: Path) -> None:
    out = tmp_path / "s.csv"
    out.write_text("mine", encoding="utf-8")
    with pytest.raises(OtptError, match="exists"):
        rank(classifier, photos, out)
    assert out.read_text(encoding="utf-8") == "mine"
    rank(classifier, photos, out, overwrite=True)
    assert len(read(out)) == 6
    for wrong in ("folder", "s3://bucket/s.csv", "s.json"):
        with pytest.raises(OtptError, match="written"):
            rank(classifier, photos, wrong)


# ---- Label Studio ---------------------------------------------------------------------------------------------------


def tasks_of(classifier: otpt.Classifier, photos: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.chdir(photos)
    rank(classifier, ".", folder / "t.json", export="label-studio")
    tasks: list[Any] = json.loads((folder / "t.json").read_text("utf-8"))
    return tasks


def test_tasks_fit_their_interface(
    photos: Path, classifier: otpt.Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = tasks_of(classifier, photos, tmp_path, monkeypatch)
    view = ElementTree.fromstring((tmp_path / "t.xml").read_text("utf-8"))
    (choices,) = view.iter("Choices")
    (image,) = view.iter("Image")
    assert choices.get("toName") == image.get("name")
    names = [choice.get("value") for choice in choices]
    assert names == list(CLASSES)
    scores = [task["predictions"][0]["score"] for task in tasks]
    assert scores == sorted(scores)
    for task in tasks:
        assert f"${image.get('value', '').removeprefix('$')}" == f"${'image'}"
        assert task["data"]["image"].startswith("/data/local-files/?d=")
        assert " " not in task["data"]["image"]
        (result,) = task["predictions"][0]["result"]
        assert (result["from_name"], result["to_name"], result["type"]) == (
            choices.get("name"),
            image.get("name"),
            "choices",
        )
        assert set(result["value"]["choices"]) <= set(names)
    ids = [task["predictions"][0]["result"][0]["id"] for task in tasks]
    assert len(set(ids)) == len(ids)


@pytest.mark.filterwarnings("ignore:The probability that")
@pytest.mark.parametrize(("classes", "multi_label"), [(("cat",), False), (CLASSES, True)])
def test_tasks_of_independent_labels(
    photos: Path, tmp_path: Path, classes: Sequence[str], multi_label: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clf = otpt.load("pocket", device="cpu", multi_label=multi_label, threshold=0.1, classes=classes)
    tasks = tasks_of(clf, photos, tmp_path, monkeypatch)
    kind = next(ElementTree.fromstring((tmp_path / "t.xml").read_text("utf-8")).iter("Choices")).get("choice")
    assert kind == ("multiple" if multi_label else "single")
    found = [task["predictions"][0]["result"][0]["value"]["choices"] for task in tasks]
    for task, choices in zip(tasks, found, strict=True):
        above = clf.predict(photos / task["data"]["path"]).labels_above()
        assert choices == (above if multi_label else ["yes" if above else "no"])


def test_tasks_of_a_list_of_files(photos: Path, classifier: otpt.Classifier, tmp_path: Path) -> None:
    files = sorted(photos.iterdir())
    rank(classifier, files, tmp_path / "t.json", export="label-studio")
    tasks = json.loads((tmp_path / "t.json").read_text("utf-8"))
    assert sorted(task["data"]["path"] for task in tasks) == [str(file) for file in files]


def test_images_without_files_are_refused(classifier: otpt.Classifier, tmp_path: Path) -> None:
    with pytest.raises(OtptError, match="emoji/food"):
        rank(classifier, otpt.data.open_source("emoji/food"), tmp_path / "t.json", export="label-studio")


def size_of(dataset: Dataset, index: int) -> tuple[int, int]:
    with open_image(dataset.source(index)) as image:
        return image.size


def annotated(tasks: list[Any], labels: Sequence[Sequence[str]]) -> list[Any]:
    """Tasks as Label Studio's JSON export has them, with an annotation that was skipped before the one that counts."""
    exported = []
    for number, (task, chosen) in enumerate(zip(tasks, labels, strict=True), start=1):
        annotations = [
            annotation(number, chosen, updated="2026-03-09T22:16:08Z"),
            annotation(number, ["sun"], updated="2026-03-09T21:00:00Z"),
            annotation(number, ["sun"], updated="2026-03-10T21:00:00Z", was_cancelled=True),
        ]
        exported.append({"id": number, "project": 83, "annotations": annotations, **task})
    return exported


def annotation(number: int, chosen: Sequence[str], *, updated: str, was_cancelled: bool = False) -> dict[str, Any]:
    value = {"choices": list(chosen)}
    result = {"id": f"r{number}", "type": "choices", "from_name": "label", "to_name": "image", "value": value}
    facts = {"was_cancelled": was_cancelled, "ground_truth": False, "updated_at": updated, "lead_time": 4.2}
    return {"id": 1000 + number, "completed_by": 10, "result": [result], **facts}


def as_json(path: Path, tasks: list[Any], labels: Sequence[Sequence[str]]) -> Path:
    path = path.with_suffix(".json")
    path.write_text(json.dumps(annotated(tasks, labels)), encoding="utf-8")
    return path


def as_json_min(path: Path, tasks: list[Any], labels: Sequence[Sequence[str]]) -> Path:
    path = path.with_suffix(".json")
    rows = [
        {**task["data"], "id": 7, "label": cell(chosen, as_text=False), "annotator": 1, "lead_time": 1.5}
        for task, chosen in zip(tasks, labels, strict=True)
    ]
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def as_csv(path: Path, tasks: list[Any], labels: Sequence[Sequence[str]]) -> Path:
    path = path.with_suffix(".csv")
    facts = {"annotation_id": 3, "annotator": 1, "created_at": "x", "id": 7, "lead_time": 1.5, "updated_at": "y"}
    rows = [
        {**facts, **task["data"], "label": cell(chosen, as_text=True), "was_cancelled": "False"}
        for task, chosen in zip(tasks, labels, strict=True)
    ]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, sorted(rows[0]), quoting=csv.QUOTE_NONNUMERIC)
        writer.writeheader()
        writer.writerows(rows)
    return path


def cell(chosen: Sequence[str], *, as_text: bool) -> object:
    """One choice is a text, several are an object; a CSV file has it as JSON."""
    value: object = chosen[0] if len(chosen) == 1 else {"choices": list(chosen)}
    return json.dumps(value) if as_text and not isinstance(value, str) else value


@pytest.mark.parametrize("write", [as_json, as_json_min, as_csv])
def test_labels_come_back(
    write: Callable[[Path, list[Any], Sequence[Sequence[str]]], Path],
    photos: Path,
    classifier: otpt.Classifier,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks = tasks_of(classifier, photos, tmp_path, monkeypatch)
    labels = [["cat"], ["dog"], ["cat"], ["dog"], ["dog"], ["cat"]]
    dataset = load_dataset(str(write(tmp_path / "export", tasks, labels)), classes=["dog", "cat"])
    assert dataset.class_names == ("dog", "cat")
    assert [dataset.class_names[label] for label in dataset.labels] == [label for (label,) in labels]
    for index, task in enumerate(tasks):
        assert size_of(dataset, index) == (40, 40)
        assert dataset.ids[index].endswith(Path(task["data"]["path"]).name)

    several = [["cat", "dog"], ["dog"], ["cat"], ["dog"], ["dog"], ["cat"]]
    path = write(tmp_path / "several", tasks, several)
    with pytest.raises(OtptError, match="2 labels"):
        load_dataset(str(path))
    dataset = label_studio_dataset(path, multi_label=True)
    assert [[dataset.class_names[i] for i in dataset.labels_of(n)] for n in range(6)] == several

    path = write(tmp_path / "yes", tasks, [["yes"], ["no"]] * 3)
    dataset = label_studio_dataset(path, ClassList(("cat",), ("cat",)))
    assert [dataset.labels_of(n) for n in range(6)] == [(0,), ()] * 3


def test_ranked_labels_are_recognised(
    photos: Path, classifier: otpt.Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = tasks_of(classifier, photos, tmp_path, monkeypatch)
    labels = [["cat"], ["dog"]] * 3
    for write in (as_json, as_json_min, as_csv):
        assert is_ranked(write(tmp_path / "ranked", tasks, labels))
    rank(classifier, photos, tmp_path / "rows.csv")
    otpt.bulk.predict(classifier, photos, tmp_path / "plain.csv")
    assert is_ranked(tmp_path / "rows.csv")
    assert not is_ranked(tmp_path / "plain.csv")
    own = [{"data": {"image": task["data"]["path"]}, "predictions": []} for task in tasks]
    for write in (as_json, as_json_min, as_csv):
        assert not is_ranked(write(tmp_path / "own", own, labels))
    assert not is_ranked(photos)
    assert not is_ranked(tmp_path / "missing.json")


def test_a_calibration_on_ranked_labels_has_a_note(
    classifier: otpt.Classifier,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "many").mkdir()
    for number in range(24):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "many" / f"{number}.png")
    tasks = tasks_of(classifier, tmp_path / "many", tmp_path, monkeypatch)
    own = [{"data": {"image": task["data"]["path"]}} for task in tasks]
    (tmp_path / "classes.txt").write_text("\n".join(CLASSES), encoding="utf-8")
    options = ["--methods", "zero-shot", "--backbone", "pocket", "--device", "cpu", "--classes"]
    for number, (chosen, noted) in enumerate([(tasks, True), (own, False)]):
        file = as_json(tmp_path / f"export{number}", chosen, [["cat"], ["dog"], ["sun"]] * 8)
        out = ["--run", str(tmp_path / f"run{number}"), "-o", str(tmp_path / f"cal{number}.json")]
        assert main(["calibrate", str(file), *options, f"@{tmp_path / 'classes.txt'}", *out]) == 0
        assert ("at random" in capsys.readouterr().err) == noted


@pytest.mark.parametrize(
    "image", ["/data/local-files/?d=0%20%C3%A9.png", "/data/upload/12/0a1b2c3d-0%20%C3%A9.png", "0 é.png"]
)
def test_images_by_their_address_in_label_studio(
    photos: Path, tmp_path: Path, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = as_json(tmp_path / "export", [{"data": {"image": image}}], [["cat"]])
    with pytest.raises(OtptError, match="0 é"):
        load_dataset(str(path))
    assert size_of(load_dataset(str(path), root=photos), 0) == (40, 40)


@pytest.mark.parametrize(
    "content", ["{}", "[1]", "[]", '[{"annotations": []}]', "[[", '[{"annotations": [{"result": 3}]}]']
)
def test_what_is_no_export(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(OtptError):
        load_dataset(str(path))
