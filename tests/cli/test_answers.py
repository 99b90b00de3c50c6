"""All kinds of questions × all formats: the same labels and numbers on the terminal, in files and over HTTP."""

from __future__ import annotations

import base64
import csv
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fastapi.testclient import TestClient

import otpt as package
from otpt.cli import main
from otpt.escapes import csv_name
from otpt.serve import Service, create_app

from .conftest import Run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The probability that"),
    pytest.mark.filterwarnings("ignore:fit_temperature"),
]

CLASSES = ["cat", "dog", "=sun"]
GROUPS = {"pet": ["cat", "dog"]}
METHOD = "zero-shot"
Row = Mapping[str, Any]


@pytest.fixture(scope="module")
def photos(images: Path) -> list[Path]:
    return sorted(images.rglob("*.png"))


@pytest.fixture(scope="module")
def calibration(images: Path, photos: list[Path], model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("calibrations") / "cal.json"
    clf = package.load(model, METHOD, device="cpu", classes=CLASSES)
    labels = [prediction.index for prediction in clf.predict(photos * 5)]
    labels[::4] = [(label + 1) % len(CLASSES) for label in labels[::4]]
    clf.calibrate(photos * 5, labels).write(file)
    return file


@pytest.fixture(scope="module")
def client(model: str, calibration: Path) -> Iterator[TestClient]:
    service = Service.from_config(
        package.serve.ServiceConfig(models={"tiny": model}, calibrations=calibration.parent, method=METHOD)
    )
    with TestClient(create_app(service)) as client:
        yield client


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("groups") / "groups.csv"
    file.write_text("cat,pet\ndog,pet\n", encoding="utf-8")
    return file


QUESTIONS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "one label of three": (["--classes", *CLASSES], {"labels": CLASSES}),
    "one label": (["--classes", "cat"], {"labels": ["cat"]}),
    "one label above": (["--classes", "cat", "--threshold", "0.05"], {"labels": ["cat"], "threshold": 0.05}),
    "several labels": (["--classes", *CLASSES, "--multi-label"], {"labels": CLASSES, "multi_label": True}),
    "no label": (
        ["--classes", *CLASSES, "--multi-label", "--threshold", "1"],
        {"labels": CLASSES, "multi_label": True, "threshold": 1.0},
    ),
    "groups": (
        ["--classes", *CLASSES, "--groups", "GROUPS", "--threshold", "0.5"],
        {"labels": CLASSES, "groups": GROUPS, "threshold": 0.5},
    ),
    "groups, none above": (
        ["--classes", *CLASSES, "--groups", "GROUPS", "--threshold", "1"],
        {"labels": CLASSES, "groups": GROUPS, "threshold": 1.0},
    ),
    "sets": (
        ["--classes", *CLASSES, "--calibration", "CALIBRATION", "--coverage", "0.6"],
        {"labels": CLASSES, "calibration": ["cal"], "coverage": 0.6},
    ),
    "abstention": (
        ["--classes", *CLASSES, "--calibration", "CALIBRATION", "--risk", "0.5"],
        {"labels": CLASSES, "calibration": ["cal"], "risk": 0.5},
    ),
    "rejection": (["--classes", *CLASSES, "--reject"], {"labels": CLASSES, "reject": True}),
}
"""Options of the command line and fields of requests, by question."""


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_format_has_the_same_answers(
    question: str, otpt: Run, photos: list[Path], model: str, calibration: Path, groups: Path, client: TestClient
) -> None:
    options, fields = QUESTIONS[question]
    places = {"CALIBRATION": str(calibration), "GROUPS": str(groups)}
    methods = (
        [] if question in ("one label", "one label above", "several labels", "no label") else ["--methods", METHOD]
    )
    words = ["predict", *photos, *(places.get(word, word) for word in options), *methods, "--backbone", model]
    assert otpt(*words, "--top", "3", "-o", "p.jsonl")[0] == 0
    expected = [json.loads(line) for line in Path("p.jsonl").read_text("utf-8").splitlines()]

    code, out, _ = otpt(*words, "--json", "--top", "3")
    assert code == 0
    assert [json.loads(line) for line in out.splitlines()] == expected

    for file in ("p.csv", "p.parquet"):
        assert otpt(*words, "--top", "3", "-o", file)[0] == 0
    table = pd.read_parquet("p.parquet").astype(object)
    compare_table(expected, table.where(table.notna(), None).to_dict("records"))
    with open("p.csv", newline="", encoding="utf-8") as lines:
        compare_table(expected, [{name: csv_name(cell) for name, cell in row.items()} for row in csv.DictReader(lines)])

    code, out, _ = otpt(*words)
    assert code == 0
    for row, line in zip(expected, out.splitlines()[: len(expected)], strict=True):
        for text in shown_on_terminal(row, one_class=len(fields["labels"]) == 1):
            assert text in line
    code, out, _ = otpt(words[0], photos[0], *words[len(photos) + 1 :])
    assert code == 0
    for name in ("label",):
        assert str(expected[0][name]) in out
    if "back_off" in expected[0]:
        assert shown_back_off(expected[0]) in out

    body = {"images": [base64.b64encode(path.read_bytes()).decode() for path in photos], "top": 3, **fields}
    answer = client.post("/v1/predict", json=body)
    assert answer.status_code == 200, answer.text
    for row, result in zip(expected, answer.json()["results"], strict=True):
        compare_http(row, result)


