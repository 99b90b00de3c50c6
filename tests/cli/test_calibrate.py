"""``otpt calibrate``, and its file in predict, evaluate, metrics and Python."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from oracles.command import run
from oracles.runs.evaluation_bench import NAMES, RECIPE, backbone, dataset, image, settings
from oracles.runs.simulated_runs import simulate_run, simulated_dataset

import otpt
from otpt.calibration import Calibrated, read_calibration
from otpt.classifier import Classifier
from otpt.errors import OtptError
from otpt.evaluation import Settings, calibrate_run, evaluate
from otpt.runs import Run

pytestmark = pytest.mark.slow

CLASSES, IMAGES = 10, 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated run with all probabilities, and one without."""
    folder = tmp_path_factory.mktemp("calibrate")
    data = simulated_dataset("pets", CLASSES, IMAGES)
    chosen = Settings(methods=["zero-shot", "tpt"], save_probabilities=True, seeds=(0, 1))
    simulate_run(folder / "run", [data], chosen)
    simulate_run(folder / "plain", [data], Settings(methods=["tpt"]))
    return folder


def test_a_run_is_calibrated_without_computing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, figure = folder / "cal.json", folder / "before-after.svg"
    code, printed, _ = run(capsys, "calibrate", folder / "run", "--method", "tpt", "--out", out, "--figure", figure)
    assert code == 0
    lines = printed.splitlines()
    assert lines[0].split() == ["tpt,", "300", "labels", "before", "95", "%", "after", "95", "%"]
    assert [line.split("  ")[0] for line in lines[1:5]] == ["accuracy %", "NLL", "ECE %", "debiased ECE %"]
    assert "Chosen by cross-validated NLL: " in printed
    assert "Not tried: isotonic, which needs 500 labels for 10 classes." in printed
    assert figure.read_bytes().startswith(b"<?xml")
    found = read_calibration(out)
    rows = pq.read_table(folder / "run" / "pets" / "seed-0" / "tpt")
    p = np.stack([np.array(each) for each in rows["probabilities"].to_pylist()])
    assert sorted(found.confidences) == sorted(p.astype(np.float64).max(axis=1))
    assert found.facts["method"]["name"] == "tpt"
    assert found.facts["classes"] == [f"class {i}" for i in range(CLASSES)]
    code, printed, _ = run(capsys, "calibrate", folder / "run", "--method", "tpt", "--out", out, "--json")
    shown = json.loads(printed)
    assert shown["labels"] == IMAGES
    assert shown["cross_validation"] == dict(found.cross_validation)


