"""``otpt predict``: output, files, and what is checked before a model is loaded."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pandas as pd
import pytest

from otpt.rejection import NO_PROMISE

from .conftest import Run


@pytest.fixture
def words(model: str) -> tuple[str, ...]:
    return ("--classes", "cat", "dog", "--backbone", model, "--views", "2")


def test_one_image_gets_a_table_and_several_a_line_each(otpt: Run, images: Path, words: tuple[str, ...]) -> None:
    code, out, _ = otpt("predict", images / "cat" / "0.png", *words)
    assert code == 0
    assert {line.split()[1] for line in out.splitlines() if line[:2] in ("1 ", "2 ")} == {"cat", "dog"}
    code, out, _ = otpt("predict", images, *words, "--methods", "zero-shot", "tpt")
    assert code == 0
    head, *lines = out.splitlines()
    assert head.split() == ["zero-shot", "%", "tpt", "%"]
    assert [line.split()[0] for line in lines] == sorted(str(path) for path in images.rglob("*.png"))


def test_options_of_several_words_stand_before_or_after_images(otpt: Run, images: Path, words: tuple[str, ...]) -> None:
    image = images / "cat" / "0.png"
    after = otpt("predict", image, "--json", *words)
    before = otpt("predict", *words, "--json", "--", image)
    assert after == before
    assert after[0] == 0


@pytest.mark.parametrize("given", [["cat,dog"], ["@list.txt"], ["cat", "@one.txt"], ["cat", "--classes", "dog"]])
def test_spellings_of_a_class_list(otpt: Run, images: Path, model: str, given: list[str], tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("# prompt: a sketch of a\ncat\ndog\n", encoding="utf-8")
    (tmp_path / "one.txt").write_text("dog\n", encoding="utf-8")
    code, out, _ = otpt("predict", images / "dog" / "1.png", "--backbone", model, "--json", "--classes", *given)
    assert code == 0
    assert {each["label"] for each in json.loads(out)["top"]} == {"cat", "dog"}


def test_standard_input(otpt: Run, images: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    path = images / "cat" / "0.png"
    expected = json.loads(otpt("predict", path, "--json", *words)[1])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    found = json.loads(otpt("predict", "-", "--json", *words)[1])
    assert found["confidence"] == expected["confidence"]


def test_files_agree_and_have_no_columns_that_were_not_asked_for(
    otpt: Run, images: Path, words: tuple[str, ...], tmp_path: Path
) -> None:
    for suffix in ("csv", "parquet", "jsonl"):
        assert otpt("predict", images, *words, "--out", f"p.{suffix}")[0] == 0
    rows = pd.read_csv(tmp_path / "p.csv")
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text(encoding="utf-8").splitlines()]
    assert list(rows.confidence) == list(pd.read_parquet(tmp_path / "p.parquet").confidence)
    assert list(rows.confidence) == [line["confidence"] for line in lines]
    assert not {"rejected", "set", "abstained"} & {*rows.columns, *lines[0]}
    code, _, notes = otpt("predict", images, *words, "--out", "r.csv", "--reject")
    assert (code, NO_PROMISE in notes) == (0, True)
    assert "rejected" in pd.read_csv(tmp_path / "r.csv").columns
    assert NO_PROMISE not in otpt("predict", images, *words, "--reject", "--reject-threshold", "0.1")[2]


def test_a_file_of_other_settings_is_not_continued(otpt: Run, images: Path, words: tuple[str, ...]) -> None:
    words = (*words, "--methods", "o-tpt", "--out", "p.csv")
    assert otpt("predict", images / "cat", *words, "--set", "lambda=1")[0] == 0
    code, _, err = otpt("predict", images, *words, "--set", "lambda=2")
    assert (code, "methods" in err) == (2, True)
    assert otpt("predict", images, *words, "--set", "lambda=1")[0] == 0


def test_an_unreadable_image_is_counted_once_and_truly(
    otpt: Run, images: Path, words: tuple[str, ...], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    code, out, err = otpt("predict", bad, *words, "--out", "one.csv")
    assert code == 2
    assert "Predictions of 1" not in out
    assert "1 of 1 images could not be read" in err
    code, out, _ = otpt("predict", images / "cat", bad, *words, "--out", "some.csv")
    assert code == 2
    assert "4 of 5 images" in out
    assert list(pd.read_csv(tmp_path / "some.csv").error.notna()) == [False] * 4 + [True]


def test_options_of_a_toml_file(otpt: Run, images: Path, model: str, tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(
        f'[predict]\nclasses = ["cat", "dog"]\nbackbone = "{model}"\nviews = 2\njson = true\n', encoding="utf-8"
    )
    code, out, _ = otpt("predict", images / "cat" / "0.png", "--config", "my.toml")
    assert code == 0
    assert json.loads(out)["label"] in ("cat", "dog")
    (tmp_path / "my.toml").write_text("[predict]\nviws = 2\n", encoding="utf-8")
    code, _, err = otpt("predict", images / "cat" / "0.png", "--config", "my.toml")
    assert code == 2
    assert "viws" in err