def compare_table(expected: list[Row], rows: list[dict[str, Any]]) -> None:
    for row, flat in zip(expected, rows, strict=True):
        assert flat["label"] == row["label"]
        for name in ("confidence", "unknown_score"):
            if name in row:
                assert float(flat[name]) == pytest.approx(row[name], rel=1e-9)
        for rank, best in enumerate(row["top"], start=1):
            assert flat[f"label_{rank}"] == best["label"]
            assert float(flat[f"probability_{rank}"]) == pytest.approx(best["probability"], rel=1e-9)
        for name in ("set", "labels_above"):
            assert (name in flat) == (name in row)
            if name in row:
                assert (flat[name] or "").split(" | ") == ([csv_name(label) for label in row[name]] or [""])
        for name in ("abstained", "rejected"):
            assert (name in flat) == (name in row)
            if name in row:
                assert str(flat[name]) == str(row[name])
        assert ("back_off" in flat) == ("back_off" in row)
        if "back_off" in row:
            best = row["back_off"] or {"name": None, "confidence": None}
            assert (flat["back_off"] or None) == best["name"]
            assert (flat["back_off_confidence"] or None) in (None, str(best["confidence"]), best["confidence"])
        for name, probability in row.get("groups", {}).items():
            assert float(flat[f"group {name}"]) == pytest.approx(probability, rel=1e-9)
        for name, value in row["extras"].items():
            assert math.isclose(float(flat[name]), value, rel_tol=1e-9)


def compare_http(row: Row, result: Row) -> None:
    """A request may have other batches, and so other roundings."""
    assert result["label"] == row["label"]
    assert result["confidence"] == pytest.approx(row["confidence"], abs=1e-5)
    for one, other in zip(row["top"], result["top"], strict=True):
        assert one["label"] == other["label"]
        assert one["probability"] == pytest.approx(other["score"], abs=1e-5)
    for name in ("set", "labels_above", "abstained", "rejected"):
        assert row.get(name) == result.get(name)
    assert ("back_off" in row) == ("back_off" in result)
    best, other = row.get("back_off"), result.get("back_off")
    assert (best is None) == (other is None)
    if best is not None:
        assert best["name"] == other["name"]
        assert best["confidence"] == pytest.approx(other["confidence"], abs=1e-5)
    assert set(row["extras"]) == set(result["extras"])
    assert row.get("unknown_score", 0) == pytest.approx(result.get("unknown_score", 0), abs=1e-4)


def shown_on_terminal(row: Row, *, one_class: bool) -> list[str]:
    """What a line must show of an answer."""
    number = f"{100 * row['confidence']:.1f}"
    if row.get("abstained"):
        return ["(abstained)", number]
    if one_class:
        return [f"cat: {'yes' if row['labels_above'] else 'no'}", number]
    if "labels_above" in row:
        return row["labels_above"] or ["(none)"]
    if "back_off" in row:
        return [shown_back_off(row)]
    if "set" in row:
        return [" | ".join(row["set"]), number]
    return [row["label"], number]


def shown_back_off(row: Row) -> str:
    best = row["back_off"]
    return "(none)" if best is None else f"{best['name']} {100 * best['confidence']:.1f}"


def test_columns_of_all_methods(otpt: Run, photos: list[Path], model: str) -> None:
    """A number that only the second method has is in the file, too."""
    words = ["predict", *photos, "--classes", *CLASSES[:2], "--backbone", model, "--views", "4"]
    assert otpt(*words, "--methods", "zero-shot", "o-tpt+sals", "-o", "p.csv")[0] == 0
    assert otpt(*words, "--methods", "zero-shot", "o-tpt+sals", "-o", "p.jsonl")[0] == 0
    rows = [json.loads(line) for line in Path("p.jsonl").read_text("utf-8").splitlines()]
    columns = set(pd.read_csv("p.csv").columns)
    assert {name for row in rows for name in row["extras"]} <= columns


# ---- yes and no -----------------------------------------------------------------------------------------------------


