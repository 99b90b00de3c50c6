"""Mistakes of the user: one line on standard error that names the value, and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Run

BAD = [
    (["predit"], "predict"),
    (["train", "cop"], "coop"),
    (["classify"], "otpt predict"),
    (["predict", "PHOTO", "--clases", "a"], "--classes"),
    (["predict", "PHOTO", "--model", "x"], "--backbone"),
    (["predict", "PHOTO", "--candidate_labels", "x"], "--classes"),
    (["predict", "PHOTO", "--classes", "cat", "dog", "--top", "x"], "--top"),
    (["predict", "PHOTO", "--classes", "cat", "dog", "--top", "0"], "--top"),
    (["predict", "PHOTO", "--classes", "cat", "dog", "--sets", "lak"], "lac"),
    (["predict", "PHOTO", "--classes", "cat", "dog", "--methods", "otpt"], "o-tpt"),
    (["predict", "PHOTO", "--classes", "cat", "dog", "--set", "lambda"], "lambda"),
    (["predict", "PHOTO", "--classes", "cat", "dog", "--coverage", "0.9"], "--coverage"),
    (["predict", "PHOTO", "--classes", "cat", "dog", "--out", "p.xls"], "p.xls"),
    (["predict", "PHOTO", "--classes", "cat", "dog", "--threads", "-1"], "-1"),
    (["predict", "PHOTO", "--classes", "cat", "dog", "--fpp", "steps=2"], "--fpp"),
    (["predict", "PHOTO", "--classes", "@absent.txt"], "absent.txt"),
    (["predict", "PHOTO"], "--classes"),
    (["predict", "--classes", "cat", "dog"], "No IMAGE"),
    (["predict", "absent-folder", "--classes", "cat", "dog"], "absent-folder"),
    (["predict", "PHOTO", "--config"], "--config"),
    (["predict", "PHOTO", "--config", "absent.toml"], "absent.toml"),
    (["evaluate"], "DATASET"),
    (["evaluate", "absent-set"], "absent-set"),
    (["evaluate", "PHOTOS", "--out", "numbers.csv"], "numbers.csv"),
    (["evaluate", "PHOTOS", "--workers", "0"], "--workers"),
    (["evaluate", "PHOTOS", "--ray-gpus", "1"], "--engine ray"),
    (["evaluate", "PHOTOS", "--no-cache", "--cache-size", "1"], "--cache-size"),
    (["evaluate", "PHOTOS", "--sigma", "0.1"], "--sigma"),
    (["evaluate", "PHOTOS", "--split", "train"], "train"),
    (["sweep", "PHOTOS"], "--set"),
    (["certify", "PHOTOS", "--methods", "tpt"], "promptsmooth"),
    (["calibrate", "PHOTOS"], "--out"),
    (["metrics"], "No RUN"),
    (["metrics", "absent-run"], "absent-run"),
    (["metrics", "PHOTOS"], "PHOTOS"),
    (["compare", "A_RUN", "--methods", "a", "b", "c"], "3"),
    (["table", "A_RUN", "--layout", "mian"], "main"),
    (["table", "A_RUN", "--paper", "otp"], "otpt"),
    (["plot", "reliabilty", "A_RUN", "-o", "f.png"], "reliability"),
    (["plot", "reliability", "A_RUN", "-o", "f.doc"], "doc"),
    (["report", "A_RUN", "-o", "page.txt"], "page.txt"),
    (["datasets", "--data", "absent-root"], "absent-root"),
    (["datasets", "get", "absent-set", "--data", "."], "absent-set"),
    (["cache", "empty"], "clear"),
    (["models", "extra"], "extra"),
    (["reproduce", "papr"], "paper"),
    (["serve", "--queue", "0"], "queue"),
    (["plan", "predict", "many"], "20000"),
    (["plan", "dtt"], "dtd"),
]


@pytest.mark.parametrize(("words", "told"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_input(otpt: Run, images: Path, run_folder: Path, words: list[str], told: str) -> None:
    places = {"PHOTO": images / "cat" / "0.png", "PHOTOS": images, "A_RUN": run_folder}
    code, out, err = otpt(*(places.get(word, word) for word in words))
    assert code == 2
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith("otpt: note: ")]
    assert len(lines) == 1
    assert str(places.get(told, told)) in lines[0]


def test_a_missing_folder_is_noticed_before_the_model_is_loaded(otpt: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("otpt.classifier.load_backbone", refuse)
    assert otpt("predict", "absent-folder/", "--classes", "cat", "dog")[0] == 2
