"""``otpt predict`` of many images: those that an option swallowed, a line each, files; own templates, FPP's numbers."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from oracles.command import run

pytestmark = pytest.mark.slow

FEW = ("--views", 4)


@pytest.fixture
def here(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The images in the folder that commands run in."""
    for image in images.iterdir():
        (tmp_path / image.name).write_bytes(image.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_images_after_the_class_names_are_taken(capsys, model: str, here: Path) -> None:
    common = ("--backbone", model, *FEW)
    _, first, _ = run(capsys, "predict", "0.png", "1.png", "2.png", "--classes", "cat", "dog", *common)
    code, out, err = run(capsys, "predict", *common, "--classes", "cat", "dog", "0.png", "1.png", "2.png")
    assert (code, out) == (0, first)
    assert err == "otpt: note: '0.png' and 2 more after --classes are taken as images to predict.\n"
    code, out, err = run(capsys, "predict", *common, "--classes", "cat,dog", "--method", "zero-shot", "0.png")
    assert code == 0
    assert "'0.png' after --methods is taken as an image to predict" in err
    common = (*common, "--classes", "cat,dog", "--methods", "templates")
    _, first, _ = run(capsys, "predict", "0.png", *common, "--templates", "a {} here.")
    code, out, err = run(capsys, "predict", *common, "--templates", "a {} here.", "0.png")
    assert (code, out) == (0, first), err
    assert "'0.png' after --templates is taken as an image to predict" in err


@pytest.mark.parametrize("option", ["--plugin", "--calibration", "--context", "--set"])
def test_an_image_after_any_option_of_several_words_is_taken(option: str, capsys, model: str, here: Path) -> None:
    code, _, err = run(capsys, "predict", "--classes", "cat,dog", "--backbone", model, *FEW, option, "0.png")
    assert code == 0, err
    assert f"'0.png' after {option} is taken as an image to predict" in err


def test_a_folder_is_taken_back_with_its_slash_and_a_class_of_its_name_stays_a_class(
    capsys, model: str, here: Path
) -> None:
    (here / "cat").mkdir()
    (here / "cat" / "0.png").write_bytes((here / "0.png").read_bytes())
    code, out, err = run(capsys, "predict", "0.png", "--classes", "cat", "dog", "--backbone", model, *FEW, "--json")
    assert (code, err) == (0, "")
    assert {each["label"] for each in json.loads(out)["top"]} == {"cat", "dog"}
    code, out, _ = run(capsys, "predict", "--backbone", model, *FEW, "--json", "--classes", "dog", "horse", "cat/")
    assert code == 0
    assert json.loads(out)["image"] == str(Path("cat/0.png"))


def test_a_pattern_that_matches_nothing_is_no_class(capsys, model: str, here: Path) -> None:
    code, _, err = run(capsys, "predict", "--classes", "cat", "dog", "*.jpg", "--backbone", model, *FEW)
    assert code == 2
    assert "There is no image at '*.jpg'" in err


def test_a_line_per_image_and_details_with_top(capsys, model: str, here: Path) -> None:
    common = ("--classes", "cat,dog,red panda", "--backbone", model, *FEW)
    _, rows, _ = run(capsys, "predict", ".", *common, "--json")
    answers = [json.loads(row) for row in rows.splitlines()]
    code, out, _ = run(capsys, "predict", ".", *common)
    assert code == 0
    expected = [[row["image"], *row["label"].split(), f"{100 * row['confidence']:.1f}"] for row in answers]
    assert [line.split() for line in out.splitlines()] == expected
    assert len({len(line) for line in out.splitlines()}) == 1, "columns line up"
    _, out, _ = run(capsys, "predict", ".", *common, "--top", 2)
    assert [line for line in out.splitlines() if line.endswith(".png")] == ["0.png", "1.png", "2.png"]
    assert sum(line.startswith(("1 ", "2 ")) for line in out.splitlines()) == 6
    _, out, _ = run(capsys, "predict", ".", *common, "--methods", "zero-shot", "tpt")
    assert out.splitlines()[0].split() == ["zero-shot", "%", "tpt", "%"]
    assert len(out.splitlines()) == 4


def test_files_of_predictions_hold_what_json_says(capsys, model: str, here: Path) -> None:
    (here / "bad.png").write_text("not an image")
    common = ("predict", ".", "--classes", "cat,dog", "--backbone", model, *FEW, "--method", "zero-shot", "o-tpt")
    _, out, _ = run(capsys, *common, "--json", "--top", 2)
    expected = [json.loads(line) for line in out.splitlines()]
    for name in ("x.csv", "x.parquet", "x.jsonl"):
        code, out, err = run(capsys, *common, "--top", 2, "-o", name)
        assert (code, out) == (2, f"Predictions of 4 images are in {name!r}.\n")
        assert "1 of 4 images could not be read" in err
    assert [json.loads(line) for line in Path("x.jsonl").read_text().splitlines()] == expected
    table = parquet.read_table("x.parquet").to_pylist()
    with Path("x.csv").open(encoding="utf-8", newline="") as file:
        texts = list(csv.DictReader(file))
    assert len(table) == len(texts) == len(expected) == 7
    for row, text, one in zip(table, texts, expected, strict=True):
        assert row["image"] == text["image"] == one["image"]
        if "error" in one:
            assert row["error"] == text["error"] == one["error"]
            assert row["label"] is None
            continue
        assert row["label"] == text["label"] == one["label"]
        assert row["confidence"] == float(text["confidence"]) == one["confidence"]
        assert row["label_2"] == text["label_2"] == one["top"][1]["label"]
        assert row["probability_2"] == float(text["probability_2"]) == one["top"][1]["probability"]
        assert row["mean_cosine"] == one["extras"]["mean_cosine"]


def test_with_a_file_too_the_output_is_json_alone(capsys, model: str, here: Path) -> None:
    common = ("predict", ".", "--classes", "cat,dog", "--backbone", model, *FEW, "--json")
    _, expected, _ = run(capsys, *common)
    code, out, err = run(capsys, *common, "-o", "x.csv")
    assert (code, out, err) == (0, expected, "otpt: Predictions of 3 images are in 'x.csv'.\n")


def test_names_of_files_that_are_not_text(capsys, model: str, here: Path) -> None:
    name = os.fsdecode(b"x\xff.png")
    try:
        (here / name).write_bytes((here / "0.png").read_bytes())
    except OSError:
        pytest.skip("this file system holds text names only")
    common = ("predict", name, "--classes", "cat,dog", "--backbone", model, *map(str, FEW))
    for file in ("x.csv", "x.parquet", "x.jsonl"):
        assert run(capsys, *common, "-o", file)[0] == 0
    assert json.loads(Path("x.jsonl").read_text(encoding="utf-8"))["image"] == name
    assert parquet.read_table("x.parquet")["image"].to_pylist() == ["x?.png"]
    assert Path("x.csv").read_text(encoding="utf-8").splitlines()[1].startswith("x?.png,")
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run([sys.executable, "-m", "otpt", *common, "--json"], env=strict, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["image"] == name


def test_predictions_that_go_to_a_file_are_not_drawn_above_the_bar(
    capsys, model: str, here: Path, terminal: Callable[[int], None]
) -> None:
    """With a terminal for errors only, as after ``> out.jsonl``, every line is in the output."""
    terminal(80)
    _, out, _ = run(capsys, "predict", ".", "--classes", "cat,dog", "--backbone", model, *FEW, "--json")
    assert len([json.loads(line) for line in out.splitlines()]) == 3


def test_own_templates_are_the_mean_of_their_text_features(capsys, model: str, here: Path) -> None:
    import otpt
    from otpt.prompts import Templates

    sentences = ["{} texture.", "a photo of a {}, from above."]
    Path("mine.txt").write_text("\n".join(sentences), encoding="utf-8")
    clf = otpt.load(model, "templates", templates=Templates("mine", sentences), device="cpu")
    expected = clf.set_classes(["cat", "dog"]).predict("0.png").confidence
    common = ("predict", "0.png", "--classes", "cat,dog", "--backbone", model, "--json", "--method", "templates")
    for given in (("--templates", *sentences), ("--template", "@mine.txt")):
        code, out, _ = run(capsys, *common, *given)
        assert code == 0
        assert json.loads(out)["confidence"] == expected
    code, _, err = run(capsys, *common)
    assert (code, "--templates 'a photo of a {}.'" in err) == (2, True)
    code, _, err = run(capsys, *common[:-1], "tpt", "--templates", *sentences)
    assert (code, "no method starts from templates of your own (tpt)" in err) == (2, True)


def test_numbers_of_fpp() -> None:
    from otpt.cli.options.inits import parse_fpp
    from otpt.errors import OtptError
    from otpt.settings import Fpp

    assert parse_fpp(["steps=20", "weight-per-class=0.15", "seed=3"]) == Fpp(steps=20, weight_per_class=0.15, seed=3)
    for given, says in {
        "steps": "expected NAME=VALUE",
        "step=2": "Did you mean: steps",
        "steps=many": "a whole",
    }.items():
        with pytest.raises(OtptError, match=says):
            parse_fpp([given])
    with pytest.raises(OtptError, match="names 'steps' twice"):
        parse_fpp(["steps=2", "steps=3"])


def test_fpp_of_the_command_line_is_that_of_python(capsys, model: str, here: Path) -> None:
    import otpt
    from otpt.settings import Fpp

    clf = otpt.load(model, "fpp", fpp=Fpp(steps=2, noises=1, seed=5), device="cpu")
    expected = clf.set_classes(["cat", "dog"]).predict("0.png").confidence
    numbers = ("--fpp", "steps=2", "noises=1", "seed=5")
    common = ("predict", "0.png", "--classes", "cat,dog", "--backbone", model, "--json", "--method")
    code, out, _ = run(capsys, *common, "fpp", *numbers)
    assert (code, json.loads(out)["confidence"]) == (0, expected)
    assert run(capsys, *common, "tpt", *numbers)[0] == 2