def copy_of(path: Path, folder: Path) -> Path:
    target = folder / path.parent.name / path.name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(path.read_bytes())
    return target


@pytest.mark.parametrize(("yes", "no"), [("yes", "no"), ("True", "false"), ("1", "0"), ("cat", "no")])
@pytest.mark.parametrize("column", ["label", "labels"])
def test_tables_of_yes_and_no(
    otpt: Run, photos: list[Path], model: str, yes: str, no: str, column: str, tmp_path: Path
) -> None:
    if column == "labels":
        yes, no = "cat", ""
    files = [copy_of(path, tmp_path / str(number)) for number in range(3) for path in photos]
    lines = [f"{path},{yes if path.parent.name == 'cat' else no}" for path in files]
    Path("t.csv").write_text("\n".join([f"path,{column}", *lines]) + "\n", encoding="utf-8")
    words = ["t.csv", "--classes", "cat", "--backbone", model, "--no-cache"]
    code, out, err = otpt("calibrate", *words, "-o", "cal.json", "--run", "a", "--json")
    assert code == 0, err
    assert json.loads(out)["labels"] == len(lines)
    run = package.data.label_table(Path("t.csv"), package.data.ClassList(("cat",), ("cat",)))
    assert [run.labels_of(i) for i in range(8)] == [(0,) if path.parent.name == "cat" else () for path in photos]
    assert (
        main(["predict", *map(str, photos), "--classes", "cat", "--backbone", model, "--calibration", "cal.json"]) == 0
    )


def test_other_labels_of_one_class_are_refused(otpt: Run, photos: list[Path], model: str) -> None:
    Path("t.csv").write_text(f"path,label\n{photos[0]},maybe\n", encoding="utf-8")
    code, _, err = otpt("evaluate", "t.csv", "--classes", "cat", "--backbone", model)
    assert code == 2
    assert "'maybe'" in err


# ---- the least certain images first ---------------------------------------------------------------------------------


def test_sorted_answers_on_the_terminal_and_in_files(otpt: Run, photos: list[Path], model: str) -> None:
    words = ["predict", *photos, "--classes", *CLASSES, "--methods", METHOD, "--backbone", model, "--sort", "uncertain"]
    code, out, _ = otpt(*words, "--json")
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    found = [row["uncertainty"] for row in rows]
    assert found == sorted((1.0 - row["confidence"] for row in rows), reverse=True)
    assert otpt(*words, "-o", "p.csv")[0] == 0
    assert list(pd.read_csv("p.csv")["image"]) == [row["image"] for row in rows]
    code, out, _ = otpt(*words)
    assert [line.split("  ")[0] for line in out.splitlines()] == [row["image"] for row in rows]


@pytest.mark.parametrize(
    "words",
    [
        ["--export", "label-studio"],
        ["--export", "label-studio", "-o", "p.csv"],
        ["--export", "label-studio", "-o", "t.json", "--top", "2"],
        ["--export", "label-studio", "-o", "t.json", "--sort", "images"],
        ["--sort", "uncertain", "-o", "folder"],
        ["--sort", "uncertain", "-o", "s3://bucket/p.parquet"],
        ["-o", "t.json"],
    ],
)
def test_outputs_that_cannot_be_sorted(otpt: Run, photos: list[Path], words: list[str]) -> None:
    code, _, err = otpt("predict", photos[0], "--classes", *CLASSES, *words)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert not list(Path().iterdir())


def test_labels_of_label_studio_calibrate(otpt: Run, photos: list[Path], model: str, tmp_path: Path) -> None:
    """The whole way: predict, label in Label Studio, calibrate, predict again."""
    files = [copy_of(path, tmp_path / str(number)) for number in range(3) for path in photos]
    options = ["--classes", *CLASSES, "--backbone", model, "--methods", METHOD]
    code, _, err = otpt("predict", *files, *options, "--export", "label-studio", "-o", "tasks.json")
    assert code == 0, err
    tasks = json.loads(Path("tasks.json").read_text("utf-8"))
    assert len(tasks) == len(files)
    for task in tasks:
        result = {**task["predictions"][0]["result"][0]}
        result["value"] = {"choices": [Path(task["data"]["path"]).parent.name]}
        task["annotations"] = [{"result": [result], "was_cancelled": False}]
    Path("export.json").write_text(json.dumps(tasks), encoding="utf-8")
    code, out, err = otpt("calibrate", "export.json", *options, "--no-cache", "-o", "cal.json", "--run", "r", "--json")
    assert code == 0, err
    assert json.loads(out)["labels"] == len(files)
    assert otpt("predict", photos[0], *options, "--calibration", "cal.json", "--coverage", "0.8")[0] == 0