def test_the_seed_of_a_run(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (0, 1):
        code, _, _ = run(
            capsys, "calibrate", folder / "run", "--method", "tpt", "--seed", seed, "-o", tmp_path / "c.json"
        )
        assert code == 0
        assert read_calibration(tmp_path / "c.json").origin["seed"] == seed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run",), "several methods (zero-shot, tpt); name one of them"),
        (("run", "--method", "o-tpt"), "Unknown method of the run 'o-tpt'"),
        (("run", "--method", "tpt", "--seed", "7"), "The run has no seed 7 of 'tpt'; there are 0, 1."),
        (("run", "--method", "tpt", "--seeds", "0", "1"), "each image once, so expected one seed"),
        (("plain",), "did not keep all probabilities"),
        (("run", "--method", "tpt", "--maps", "isotonic"), "needs 500 labels"),
        (("run", "--method", "tpt", "--figure", "figure.gif"), "gif"),
        (("emoji/food", "--seeds", "0", "1"), "each image once, so expected one seed"),
    ],
)
def test_what_cannot_be_calibrated(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    data = folder / arguments[0] if (folder / arguments[0]).exists() else arguments[0]
    code, out, err = run(capsys, "calibrate", data, *arguments[1:], "--out", folder / "no.json")
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1
    assert not (folder / "no.json").exists()


@pytest.mark.parametrize("option", [("--coverage", "0.9"), ("--risk", "0.1"), ("--mondrian",)])
def test_a_question_needs_a_file(capsys: pytest.CaptureFixture[str], option: tuple[str, ...]) -> None:
    code, _, err = run(capsys, "predict", "x.png", "--classes", "a", "b", *option)
    assert code == 2
    assert f"{option[0]} was given without --calibration" in err


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibration of zero-shot on 60 images by a tiny model, and the run that it is from."""
    folder = tmp_path_factory.mktemp("tiny")
    chosen = settings(methods=["zero-shot"], save_probabilities=True, shard_size=64)
    result = evaluate(dataset(60), backbone(), chosen, out=folder / "run")
    calibrate_run(result.run, maps=["temperature"]).write(folder / "cal.json")
    return folder


def test_python_and_evaluation_give_the_same_calibrated_numbers(tiny: Path, tmp_path: Path) -> None:
    use = Calibrated(read_calibration(tiny / "cal.json"), coverage=0.7, sets="raps", risk=0.9, guarantee=0.8)
    chosen = settings(methods=["zero-shot", "tpt"], calibrations=[use])
    assert [method.name for method in chosen.chosen] == ["zero-shot+calibrated", "tpt"]
    result = evaluate(dataset(12), backbone(), chosen, out=tmp_path / "run")
    rows = pq.read_table(tmp_path / "run" / "tiny" / "seed-0" / "zero-shot+calibrated").to_pylist()
    clf = Classifier(backbone(), "zero-shot", recipe=RECIPE, calibration=use).set_classes(NAMES)
    plain = Classifier(backbone(), "zero-shot", recipe=RECIPE).set_classes(NAMES)
    assert {row["id"] for row in rows} == {f"p/{i}" for i in range(12)}
    for row in rows:
        shown = image(int(row["id"].removeprefix("p/")))
        found, before = clf.predict(shown), plain.predict(shown)
        assert row["confidence"] == found.confidence
        assert row["uncalibrated_confidence"] == before.confidence == found.extras["uncalibrated_confidence"]
        assert found.index == before.index == row["prediction"]
        assert found.probabilities.sum() == pytest.approx(1.0, abs=1e-12)
        assert found.labels is not None
        assert row["set_size"] == len(found.labels)
        assert bool(row["covered"]) == (NAMES[row["label"]] in found.labels)
        assert found.labels[0] == found.label
        assert bool(row["answered"]) == (not found.abstained)
        assert (before.labels, before.abstained) == (None, None)
    score = next(each for each in result.scores if each.method == "zero-shot+calibrated")
    assert score.sets is not None
    assert score.sets.coverage == np.mean([row["covered"] for row in rows])
    assert score.sets.set_size == np.mean([row["set_size"] for row in rows])
    assert score.as_dict()["sets"]["answered"] == np.mean([row["answered"] for row in rows])
    assert "sets" not in next(each for each in result.scores if each.method == "tpt").as_dict()


def test_rows_of_another_calibration_do_not_mix(tiny: Path, tmp_path: Path) -> None:
    calibration = read_calibration(tiny / "cal.json")

    def evaluated(use: Calibrated) -> Run:
        chosen = settings(methods=["zero-shot"], calibrations=[use])
        return evaluate(dataset(6), backbone(), chosen, out=tmp_path / "run").run

    evaluated(Calibrated(calibration, coverage=0.7))
    evaluated(Calibrated(calibration, coverage=0.7))
    with pytest.raises(OtptError, match=r"calibration\.coverage is 0\.7 there and 0\.8 now"):
        evaluated(Calibrated(calibration, coverage=0.8))
    other = calibrate_run(Run(tiny / "run"), maps=["temperature"], penalty=0.5)
    with pytest.raises(OtptError, match=r"calibration\.digest is"):
        evaluated(Calibrated(other, coverage=0.7))
    with pytest.raises(OtptError, match="were calibrated already"):
        calibrate_run(Run(tmp_path / "run"))


def test_metrics_show_coverage_and_risk(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    use = Calibrated(read_calibration(tiny / "cal.json"), coverage=0.7)
    evaluate(dataset(9), backbone(), settings(methods=["zero-shot"], calibrations=[use]), out=tmp_path / "run")
    code, out, _ = run(capsys, "metrics", tmp_path / "run")
    assert code == 0
    header, row = next(
        (a, b)
        for a, b in zip(out.splitlines(), out.splitlines()[1:], strict=False)
        if "coverage %" in a and "set size" in a
    )
    assert header.split()[:2] == ["method", "data"]
    assert row.split()[0] == "zero-shot+calibrated"


def test_another_purpose_is_refused_at_every_door(tiny: Path, tmp_path: Path) -> None:
    path = tiny / "cal.json"
    with pytest.raises(OtptError, match="made for the method 'zero-shot', not for 'tpt'"):
        Classifier(backbone(), "tpt", recipe=RECIPE, calibration=path)
    with pytest.raises(OtptError, match="made for the method 'zero-shot', not for 'tpt', 'o-tpt'"):
        settings(methods=["tpt", "o-tpt"], calibrations=[path])
    with pytest.raises(OtptError, match="Two calibrations of the method 'zero-shot'"):
        settings(methods=["zero-shot"], calibrations=[path, path])
    clf = Classifier(backbone(), "zero-shot", recipe=RECIPE, calibration=path)
    with pytest.raises(OtptError, match=r"made for 6 classes, not for these 2 .*'fox'"):
        clf.set_classes(["cat", "fox"])
    with pytest.raises(OtptError, match="made for prompt .*a photo of a.*, not for .*a drawing of a"):
        clf.set_classes(NAMES, "a drawing of a")
    chosen = settings(methods=["zero-shot"], prompts=["a drawing of a"], calibrations=[path])
    with pytest.raises(OtptError, match="made for prompt"):
        evaluate(dataset(6), backbone(), chosen, out=tmp_path / "run")
    assert clf.set_classes(NAMES).use_calibrations([]).predict(image(0)).abstained is None


def test_calibrating_in_python() -> None:
    clf = otpt.Classifier(backbone(), "tpt", recipe=RECIPE).set_classes(NAMES)
    images = [image(seed) for seed in range(24)]
    before = clf.predict(images)
    labels = [p.label if i % 3 else NAMES[(p.index + 1) % len(NAMES)] for i, p in enumerate(before)]
    found = clf.calibrate(images, labels)
    assert (found.labels, list(found.cross_validation)) == (24, ["identity", "temperature"])
    after = clf.predict(images)
    assert [p.index for p in after] == [p.index for p in before]
    for one, two in zip(before, after, strict=True):
        assert np.array_equal(found.map(one.probabilities), two.probabilities)
    again = otpt.Classifier(backbone(), "tpt", recipe=RECIPE, calibration=found).set_classes(NAMES)
    assert again.predict(images[0]).confidence == after[0].confidence


def test_labels_that_cannot_be_used_in_python() -> None:
    clf = otpt.Classifier(backbone(), "zero-shot").set_classes(NAMES)
    images = [image(seed) for seed in range(24)]
    for labels, told in (
        ([NAMES[0]] * 24, f"All 24 labels are of the class '{NAMES[0]}'; expected images of at least two classes"),
        ([*NAMES[:2] * 11, "no class", NAMES[0]], "Unknown label 'no class'. Available: "),
        ([0, 1] * 11 + [0, len(NAMES)], f"The label {len(NAMES)} is not a class; expected 0 to {len(NAMES) - 1}"),
        ([0.0, 1.0] * 12, "The label 0.0 is no index; expected an integer, or a class name"),
        (NAMES[0], "expected a list, one label per image"),
        ([0, 1], "24 images but 2 labels were given; expected one label per image"),
    ):
        with pytest.raises(OtptError, match=re.escape(told)):
            clf.calibrate(images, labels)  # type: ignore[arg-type]
    with pytest.raises(OtptError, match="24 images but 2 labels"):
        clf.calibrate(iter(images), [0, 1])  # counted only when they have come
    assert clf.calibrate(images, np.array([0, 1] * 12)).labels == 24
