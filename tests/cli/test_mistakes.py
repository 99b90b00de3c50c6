"""Mistakes of the user: one line on standard error that names the value, and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Run

BAD = [
    (["predit"], "predict"),
    (["classify"], "otpt predict"),
    (["--hepl"], "did you mean --help"),
    (["predict", "--hepl"], "Did you mean --help"),
    (["predict", "PHOTO", "--clases", "a"], "--classes"),
    (["predict", "PHOTO", "--model", "x"], "--backbone"),
    (["predict", "PHOTO", "--classes", "cat", "dog", "--top", "0"], "--top"),
    (["predict", "PHOTO", "--classes", "cat", "dog", "--top", "1.5"], "1.5"),
    (["evaluate", "PHOTOS", "--seeds", "0", "2.7"], "2.7"),
    (["predict", "PHOTO", "--classes", "cat", "dog", "--methods", "otpt"], "o-tpt"),
    (["predict", "PHOTO", "--classes", "cat", "dog", "--coverage", "0.9"], "coverage"),
    (["predict", "PHOTO", "--classes", "cat", "dog", "--out", "p.xls"], "p.xls"),
    (["predict", "PHOTO", "--classes", "cat", "dog", "--threads", "-1"], "-1"),
    (["predict", "PHOTO", "--classes", "cat", "dog", "--fpp", "steps=2"], "--set fpp-steps="),
    (["predict", "PHOTO", "--classes", "cat", "dog", "--context", "x.safetensors"], "--set context="),
    (["evaluate", "PHOTOS", "--attributes", "x.json"], "--set attributes="),
    (["evaluate", "PHOTOS", "--templates", "a {}."], "--set templates="),
    (["evaluate", "PHOTOS", "--set", "context=x.safetensors"], "context"),
    (["predict", "PHOTO", "--classes", "cat", "dog", "--budget", "0"], "--budget"),
    (["predict", "PHOTO", "--classes", "cat", "dog", "--views", "4", "--budget", "8"], "budget"),
    (["embed", "PHOTO", "--views", "2.5", "--out", "f.parquet"], "2.5"),
    (["predict", "PHOTO", "--classes", "@absent.txt"], "absent.txt"),
    (["predict", "--classes", "cat", "dog"], "No IMAGE"),
    (["predict", "absent-folder", "--classes", "cat", "dog"], "absent-folder"),
    (["evaluate"], "DATASET"),
    (["evaluate", "absent-set"], "absent-set"),
    (["evaluate", "PHOTOS", "--out", "numbers.csv"], "numbers.csv"),
    (["evaluate", "PHOTOS", "--workers", "0"], "--workers"),
    (["evaluate", "PHOTOS", "--ray-gpus", "1"], "--engine ray"),
    (["evaluate", "PHOTOS", "--no-cache", "--cache-size", "1"], "--cache-size"),
    (["sweep", "PHOTOS"], "--sweep"),
    (["sweep", "PHOTOS", "--set", "lambda=0,6"], "--sweep lambda=0,6"),
    (["evaluate", "PHOTOS", "--sweep", "budget=8,32"], "sweep over views"),
    (["evaluate", "PHOTOS", "--sweep", "views=0,2", "--methods", "tpt"], "'0'"),
    (["evaluate", "PHOTOS", "--sweep", "views=2,4", "--methods", "zero-shot"], "several views"),
    (["evaluate", "PHOTOS", "--sweep", "coverage=0.8,0.9", "--methods", "zero-shot"], "calibration"),
    (["evaluate", "PHOTOS", "--sweep", "family=shift"], "make a run for each value"),
    (["evaluate", "PHOTOS", "--overwrite"], "--overwrite"),
    (["calibrate", "PHOTOS", "--risk", "0.1"], "belongs to predict"),
    (["calibrate", "PHOTOS", "--methods", "zero-shot", "tpt", "--out", "c.json"], "takes one value"),
    (["plan", "predict", "20", "--classes", "4", "--device", "nonsense"], "nonsense"),
    (["plan", "dtd", "--classes", "4"], "--classes"),
    (["plan", "dtd", "--half"], "--half"),
    (["decide", "PHOTO"], "0.png"),
    (["decide", "A_RUN"], "--methods"),
    (["decide", "A_RUN", "--methods", "o-tpt", "--risks", "1.5"], "1.5"),
    (["decide", "A_RUN", "--methods", "o-tpt", "--truth", "label"], "--truth"),
    (["certify", "PHOTOS", "--methods", "tpt"], "promptsmooth"),
    (["calibrate", "PHOTOS"], "--out"),
    (["calibrate", "A_RUN", "--views", "4", "--methods", "o-tpt", "--out", "c.json"], "--views"),
    (["calibrate", "PHOTOS", "--dataset", "dtd", "--out", "c.json"], "--dataset"),
    (["calibrate", "PHOTOS", "--out", "PHOTO/cal.json"], "is not a folder"),
    (["train", "coop", "PHOTOS", "--out", "PHOTO/context.safetensors"], "is not a folder"),
    (["metrics"], "No run"),
    (["table", "A_RUN", "--layout", "plian"], "plain"),
    (["plot", "reliabilty", "A_RUN", "-o", "f.png"], "reliability"),
    (["plot", "reliability", "A_RUN", "-o", "f.doc"], "doc"),
    (["plot", "reliability", "A_RUN", "-o", "f.png", "--metric", "ece"], "--metric"),
    (["plot", "reliability", "A_RUN", "-o", "f.png", "--classes", "a", "b"], "--classes"),
    (["report", "A_RUN", "-o", "page.txt"], "page.txt"),
    (["models", "extra"], "extra"),
    (["datasets", "chekc"], "did you mean check"),
    (["serve", "--queue", "0"], "queue"),
    (["plan", "predict", "many"], "20000"),
]


@pytest.mark.parametrize(("words", "named"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_input(otpt: Run, images: Path, run_folder: Path, words: list[str], named: str) -> None:
    places = {"PHOTO": images / "cat" / "0.png", "PHOTOS": images, "A_RUN": run_folder}
    photo = str(places["PHOTO"])
    code, out, err = otpt(*(places.get(word, word.replace("PHOTO/", f"{photo}/")) for word in words))
    assert code == 2
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith("otpt: note: ")]
    assert len(lines) == 1
    assert str(places.get(named, named)) in lines[0]


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "absent-folder/", "--classes", "cat", "dog"],
        ["predict", "absent.parquet", "--classes", "cat", "dog"],
        ["predict", "absent-{0..2}.tar", "--classes", "cat", "dog"],
        ["evaluate", "PHOTOS", "--methods", "otpt"],
        ["evaluate", "PHOTOS", "--out", "PHOTO"],
        ["serve", "--backbone", "pocket", "--classes", "@absent.txt"],
        ["train", "coop", "absent-folder/"],
        ["train", "coop", "PHOTOS", "--out", "."],
        ["calibrate", "PHOTOS", "--out", "."],
    ],
)
def test_paths_and_names_are_checked_before_a_model_is_loaded(
    otpt: Run, images: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    for module in ("otpt.classifier", "otpt.backbones", "otpt.serve.service"):
        monkeypatch.setattr(f"{module}.load_backbone", refuse)
    places = {"PHOTO": images / "cat" / "0.png", "PHOTOS": images}
    assert otpt(*(places.get(word, word) for word in words))[0] == 2
